import torch as t

def make(device):
    buffer = t.empty(8, 8).to(device)  # expect: SF001
    old = t.Tensor(4, 4)
    return buffer, old.cuda() if t.cuda.is_available() else old  # expect: SF001
