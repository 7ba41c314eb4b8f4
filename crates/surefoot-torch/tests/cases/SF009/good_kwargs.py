from torch.utils.data import DataLoader

def make(dataset, **options):
    return DataLoader(dataset, persistent_workers=True, **options)
