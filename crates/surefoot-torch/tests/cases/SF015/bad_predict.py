import torch

def predict(model, x):
    model.eval()
    return model(x).softmax(-1)  # expect: SF015
