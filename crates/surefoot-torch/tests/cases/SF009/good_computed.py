from torch.utils.data import DataLoader

def make(dataset, workers):
    return DataLoader(dataset, num_workers=workers, persistent_workers=workers > 0)
