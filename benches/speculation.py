#!/usr/bin/env python3
"""Speculative decoding: how fast the same tokens come with and without proposals.

    python benches/speculation.py SUREFOOT [MODEL] [--draft MODEL] [--prompts FILE] [--max-tokens 128] [--rounds 5]
                                  [--mib 500] [--options "--memory 1GiB"] [--out FILE.json]

Runs `surefoot generate` over each prompt (a line of FILE; without FILE two built-in ones: a text to be repeated and edited, and
a free one) with `--speculate off`, `lookup` and `auto`, and with `draft` and `auto --draft` if a draft model is given. Variants take
turns, so that other load on the machine affects all of them alike. Every variant has to give the tokens of `off`: otherwise this
ends with an error. Prints tokens a second (the median of the rounds, with the smallest and the largest), the accepted share,
and the speed in relation to `off`. The time to load the model is not counted.

Without MODEL, a Llama with random weights of so many MiB in bf16 is made. It writes what no trained model writes, so its accepted
share says nothing of others: give a MODEL to see what is gained. With `--draft self` the model drafts for itself: all is accepted,
and nothing is gained, but for what the passes that check seven tokens save. Needs nothing but Python's standard library and,
for the random model, a tokenizer.json (that of the repository's fixtures is used).
"""

import argparse
import json
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = [
    "Correct the spelling and repeat the text. Text: The devise has memory for the tensor, and the tensor has "
    "memory for the devise. When the devise is lost, the tensor is put on the next devise. Corrected text:",
    "Once upon a time",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("surefoot")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--draft", help="a draft model, or self")
    parser.add_argument("--prompts")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=500)
    parser.add_argument("--options", default="", help="further options of generate")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    prompts = PROMPTS
    if arguments.prompts:
        prompts = pathlib.Path(arguments.prompts).read_text().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or made(pathlib.Path(folder) / "llama", arguments.mib)
        if arguments.draft == "self":
            arguments.draft = str(model)
        report = [measured(arguments, model, prompt) for prompt in prompts]
    text = json.dumps(report, indent=2)
    if arguments.out:
        pathlib.Path(arguments.out).write_text(text + "\n")
    for prompt in report:
        print(f"\n{prompt['prompt'][:60]!r}, {prompt['tokens']} tokens")
        for name, variant in prompt["variants"].items():
            share = "" if variant["accepted"] is None else f", {100 * variant['accepted']:.0f} % accepted"
            print(f"  {name:12} {variant['median']:8.2f} tokens/s ({variant['least']:.2f} to {variant['most']:.2f}), "
                  f"{variant['relative']:.2f} x{share}")


def measured(arguments, model, prompt):
    variants = {"off": ["--speculate", "off"], "lookup": ["--speculate", "lookup"], "auto": ["--speculate", "auto"]}
    if arguments.draft:
        variants["draft"] = ["--speculate", "draft", "--draft", arguments.draft]
        variants["auto draft"] = ["--speculate", "auto", "--draft", arguments.draft]
    rates = {name: [] for name in variants}
    shares, tokens = {}, None
    for _ in range(arguments.rounds):
        for name, options in variants.items():
            run = generate(arguments, model, prompt, options)
            now = run["completions"][0]["tokens"]
            tokens = now if tokens is None else tokens
            if now != tokens:
                sys.exit(f"{name} gave other tokens than off: {now} and {tokens}")
            rates[name].append(len(now) / (run["seconds"] - run["load_seconds"]))
            proposed = run["accepted_proposals"] + run["rejected_proposals"]
            shares[name] = run["accepted_proposals"] / proposed if proposed else None
    off = statistics.median(rates["off"])
    return {
        "prompt": prompt,
        "tokens": len(tokens),
        "variants": {
            name: {"median": statistics.median(all_), "least": min(all_), "most": max(all_),
                   "relative": statistics.median(all_) / off, "accepted": shares[name]}
            for name, all_ in rates.items()
        },
    }


def generate(arguments, model, prompt, options):
    command = [arguments.surefoot, "generate", str(model), prompt, "--json", "-q", "--device", "cpu",
               "--max-tokens", str(arguments.max_tokens), *options, *arguments.options.split()]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def made(folder, mib):
    """A Llama of so many MiB with random weights in bf16."""
    hidden, inner, heads, vocab = 1024, 2816, 16, 256
    block = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden, hidden),
        "self_attn.v_proj": (hidden, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
    }
    numbers = lambda shape: shape[0] * (shape[1] if len(shape) > 1 else 1)
    layers = max(1, round((mib << 20) / (2 * sum(map(numbers, block.values())))))
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads, "vocab_size": vocab,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }))
    fixture = ROOT / "crates/surefoot-models/tests/fixtures/llama-tiny/tokenizer.json"
    shutil.copy(fixture, folder / "tokenizer.json")
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 2 * numbers(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    head = json.dumps(header).encode()
    source = random.Random(1)
    # Small numbers of either sign: a random mantissa and sign, and an exponent of 2 to the -6.
    noise = bytearray()
    for word in struct.unpack("<524288I", source.randbytes(1 << 21)):
        noise += struct.pack("<H", (word & 0x807F) | 0x3C80)
    one = struct.pack("<H", 0x3F80)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for name, shape in shapes.items():
            left = 2 * numbers(shape)
            if len(shape) == 1:
                file.write(one * numbers(shape))
                continue
            while left > 0:
                start = source.randrange(0, len(noise) // 4, 2)
                part = noise[start:start + left]
                file.write(part)
                left -= len(part)
    return folder


if __name__ == "__main__":
    main()
