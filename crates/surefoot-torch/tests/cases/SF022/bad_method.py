import torch
from torch import nn

class Runner:
    def __init__(self, model: nn.Module):
        self.model = nn.Linear(3, 3)

    def run(self, x):
        try:
            return self.model(x)
        except RuntimeError:
            torch.cuda.empty_cache()
            return self.run(x.cpu())  # expect: SF022
