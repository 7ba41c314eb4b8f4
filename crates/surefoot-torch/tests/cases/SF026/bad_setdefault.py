import os
from torch import nn

os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")  # expect: SF026
model = nn.Linear(3, 3)
