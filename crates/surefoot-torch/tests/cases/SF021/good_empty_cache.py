import torch

def run(model, x):
    failed = False
    try:
        return model(x)
    except RuntimeError as error:
        torch.cuda.empty_cache()
        if "out of memory" not in str(error):
            raise
        failed = True
    return failed
