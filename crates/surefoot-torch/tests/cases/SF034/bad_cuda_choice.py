from torch import nn


def build():
    net = nn.Linear(4, 2)
    try:
        net = net.cuda()
    except:
        net = net.cpu()  # expect: SF034
    return net
