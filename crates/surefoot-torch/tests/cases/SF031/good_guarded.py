import torch
from transformers import AutoModelForCausalLM


def load(name, **options):
    if torch.backends.mps.is_available():
        return AutoModelForCausalLM.from_pretrained(name, dtype="auto").to("mps")
    AutoModelForCausalLM.from_pretrained(name, device_map="auto", **options)
    return AutoModelForCausalLM.from_pretrained(name, device_map="auto")
