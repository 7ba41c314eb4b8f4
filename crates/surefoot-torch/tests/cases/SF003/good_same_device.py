import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(8, 4, device=device)
mask = torch.ones(8, 4, device=x.device)
y = x * mask
like = torch.zeros_like(x) + x
scale = torch.tensor(2.0)
z = x * scale
back = y.cpu() + torch.ones(8, 4)
