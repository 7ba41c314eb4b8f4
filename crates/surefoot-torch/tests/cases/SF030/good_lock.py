import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

device = torch.device("mps")
model = nn.Linear(3, 3).to(device)
lock = threading.Lock()


def predict(x):
    with lock, torch.no_grad():
        return model(x.to(device)).cpu()


def run(batches):
    model.eval()
    with ThreadPoolExecutor() as pool:
        return list(pool.map(predict, batches))
