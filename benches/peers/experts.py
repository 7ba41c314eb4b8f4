"""Tokens a second of a model with experts against the share of the experts that fits in memory.

    python benches/peers/experts.py SUREFOOT [--layers 8] [--experts 16] [--rounds 3]

SUREFOOT is the program. A Mixtral with random weights in bf16 is written and generates text within smaller and smaller
budgets. How often the cache has an expert depends on the text: a model with random weights soon repeats itself and then needs the same
experts. A cache that is smaller than what one token needs never has any. The page cache is warm. Needs numpy; the tokenizer is
that of a test fixture.
"""

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "../../crates/surefoot-models/tests/fixtures/llama-tiny/tokenizer.json")


def make(folder, layers, experts):
    hidden, inner, vocab = 512, 1024, 256
    random = np.random.default_rng(0)
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "lm_head.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        for name, outputs in (("q", hidden), ("k", hidden // 4), ("v", hidden // 4), ("o", hidden)):
            shapes[f"{at}self_attn.{name}_proj.weight"] = (outputs, hidden)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}{name}.weight"] = (hidden,)
        shapes[f"{at}block_sparse_moe.gate.weight"] = (experts, hidden)
        for expert in range(experts):
            for name, shape in (("w1", (inner, hidden)), ("w2", (hidden, inner)), ("w3", (inner, hidden))):
                shapes[f"{at}block_sparse_moe.experts.{expert}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            numbers = np.ones(shape) if len(shape) == 1 else random.standard_normal(shape) * shape[1] ** -0.5
            file.write((numbers.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes())
    config = dict(model_type="mixtral", hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=8,
                  num_key_value_heads=2, vocab_size=vocab, num_local_experts=experts, num_experts_per_tok=2,
                  max_position_embeddings=2048, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    shutil.copy(TOKENIZER, os.path.join(folder, "tokenizer.json"))


def run(program, command, folder, *options):
    done = subprocess.run([program, command, folder, *options, "--json", "-q"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefoot")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(folder, arguments.layers, arguments.experts)
        plan = run(arguments.surefoot, "plan", folder, "--prompt-tokens", "8", "--max-tokens", str(arguments.tokens))
        experts, whole = plan["expert_bytes"], plan["all_resident_bytes"]
        print(f"{arguments.layers} layers of {arguments.experts} experts, {experts >> 20} MiB of experts, two for each token")
        texts = set()
        for share in (1.0, 0.75, 0.5, 0.25, 0.1):
            budget = whole + (8 << 20) if share == 1.0 else whole - int(experts * (1 - share))
            best = None
            for _ in range(arguments.rounds):
                made = run(arguments.surefoot, "generate", folder, "!" * 8, "--max-tokens", str(arguments.tokens),
                           "--memory", str(budget))
                made["rate"] = arguments.tokens / (made["seconds"] - made["load_seconds"])
                texts.add(made["completions"][0]["text"])
                best = made if best is None or made["rate"] > best["rate"] else best
            needed = best["expert_hits"] + best["expert_loads"]
            hits = f"{best['expert_hits'] / needed:.0%} of needs in memory" if needed else "all stay"
            print(f"{share:4.0%} of the experts fit: {best['rate']:6.1f} tokens/s, {hits}, peak {best['peak_bytes'] >> 20} of "
                  f"{budget >> 20} MiB", flush=True)
        print("the same text every time" if len(texts) == 1 else f"{len(texts)} DIFFERENT texts")


if __name__ == "__main__":
    main()
