import torch
import torch.utils.data as data

def loaders(train, test):
    device = "mps" if torch.backends.mps.is_available() else "cpu"
    a = data.DataLoader(train, shuffle=True, pin_memory=True)  # expect: SF007
    b = torch.utils.data.DataLoader(test, pin_memory=True)  # expect: SF007
    return device, a, b
