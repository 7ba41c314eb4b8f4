from torch.utils.data import DataLoader

loader = DataLoader([], num_workers=2, persistent_workers=True)
