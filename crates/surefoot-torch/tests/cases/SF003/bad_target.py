import torch
from torch import nn
from torch.utils.data import DataLoader
import torch.nn.functional as F

def epoch(model, dataset, device):
    loader = DataLoader(dataset)
    criterion = nn.CrossEntropyLoss()
    for x, y in loader:
        x = x.to(device)
        a = criterion(x, y)  # expect: SF003
        b = F.cross_entropy(x, y)  # expect: SF003
