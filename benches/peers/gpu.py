#!/usr/bin/env python3
"""One training step of a GPT and of a CNN on a GPU, in Surefoot and in PyTorch, in one run on one machine.

    python3 benches/peers/gpu.py [--device gpu] [--json OUT.json] SUREFOOT [SUREFOOT ...]

A SUREFOOT may name its device: `target/release/surefoot@cuda`.

Each SUREFOOT is a program to measure, for instance before and after a change: `surefoot bench --workload` with a
configuration that this script writes. The work: GPT with 6 blocks, 8 heads, width 512 (19 M parameters), batch of 16 texts of
256 tokens, AdamW with clipping, the loss read after each step; and the CNN of `surefoot bench --quick` (16 to 64 channels,
16 images of 32×32×3, AdamW). PyTorch does the same in fp32, in fp32 with TF32 products
and under bf16 autocast. Prints the median of a step, the kernel launches of a step where the program counts them, the
first step, and the ratio to PyTorch in fp32 (above 1: Surefoot is faster).

With --decode it compares decoding instead, of one sequence or of --work: `--work 64x16 --work 1x1024` is 64 sequences with
prompts of 16 tokens, then one with a prompt of 1,024. A Llama of 1.1 B parameters (TinyLlama's shape) with random weights in
fp16, in `surefoot generate` and in transformers, whose time for the first token is taken off and told separately. The first token of a prompt is measured in `surefoot serve` too, whose process has run such a
prompt before, as transformers' has. Needs transformers.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

LAYERS, HEADS, WIDTH, LENGTH, BATCH = 6, 8, 512, 256, 16
LETTERS = [chr(code) for code in range(32, 127)]

CONFIG = """\
data:
  kind: text
  path: {text}
  length: {length}
  test: 0.1
model:
  kind: gpt
  layers: {layers}
  heads: {heads}
  width: {width}
batch_size: {batch}
epochs: 1
optimizer:
  kind: adamw
  lr: 0.001
  weight_decay: 0.01
clip_norm: 1.0
"""


def surefoot(program, device, precision, folder):
    """Times and launches of one program, as its benchmark reports them."""
    text = os.path.join(folder, "text.txt")
    config = os.path.join(folder, "gpt.yaml")
    drawn = random.Random(1)
    with open(text, "w", encoding="utf-8") as file:
        file.write("".join(drawn.choice(LETTERS) for _ in range(2 * BATCH * LENGTH)))
    values = dict(text=text, length=LENGTH, layers=LAYERS, heads=HEADS, width=WIDTH, batch=BATCH)
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG.format(**values))
    found = {}
    for name, what in {"gpt": ["--workload", config], "cnn": ["--quick"]}.items():
        command = [program, "bench", *what, "--device", device, "--precision", precision, "--json", "-q"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            found[name] = {"error": (done.stderr or done.stdout).strip()[-600:]}
            continue
        results = json.loads(done.stdout)["results"]
        [result] = [result for result in results if name == "gpt" or result["workload"] == "cnn training step"]
        found[name] = summary(result)
    return found


def summary(result):
    if result["status"] != "measured":
        return {"error": result.get("why")}
    launches = result.get("launches", {})
    return {
        "ms": result["median_ns"] / 1e6,
        "first_ms": result["warm_up"]["first_ns"] / 1e6,
        "launches": sum(launches.values()) or None,
        "kernels": launches,
    }


def pytorch():
    """Milliseconds of a step in PyTorch, by model and precision."""
    import torch
    from torch.nn import functional as F

    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    from train import Cnn, Gpt

    def gpt():
        sizes = dict(vocabulary=len(LETTERS), length=LENGTH, layers=LAYERS, heads=HEADS, width=WIDTH)
        ids = torch.randint(0, len(LETTERS), (BATCH, LENGTH + 1))
        return Gpt(**sizes).cuda(), ids[:, :-1], ids[:, 1:].flatten(), 1.0

    def cnn():
        return Cnn().cuda(), torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)), None

    def measure(make, autocast):
        torch.manual_seed(1)
        model, inputs, targets, clip = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        times = []
        for at in range(33):
            started = time.perf_counter()
            given, expected = inputs.cuda(), targets.cuda()
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = F.cross_entropy(model(given), expected)
            loss.backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            loss.item()
            if at >= 3:
                times.append(1e3 * (time.perf_counter() - started))
        return statistics.median(times)

    def both(autocast):
        return {name: measure(make, autocast) for name, make in [("gpt", gpt), ("cnn", cnn)]}

    torch.backends.cudnn.allow_tf32 = False
    found = {"fp32": both(False)}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    found["tf32"] = both(False)
    found["bf16 autocast"] = both(True)
    return {"version": torch.__version__, "device": torch.cuda.get_device_name(), "ms": found}


FEW, MANY = 9, 73


def make_llama(folder):
    """A Llama of TinyLlama's shape with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
                         num_key_value_heads=4, vocab_size=32000, tie_word_embeddings=False, eos_token_id=None,
                         bos_token_id=None)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    fixtures = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../crates/surefoot-models/tests/fixtures")
    shutil.copy(os.path.join(fixtures, "llama-tiny/tokenizer.json"), folder)
    return model.eval()


def transformers_decode(model, work, repeats):
    """Seconds for one token of each sequence, and for the first one."""
    import torch

    sequences, prompt = work
    ids = (torch.arange(prompt, device="cuda") % 96).repeat(sequences, 1)

    def generate(count):
        torch.cuda.synchronize()
        started = time.perf_counter()
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, min_new_tokens=count,
                       do_sample=False, eos_token_id=None, pad_token_id=0)
        torch.cuda.synchronize()
        return time.perf_counter() - started

    with torch.no_grad():
        generate(FEW)
        first = statistics.median(generate(1) for _ in range(repeats))
        return statistics.median((generate(MANY) - generate(FEW)) / (MANY - FEW) for _ in range(repeats)), first


def surefoot_decode(program, device, given, work, folder):
    """Seconds for one token of each sequence, for the first one, and of the first process, which gives few tokens."""
    sequences, prompt = work
    prompts = os.path.join(folder, "prompts.txt")
    with open(prompts, "w", encoding="utf-8") as file:
        for _ in range(sequences):
            file.write("".join(chr(97 + at % 26) for at in range(prompt)) + "\n")

    def generate(count):
        command = [program, "generate", folder, "--prompts", prompts, "--max-tokens", str(count), "--device", device,
                   "--precision", given.precision, "--json", "-q"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError((done.stderr or done.stdout).strip()[-600:])
        document = json.loads(done.stdout)
        return document["seconds"] - document["load_seconds"]

    # The first process compiles kernels, which later ones may find on disk.
    fresh = generate(FEW)
    first = statistics.median(generate(1) for _ in range(given.repeats))
    each = statistics.median((generate(MANY) - generate(FEW)) / (MANY - FEW) for _ in range(given.repeats))
    return each, first, fresh


def served_first(program, device, given, prompt, folder):
    """Seconds until a server that is warm has answered prompts with one token each, sent one after the other."""
    command = [program, "serve", folder, "--device", device, "--precision", given.precision, "--port", "0", "--max-tokens", "16"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        address = None
        for line in server.stdout:
            found = re.search(r"http://[0-9.]+:[0-9]+", line)
            if found:
                address = found.group(0)
                break
        if address is None:
            raise RuntimeError("the server did not start")
        threading.Thread(target=server.stdout.read, daemon=True).start()

        with urllib.request.urlopen(address + "/v1/models", timeout=60) as answer:
            model = json.load(answer)["data"][0]["id"]

        def ask(seed):
            ids = [(seed + at * 7) % 90 + 1 for at in range(prompt)]
            body = json.dumps({"model": model, "prompt": ids, "max_tokens": 1, "temperature": 0}).encode()
            request = urllib.request.Request(address + "/v1/completions", body, {"Content-Type": "application/json"})
            started = time.perf_counter()
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()
            return time.perf_counter() - started

        for seed in range(2):
            ask(seed)
        return statistics.median(ask(seed) for seed in range(2, 9))
    finally:
        server.terminate()
        server.wait(60)


def decode(given):
    with tempfile.TemporaryDirectory() as folder:
        model = make_llama(folder)
        theirs = {work: transformers_decode(model, work, given.repeats) for work in given.work}
        del model
        for work in given.work:
            compare_decoding(given, work, theirs[work], folder)


def compare_decoding(given, work, theirs, folder):
    sequences, prompt = work
    each_theirs, first_theirs = theirs
    print(f"{sequences} sequences with prompts of {prompt} tokens", flush=True)
    print(f"transformers, fp16: {sequences / each_theirs:.1f} tokens/s, first token in {1e3 * first_theirs:.1f} ms", flush=True)
    for program in given.programs:
        path, _, device = program.partition("@")
        try:
            each, first, fresh = surefoot_decode(path, device or given.device, given, work, folder)
            served = served_first(path, device or given.device, given, prompt, folder)
        except (RuntimeError, OSError) as error:
            print(f"{program}: {error}", flush=True)
            continue
        print(f"{program} {given.precision}: {sequences / each:.1f} tokens/s, ratio {each_theirs / each:.2f}; first token in "
              f"{1e3 * first:.1f} ms of a new process, in {1e3 * served:.1f} ms of a warm server, ratio {first_theirs / served:.2f}; the first {FEW} in "
              f"{fresh:.1f} s of the first process", flush=True)


def sequences_and_prompt(text):
    """`64x16`: 64 sequences with prompts of 16 tokens."""
    sequences, _, prompt = text.partition("x")
    return int(sequences), int(prompt)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--json", metavar="OUT")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--kernels", type=int, default=25, metavar="N", help="of how many kernels to print the launches")
    parser.add_argument("programs", nargs="+", metavar="SUREFOOT")
    parser.add_argument("--decode", action="store_true")
    parser.add_argument("--work", action="append", type=sequences_and_prompt, metavar="SEQUENCESxPROMPT",
                        help="with --decode: how many sequences at once and of how many tokens their prompts are; may be repeated (1x4)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement, with --decode")
    given = parser.parse_args()
    if given.decode:
        given.work = given.work or [(1, 4)]
        return decode(given)
    found = {"programs": {}}
    if not given.no_torch:
        found["pytorch"] = pytorch()
        for name, ms in found["pytorch"]["ms"].items():
            print(f"PyTorch {found['pytorch']['version']} {name}: GPT {ms['gpt']:.1f} ms, CNN {ms['cnn']:.1f} ms", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for program in given.programs:
            path, _, device = program.partition("@")
            results = surefoot(path, device or given.device, given.precision, folder)
            found["programs"][program] = results
            for model, result in results.items():
                if "error" in result:
                    print(f"{program} {model}: {result['error']}", flush=True)
                    continue
                text = f"{program} {given.precision} {model}: {result['ms']:.1f} ms, first step {result['first_ms']:.0f} ms"
                if result["launches"]:
                    text += f", {result['launches']} launches"
                if not given.no_torch:
                    text += f", ratio {found['pytorch']['ms']['fp32'][model] / result['ms']:.2f}"
                print(text, flush=True)
                for kernel, count in sorted(result["kernels"].items(), key=lambda pair: -pair[1])[: given.kernels]:
                    print(f"    {count} {kernel}", flush=True)
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
