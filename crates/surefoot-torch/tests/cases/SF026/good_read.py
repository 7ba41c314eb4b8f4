import os
import torch

fallback = os.environ.get("PYTORCH_ENABLE_MPS_FALLBACK", "0")
os.environ["TOKENIZERS_PARALLELISM"] = "false"
