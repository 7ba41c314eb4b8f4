import time
import torch

def bench(model, x):
    model = model.to("mps" if torch.backends.mps.is_available() else "cpu")
    model.eval()
    begin = time.perf_counter()
    with torch.inference_mode():
        for _ in range(100):
            model(x)
    print((time.perf_counter() - begin) / 100)  # expect: SF027
