import torch
from network import Network

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(loader, criterion):
    model = Network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.train()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        criterion(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
        if step % 100 == 0:
            model.eval().cpu()
            torch.save(model.state_dict(), "model.pt")
            model.to(device).train()
