import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

device = torch.device("mps")
tokenizer = AutoTokenizer.from_pretrained("gpt2")
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype="auto").to(device)


@torch.no_grad()
def answer(texts):
    model.eval()
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", padding=True, pad_to_multiple_of=64).to(device)
        yield model(**inputs)
    once = tokenizer("Hello", return_tensors="pt").to(device)
    yield model(**once)
