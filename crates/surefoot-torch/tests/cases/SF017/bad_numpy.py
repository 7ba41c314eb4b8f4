import numpy as np
import torch

device = torch.device("mps")
data = np.random.randn(8, 3)
x = torch.from_numpy(data).to(device)  # expect: SF017
y = torch.tensor(np.zeros(3), device=device)  # expect: SF017
