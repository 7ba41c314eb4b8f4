import torch

def train(model, loader, optimizer, criterion, device):
    scaler = torch.amp.GradScaler()
    for x, y in loader:
        with torch.autocast(device.type, dtype=torch.float16):
            loss = criterion(model(x.to(device)), y.to(device))
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # expect: SF011
        scaler.update()
