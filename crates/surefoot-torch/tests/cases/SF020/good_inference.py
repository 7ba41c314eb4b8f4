import torch

@torch.inference_mode()
def predict(model, loader):
    model.eval()
    model.half()
    with torch.autocast("cuda", dtype=torch.float16):
        return [model(x) for x in loader]
