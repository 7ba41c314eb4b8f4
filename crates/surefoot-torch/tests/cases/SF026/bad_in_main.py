import os
import torch

def main():
    os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # expect: SF026
    return torch.zeros(3)
