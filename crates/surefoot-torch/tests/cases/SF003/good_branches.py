import torch

def combine(x, y, use_gpu):
    if use_gpu:
        x = x.to("cuda")
        y = y.to("cuda")
    bias = torch.zeros(3)
    if x.is_cuda:
        bias = bias.cuda()
    return x + y + bias
