"""The same model under Surefoot, under HF transformers, and under accelerate's disk offload.

    python benches/peers/models.py MODEL SUREFOOT [--tokens 64] [--new 16] [--memory 512MiB]

MODEL is a folder with config.json, tokenizer.json and safetensors weights; SUREFOOT the program.
Each side runs in a process of its own that reports its time without loading and its peak
memory; rounds are interleaved and the medians compared. Needs torch, transformers, accelerate.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

PEER = r"""
import json, resource, sys, tempfile, time
import torch
from transformers import AutoModelForCausalLM
model_path, how, tokens, new, memory = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
options = dict(dtype=torch.float32)
if how == "disk":
    options.update(device_map="auto", max_memory={"cpu": memory}, offload_folder=tempfile.mkdtemp())
model = AutoModelForCausalLM.from_pretrained(model_path, **options).eval()
ids = torch.arange(tokens).unsqueeze(0) % model.config.vocab_size
with torch.no_grad():
    start = time.perf_counter(); model(ids); forward = time.perf_counter() - start
    start = time.perf_counter()
    model.generate(ids[:, :4], max_new_tokens=new, do_sample=False, eos_token_id=None, pad_token_id=0)
    decode = (time.perf_counter() - start) / new
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(dict(forward=forward, decode=decode, peak=peak)))
"""


def peer(arguments, how):
    command = [sys.executable, "-c", PEER, arguments.model, how, str(arguments.tokens),
               str(arguments.new), str(in_bytes(arguments.memory))]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.strip().splitlines()[-1])


def surefoot(arguments, memory):
    limit = ["--memory", memory] if memory else []
    ids = ",".join(map(str, range(arguments.tokens)))
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.safetensors")
        forward = run(arguments, ["forward", arguments.model, "--tokens", ids, "--out", out], limit)
    decode = run(arguments, ["generate", arguments.model, "a", "--max-tokens", str(arguments.new)], limit)
    count = max(1, len(decode["completions"][0]["tokens"]))
    # Both include loading what stays: Surefoot has no process that stays.
    return dict(forward=forward["seconds"], decode=decode["seconds"] / count,
                peak=max(forward["peak_bytes"], decode["peak_bytes"]))


def run(arguments, command, limit):
    output = subprocess.run([arguments.surefoot, *command, *limit, "--json"],
                            capture_output=True, text=True, check=True).stdout
    return json.loads(output)


def in_bytes(text):
    number, unit = re.fullmatch(r"([\d.]+)\s*(\w*)", text).groups()
    return int(float(number) * {"MiB": 1 << 20, "GiB": 1 << 30, "": 1}[unit])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("surefoot")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    sides = {
        "transformers, resident": lambda: peer(arguments, "resident"),
        "surefoot, resident": lambda: surefoot(arguments, None),
        f"accelerate, disk, {arguments.memory}": lambda: peer(arguments, "disk"),
        f"surefoot, {arguments.memory}": lambda: surefoot(arguments, arguments.memory),
    }
    results = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            results[name].append(side())
    for name, rounds in results.items():
        middle = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
        print(f"{name:32} forward {middle['forward']:.3f} s  decode {middle['decode'] * 1e3:.1f} ms/token"
              f"  peak {middle['peak'] / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
