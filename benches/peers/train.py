#!/usr/bin/env python3
"""The same CNN and GPT training steps in PyTorch, to compare with, in turns.

    python3 -m venv benches/peers/.venv
    benches/peers/.venv/bin/pip install torch
    cargo bench --workspace --bench peers --no-run    # prints the program's path
    benches/peers/.venv/bin/python benches/peers/train.py PROGRAM [--rounds 5] [--isa avx2] [--threads 1] [SHAPE...]

Both sides run on the processor in fp32 with all cores and AdamW. CNNs have 3 stages and images of 32x32x3. A round runs each side once
for each shape, in a process of its own, and takes the median of 20 steps after 3 others. Prints a row of a table for each shape:
milliseconds a step of both sides, and the ratio of each round (above 1: Surefoot is faster); then, on Linux, the same of processor time, which other work
on the machine disturbs less (threads that wait awake are counted, so that on a
busy machine only `--threads 1` says much). `--isa avx2` restricts both sides to AVX2: `SUREFOOT_CPU`
here, and PyTorch's, oneDNN's and MKL's variables there.
"""

import argparse
import os
import subprocess
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


class Unit(nn.Module):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.GroupNorm(8, outputs)

    def forward(self, x):
        return self.norm(self.conv(x))


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = Unit(inputs, outputs, 3, stride)
        self.second = Unit(outputs, outputs, 3, 1)
        changes = inputs != outputs or stride != 1
        self.around = Unit(inputs, outputs, 1, stride) if changes else nn.Identity()

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.around(x))


class Cnn(nn.Module):
    def __init__(self, width=16, stages=3):
        super().__init__()
        self.stem = Unit(3, width, 3, 1)
        blocks, inputs = [], width
        for stage in range(stages):
            blocks.append(Block(inputs, width << stage, 1 if stage == 0 else 2))
            inputs = width << stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, 10)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.attend_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend_in, self.attend_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed_in, self.feed_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        parts = self.attend_in(self.attend_norm(x)).view(batch, tokens, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attend_out(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed_out(F.gelu(self.feed_in(self.feed_norm(x))))


class Gpt(nn.Module):
    def __init__(self, vocabulary=96, length=128, layers=4, heads=4, width=256):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.layers(x))).flatten(0, 1)


# What `crates/surefoot-train/benches/peers.rs` has under the same names.
SHAPES = {
    "cnn-16": lambda: (Cnn(16), *images(32)),
    "cnn-32": lambda: (Cnn(32), *images(32)),
    "cnn-64": lambda: (Cnn(64), *images(16)),
    "gpt-128": lambda: (Gpt(length=64, layers=4, heads=4, width=128), *texts(16, 64)),
    "gpt-256": lambda: (Gpt(), *texts(8, 128)),
    "gpt-384": lambda: (Gpt(length=256, layers=6, heads=6, width=384), *texts(4, 256)),
}


def images(samples):
    return torch.randn(samples, 3, 32, 32), torch.randint(0, 10, (samples,))


def texts(samples, length):
    ids = torch.randint(0, 96, (samples, length + 1))
    return ids[:, :-1], ids[:, 1:].flatten()


def one(name, rounds=20):
    """Milliseconds of a step: on the clock (the median) and of processor time (the mean)."""
    torch.manual_seed(1)
    model, inputs, targets = SHAPES[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for at in range(rounds + 3):
        if at == 3:
            processor = time.process_time()
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        if at >= 3:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times), 1e3 * (time.process_time() - processor) / rounds


def run(command, isa, threads):
    env = dict(os.environ)
    if threads:
        env.update(RAYON_NUM_THREADS=threads, OMP_NUM_THREADS=threads)
    if isa:
        name = isa.upper()
        env.update(SUREFOOT_CPU=isa, ATEN_CPU_CAPABILITY=isa, ONEDNN_MAX_CPU_ISA=name, MKL_ENABLE_INSTRUCTIONS=name)
    said = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.split()
    return float(said[1]), float(said[2])


def spread(numbers):
    return f"{min(numbers):.1f} to {max(numbers):.1f} ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", help="the built bench `peers`; `-` is this script's own side")
    parser.add_argument("shapes", nargs="*", default=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=["avx2"])
    parser.add_argument("--threads", help="of both sides; all cores by default")
    args = parser.parse_intermixed_args()
    if args.program == "-":
        print(args.shapes[0], *one(args.shapes[0]))
        return
    for name in args.shapes or SHAPES:
        pairs = []
        for _ in range(args.rounds):
            ours = run([args.program, name], args.isa, args.threads)
            theirs = run([sys.executable, __file__, "-", name], args.isa, args.threads)
            pairs.append((ours, theirs))
        for at, what in enumerate(("", " (processor time)")):
            ours, theirs = [[pair[side][at] for pair in pairs] for side in (0, 1)]
            if not all(ours):
                continue  # The bench reads its processor time on Linux only.
            ratios = [b / a for a, b in zip(ours, theirs)]
            each = ", ".join(f"{ratio:.2f}" for ratio in ratios)
            print(f"| {name}{what} | {spread(ours)} | {spread(theirs)} | {each} | {statistics.median(ratios):.2f} |", flush=True)


if __name__ == "__main__":
    main()
