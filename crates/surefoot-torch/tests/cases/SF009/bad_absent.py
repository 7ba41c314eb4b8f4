from torch.utils.data import DataLoader

loader = DataLoader([], persistent_workers=True)  # expect: SF009
