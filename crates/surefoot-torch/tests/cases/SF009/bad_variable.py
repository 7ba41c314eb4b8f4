from torch.utils.data import DataLoader

def make(dataset):
    workers = 0
    return DataLoader(
        dataset,
        num_workers=workers,
        persistent_workers=True,  # expect: SF009
    )
