import torch
from transformers import AutoModelForCausalLM

device = "mps" if torch.backends.mps.is_available() else "cpu"
a = AutoModelForCausalLM.from_pretrained("gpt2", device_map="auto", dtype="auto")
b = AutoModelForCausalLM.from_pretrained("gpt2", device_map="auto", load_in_8bit=True)
c = AutoModelForCausalLM.from_pretrained("gpt2", device_map={"": device})
