import torch

device = "mps" if torch.backends.mps.is_available() else "cpu"


@torch.no_grad()
def generate(model, tokens, steps, block):
    model.eval()
    for _ in range(steps):
        logits = model(tokens[:, -block:])  # expect: SF032
        tokens = torch.cat((tokens, logits.argmax(-1)), dim=1)
    return tokens
