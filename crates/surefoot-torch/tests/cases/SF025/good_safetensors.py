from safetensors.torch import load_file
import torch

def read(path):
    return load_file(path, device="cpu")
