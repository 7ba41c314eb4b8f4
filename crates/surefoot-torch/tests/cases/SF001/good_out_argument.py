import torch
import torch.distributed as dist

a = torch.randn(3, 3)
out = torch.empty(3, 3)
torch.matmul(a, a, out=out)
print(out.sum())
received = torch.empty(8)
dist.recv(received, src=0)
total = received.sum()
data = torch.Tensor([1.0, 2.0]) * 2
nothing = torch.empty(0)
joined = torch.cat([nothing, data])
shape = torch.empty(3, 4).size()
