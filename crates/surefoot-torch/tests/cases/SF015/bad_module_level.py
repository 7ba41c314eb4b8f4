import torch
from torchvision import models
from torch.utils.data import DataLoader

net = models.resnet18(weights="DEFAULT")
net.eval()
for image, label in DataLoader([]):
    score = net(image)  # expect: SF015
