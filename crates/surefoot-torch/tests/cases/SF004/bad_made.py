import torch

x = torch.zeros(3)
x.half()  # expect: SF004
if torch.cuda.is_available():
    x.cuda()  # expect: SF004
x.detach().cpu()  # expect: SF004
