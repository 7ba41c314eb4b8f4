import json
import numpy as np
import torch

def read(path):
    with open(path) as file:
        return json.load(file), np.load(path), torch.jit.load(path, map_location="cpu")
