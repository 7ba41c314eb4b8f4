from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
model = nn.Linear(3, 3).to(device)


def predict(x):
    return model(x.to(device)).cpu()


def run(batches):
    with ThreadPoolExecutor(max_workers=4) as pool:
        futures = [pool.submit(predict, x) for x in batches]  # expect: SF030
        more = list(pool.map(lambda x: model(x), batches))  # expect: SF030
    return futures, more
