#!/usr/bin/env python3
"""The same CNN and GPT training step in PyTorch, to compare with.

    python3 -m venv benches/peers/.venv
    benches/peers/.venv/bin/pip install torch
    cargo bench --workspace --bench peers | grep -E "^(cnn|gpt) " > ours.txt
    benches/peers/.venv/bin/python benches/peers/train.py ours.txt

Both sides run on the processor in fp32 with all cores: CNN width 16, 3 stages, batch 32 of
32x32x3; GPT 4 blocks, 4 heads, width 256, batch 8 of 128 tokens; AdamW. `ours.txt` holds a line
`NAME MILLISECONDS` for each. Prints both and the ratio (above 1: Surefoot is faster).
"""

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


def milliseconds(model, inputs, targets, rounds=20):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for at in range(rounds + 3):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        loss.item()
        if at >= 3:
            times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times)


def main():
    torch.manual_seed(1)
    ours = {}
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as lines:
            pairs = (line.split() for line in lines)
            ours = {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}
    ids = torch.randint(0, 96, (8, 129))
    theirs = {
        "cnn": milliseconds(Cnn(), torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))),
        "gpt": milliseconds(Gpt(), ids[:, :-1], ids[:, 1:].flatten()),
    }
    for name, time_of_theirs in theirs.items():
        text = f"{name}: PyTorch {time_of_theirs:.1f} ms"
        if name in ours:
            text += f", Surefoot {ours[name]:.1f} ms, ratio {time_of_theirs / ours[name]:.2f}"
        print(text)


if __name__ == "__main__":
    main()
