import os
import torch

os.environ["PYTORCH_ENABLE_MPS_FALLBACK"] = "1"  # expect: SF026
