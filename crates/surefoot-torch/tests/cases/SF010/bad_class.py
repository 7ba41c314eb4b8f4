import torch
from torch.optim import AdamW


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)


def main():
    net = Net()
    optimizer = AdamW(filter(lambda p: p.requires_grad, net.parameters()))
    if torch.cuda.is_available():
        net.cuda()  # expect: SF010
    return optimizer
