import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(8, 4, device=device)
mask = torch.ones(8, 4)
y = x * mask  # expect: SF003
z = torch.matmul(x, torch.randn(4, 2))  # expect: SF003
