import torch

if not torch.backends.mps.is_available():
    if not torch.backends.mps.is_built():
        print("MPS not available because this PyTorch was not built with MPS enabled.")
    else:
        print("MPS not available because this macOS is older than 12.3.")
else:
    mps_device = torch.device("mps")
