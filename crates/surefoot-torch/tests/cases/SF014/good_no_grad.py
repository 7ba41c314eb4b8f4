import torch

@torch.inference_mode()
def features(model, loader, device):
    model.eval()
    kept = []
    for x, _ in loader:
        kept.append(model(x.to(device)).cpu())
    return torch.cat(kept)
