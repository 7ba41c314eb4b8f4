import torch

def run(model, x, log):
    try:
        return model(x)
    except RuntimeError:
        log.exception("shape %s", x.shape)
        raise
