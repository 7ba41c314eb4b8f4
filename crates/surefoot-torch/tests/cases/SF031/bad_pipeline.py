import torch
from transformers import pipeline

if torch.backends.mps.is_available():
    torch.mps.empty_cache()
chat = pipeline("text-generation", model="gpt2", device_map="auto", dtype="float32")  # expect: SF031
