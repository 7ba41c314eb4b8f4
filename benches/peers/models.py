"""The same model under Surefoot, under HF transformers, and under accelerate's disk offload.

    python benches/peers/models.py SUREFOOT [--model FOLDER | --mib 1024] [--dtype float32]

SUREFOOT is the program. FOLDER has config.json, tokenizer.json and safetensors weights; without one
a Llama of that size with random weights is made. Every run is a process of its own on the same
threads, with one sequence; it reports the first forward and the decoding of the tokens behind the
first, both without loading what stays, and its peak memory. Rounds are interleaved, the medians
compared. Needs torch, transformers and accelerate.

`--memory` is what Surefoot's whole process may use; accelerate gets as much for weights alone, since
its processes need more than that before a model is loaded.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

FIXTURES = os.path.join(os.path.dirname(__file__), "../../crates/surefoot-models/tests/fixtures")

PEER = r"""
import json, resource, sys, tempfile, time
import torch
from transformers import AutoModelForCausalLM
model_path, how, dtype = sys.argv[1:4]
tokens, new, memory, threads = map(int, sys.argv[4:8])
torch.set_num_threads(threads)
options = dict(dtype=getattr(torch, dtype))
offload = tempfile.TemporaryDirectory()
if how == "disk":
    options.update(device_map="auto", max_memory={"cpu": memory}, offload_folder=offload.name)
model = AutoModelForCausalLM.from_pretrained(model_path, **options).eval()
ids = torch.arange(tokens).unsqueeze(0) % model.config.vocab_size
with torch.no_grad():
    start = time.perf_counter(); model(ids); forward = time.perf_counter() - start
    def generate(count):
        start = time.perf_counter()
        model.generate(ids[:, :4], max_new_tokens=count, min_new_tokens=count, do_sample=False,
                       eos_token_id=None, pad_token_id=0)
        return time.perf_counter() - start
    one = generate(1)
    decode = (generate(new) - one) / (new - 1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
places = set(map(str, getattr(model, "hf_device_map", {"": "cpu"}).values()))
print(json.dumps(dict(forward=forward, decode=decode, peak=peak, places=sorted(places))))
"""


def make(folder, mib, dtype):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    size = {"float32": 4, "bfloat16": 2}[dtype]
    hidden, inner, vocab = 768, 2048, 4096
    block = hidden * hidden * 2 + hidden * 256 * 2 + 3 * hidden * inner
    layers = max(1, ((mib << 20) // size - vocab * hidden) // block)
    config = LlamaConfig(hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
                         num_attention_heads=12, num_key_value_heads=4, vocab_size=vocab,
                         tie_word_embeddings=False, eos_token_id=None, bos_token_id=None)
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder)
    shutil.copy(os.path.join(FIXTURES, "llama-tiny/tokenizer.json"), folder)


def peer(arguments, how):
    command = [sys.executable, "-c", PEER, arguments.model, how, arguments.dtype,
               str(arguments.tokens), str(arguments.new), str(arguments.memory), str(arguments.threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    if how == "disk" and "disk" not in result["places"]:
        sys.exit(f"accelerate offloaded nothing within {arguments.memory} bytes")
    return result


def surefoot(arguments, memory):
    options = ["--memory", str(memory)] if memory else []
    if arguments.precision:
        options += ["--precision", arguments.precision]
    ids = ",".join(map(str, range(arguments.tokens)))
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.safetensors")
        forward = run(arguments, ["forward", arguments.model, "--tokens", ids, "--out", out], options)
    count = lambda n: run(arguments, ["generate", arguments.model, "abcd", "--max-tokens", str(n)], options)
    one, all_of_them = count(1), count(arguments.new)
    decode = (all_of_them["seconds"] - one["seconds"]) / (arguments.new - 1)
    return dict(forward=forward["seconds"], decode=decode,
                peak=max(forward["peak_bytes"], all_of_them["peak_bytes"]))


def run(arguments, command, options):
    """With `seconds` less those of loading what stays."""
    environment = dict(os.environ, RAYON_NUM_THREADS=str(arguments.threads))
    done = subprocess.run([arguments.surefoot, *command, *options, "--json"],
                          capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stderr)
    document = json.loads(done.stdout)
    document["seconds"] -= document["load_seconds"]
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefoot")
    parser.add_argument("--model")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--precision", help="Surefoot's, if not fp32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--new", type=int, default=17)
    parser.add_argument("--memory", type=int, help="bytes; a quarter of the weights if not given")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.model:
            arguments.model = folder
            make(folder, arguments.mib, arguments.dtype)
        files = [entry for entry in os.scandir(arguments.model) if entry.name.endswith(".safetensors")]
        size = sum(entry.stat().st_size for entry in files)
        arguments.memory = arguments.memory or size // 4
        compare(arguments, size)


def compare(arguments, size):
    limit = f"{arguments.memory >> 20} MiB"
    sides = {
        "transformers": lambda: peer(arguments, "resident"),
        "surefoot": lambda: surefoot(arguments, None),
        f"accelerate, disk, {limit}": lambda: peer(arguments, "disk"),
        f"surefoot, {limit}": lambda: surefoot(arguments, arguments.memory),
    }
    results = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, side in sides.items():
            results[name].append(side())
    middle = {name: {key: statistics.median(r[key] for r in rounds) for key in ("forward", "decode", "peak")}
              for name, rounds in results.items()}
    print(f"{size >> 20} MiB in {arguments.dtype}, {arguments.tokens} tokens, {arguments.threads} threads")
    for name, side in middle.items():
        print(f"{name:28} forward {side['forward']:.3f} s  decode {side['decode'] * 1e3:.1f} ms/token"
              f"  peak {side['peak'] / 2**20:.0f} MiB")
    names = list(sides)
    for ours, theirs in ((names[1], names[0]), (names[3], names[2])):
        ratio = lambda key: middle[theirs][key] / middle[ours][key]
        print(f"{ours} is {ratio('forward'):.2f} x as fast as {theirs} in forward, "
              f"{ratio('decode'):.2f} x in decode, with 1/{ratio('peak'):.1f} of the memory")


if __name__ == "__main__":
    main()
