import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.no_grad()
def generate(model, tokens, steps):
    model.eval()
    for _ in range(steps):
        tokens = torch.cat((tokens, model(tokens).argmax(-1)), dim=1)
    return tokens
