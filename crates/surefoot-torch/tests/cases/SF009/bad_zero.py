import torch

loader = torch.utils.data.DataLoader([], num_workers=0, persistent_workers=True)  # expect: SF009
