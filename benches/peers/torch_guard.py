#!/usr/bin/env python3
"""What guarding a PyTorch training step costs, and who survives which fault.

    python benches/peers/torch_guard.py                 # on the processor
    python benches/peers/torch_guard.py --device cuda   # and with batches that really don't fit
    python benches/peers/torch_guard.py --only overhead,survival,rate --json figures.json

overhead: the CNN and the GPT of train.py, a step of bare PyTorch and a guarded one in turns: medians, the median of the ratios of each
pair, and the ratio of the processor time that both took, which other programs on the machine disturb less.
survival: scenarios x ways to guard (torch_survival.py).
rate (CUDA only): a batch four times too large for the memory that is left, against the best micro-batch found by hand.
"""

import argparse
import copy
import gc
import json
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from torch_survival import bare_step, survival  # noqa: E402
from train import Cnn, Gpt  # noqa: E402

import surefoot  # noqa: E402

warnings.simplefilter("ignore", surefoot.SurefootWarning)


def cnn(device, batch=32):
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(0, 10, (batch,), device=device)
    return Cnn().to(device), (x, y), lambda m, x, y: F.cross_entropy(m(x), y)


def gpt(device, batch=8, tokens=128):
    torch.manual_seed(0)
    model = Gpt().to(device)
    x = torch.randint(0, 96, (batch, tokens), device=device)
    return model, (x, x.roll(-1, 1)), lambda m, x, y: F.cross_entropy(m(x), y.flatten())


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def overhead(device, rounds):
    """Ratios of a guarded step over a bare one, each timed in turn on models of their own."""
    figures = {}
    for name, make in (("cnn", cnn), ("gpt", gpt)):
        plain, batch, loss_fn = make(device)
        guarded = copy.deepcopy(plain)
        foot = surefoot.Footing(device=device)
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (guarded, plain))
        steps = {
            "bare": lambda: bare_step(plain, theirs, batch, loss_fn),
            "guarded": lambda: foot.step(guarded, ours, batch, loss_fn),
        }
        times, busy = {kind: [] for kind in steps}, {kind: [] for kind in steps}
        for round_ in range(rounds + 3):
            # Which of the two comes first changes, since the first finds colder caches.
            for kind in sorted(steps, reverse=round_ % 2 == 1):
                wait(device)
                start, start_busy = time.perf_counter(), time.process_time()
                steps[kind]()
                wait(device)
                if round_ >= 3:
                    times[kind].append(time.perf_counter() - start)
                    busy[kind].append(time.process_time() - start_busy)
        # A pair was measured within a moment, so what else the machine did is in both.
        ratio = statistics.median(g / b for g, b in zip(times["guarded"], times["bare"]))
        medians = {kind: statistics.median(values) * 1e3 for kind, values in times.items()}
        of_busy = statistics.median(busy["guarded"]) / statistics.median(busy["bare"])
        figures[name] = {**medians, "ratio": ratio, "ratio_of_processor_time": of_busy}
        print(f"{name:4} bare {medians['bare']:8.2f} ms   guarded {medians['guarded']:8.2f} ms   ratio {ratio:.4f}   of processor time {of_busy:.4f}")
    return figures


def rate(device, seconds=25.0):
    """Samples/s with a batch that is four times too large, against the best micro-batch by hand."""
    layers, width, tokens = 12, 1024, 512
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    head = torch.nn.Linear(width, width).to(device)
    whole = torch.nn.Sequential(model, head)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-5, fused=True)

    def loss_fn(m, x):
        return m(x).square().mean()

    def make(samples):
        return torch.randn(samples, tokens, width, device=device)

    # A small share of the card, so that the search by hand takes seconds.
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 16 * 2**30 / total))

    def hand(micro, samples, count):
        batch = make(samples)
        for _ in range(count):
            for part in batch.split(micro):
                (loss_fn(whole, part) * (len(part) / samples)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    fits, size = 1, 1
    while True:
        try:
            hand(size, size, 1)
            fits, size = size, size * 2
        except torch.OutOfMemoryError:
            pass
        else:
            continue
        gc.collect()
        torch.cuda.empty_cache()
        optimizer.zero_grad(set_to_none=True)
        break
    samples = 4 * fits
    best = {}
    for micro in sorted({fits, fits // 2 or 1, max(1, 3 * fits // 4), fits // 4 or 1}):
        torch.cuda.synchronize()
        try:
            hand(micro, samples, 1)
            torch.cuda.synchronize()
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < seconds / 5:
                hand(micro, samples, 1)
                torch.cuda.synchronize()
                count += 1
            best[micro] = count * samples / (time.perf_counter() - start)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            optimizer.zero_grad(set_to_none=True)
    foot = surefoot.Footing(device=device)
    batch = make(samples)
    start = time.perf_counter()
    foot.step(whole, optimizer, (batch,), loss_fn)
    torch.cuda.synchronize()
    first, found = time.perf_counter() - start, foot.last
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        foot.step(whole, optimizer, (batch,), loss_fn)
        torch.cuda.synchronize()
        count += 1
    ours = count * samples / (time.perf_counter() - start)
    micro, by_hand_rate = max(best.items(), key=lambda item: item[1])
    torch.cuda.set_per_process_memory_fraction(1.0)
    print(
        f"batch {samples}, of which {fits} fit: by hand {by_hand_rate:.1f} samples/s in micro-batches of {micro}; "
        f"guarded {ours:.1f} samples/s in {foot.last.parts} parts, ratio {ours / by_hand_rate:.4f}; "
        f"first step {first:.2f} s, {found.attempts} attempts, rungs {', '.join(found.rungs)}"
    )
    return {"batch": samples, "fits": fits, "by_hand": by_hand_rate, "micro": micro, "guarded": ours, "ratio": ours / by_hand_rate, "first_step_s": first, "attempts": found.attempts, "by_hand_all": best}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of steps that are timed for each model")
    parser.add_argument("--only", default="overhead,survival,rate")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"PyTorch {torch.__version__}, surefoot {surefoot.__version__}, {arguments.device}: {where}")
    figures = {"torch": torch.__version__, "device": where}
    if "overhead" in wanted:
        figures["overhead"] = overhead(arguments.device, arguments.rounds)
    if "survival" in wanted:
        figures["survival"] = survival()
    if "rate" in wanted and arguments.device.startswith("cuda"):
        figures["rate"] = rate(arguments.device)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
