from torch import nn, optim

def build(device):
    net = nn.Sequential(nn.Linear(2, 2))
    opt = optim.SGD([{"params": net.parameters()}], lr=0.1)
    net = net.to(device)  # expect: SF010
    return net, opt
