import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(torch.flatten(F.relu(self.conv1(x)), 1))


net = Net()
correct = 0
with torch.no_grad():
    for images, labels in testloader:
        outputs = net(images)
        correct += (outputs.argmax(1) == labels).sum().item()
