import torch


def embed(model, batch):
    try:
        out = model(batch)
    except RuntimeError as error:
        if "MPS" not in str(error):
            raise
        print("falling back")
        out = model.cpu()(batch.cpu())  # expect: SF034
    return out
