import torch


def predict(model, x):
    try:
        return model(x)
    except RuntimeError:
        model = model.to("cpu")  # expect: SF034
        return model(x.to("cpu"))
