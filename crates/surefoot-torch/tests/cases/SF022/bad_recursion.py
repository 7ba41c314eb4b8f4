import torch

def step(model, x):
    try:
        model(x).sum().backward()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        half = len(x) // 2
        step(model, x[:half])  # expect: SF022
        step(model, x[half:])
