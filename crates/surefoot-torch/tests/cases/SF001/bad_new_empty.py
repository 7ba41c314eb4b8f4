import torch

x = torch.zeros(3)
y = x.new_empty(5)
z = y.sum()  # expect: SF001
w = torch.FloatTensor(3, 3)
v = torch.matmul(w, w)  # expect: SF001
