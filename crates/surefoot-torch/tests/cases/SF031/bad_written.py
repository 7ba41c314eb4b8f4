import torch
import transformers

device = torch.device("mps")


def load(name):
    return transformers.AutoModel.from_pretrained(
        name,
        torch_dtype=torch.float32,
        device_map="auto",  # expect: SF031
    )
