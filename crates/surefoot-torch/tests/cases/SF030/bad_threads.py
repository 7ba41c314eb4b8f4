import threading

import torch
from transformers import AutoModelForCausalLM

device = "mps"
model = AutoModelForCausalLM.from_pretrained("gpt2", dtype="auto").to(device)


def work(prompt):
    return model.generate(prompt)


async def serve(loop, prompt):
    return await loop.run_in_executor(None, work, prompt)  # expect: SF030


def many(prompts):
    threads = []
    for prompt in prompts:
        threads.append(threading.Thread(target=work, args=(prompt,)))  # expect: SF030
    return threads
