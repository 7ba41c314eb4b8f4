import torch

def run(model, loaders, train, evaluate):
    for epoch in range(10):
        train(model, loaders)
        torch.cuda.empty_cache()
        evaluate(model, loaders)
    torch.cuda.empty_cache()
