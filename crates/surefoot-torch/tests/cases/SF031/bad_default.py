import torch
from transformers import AutoModelForCausalLM

device = "mps" if torch.backends.mps.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained("gpt2", device_map="auto")  # expect: SF031
