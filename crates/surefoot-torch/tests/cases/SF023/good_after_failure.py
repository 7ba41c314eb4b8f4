import torch

def run(model, loader):
    model.eval()
    for x in loader:
        try:
            with torch.no_grad():
                model(x)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
