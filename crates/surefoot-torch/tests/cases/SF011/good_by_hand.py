import torch

w = torch.randn(3, requires_grad=True)
for _ in range(10):
    loss = (w ** 2).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
opt = torch.optim.LBFGS([w])

def closure():
    opt.zero_grad()
    loss = (w ** 2).sum()
    loss.backward()
    return loss

for _ in range(10):
    opt.step(closure)
