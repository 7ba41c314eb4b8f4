import torch

print("MPS built:", torch.backends.mps.is_built())
info = {"mps_built": torch.backends.mps.is_built(), "version": torch.__version__}
built = torch.backends.cuda.is_built()
line = f"built with CUDA: {torch.backends.cuda.is_built()}"
