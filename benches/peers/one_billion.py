"""Fine-tunes a model of 1.1 billion random weights with adapters, within a budget of host memory.

The weights do not matter for time and memory, so they are made on the spot (TinyLlama's sizes, bf16, 2.2 GB) and removed
afterwards. Needs NumPy. The peak is what the kernel counted for the process (`ru_maxrss`): pages of the mapped model file
that were read count, too.

    cargo build --release
    python benches/peers/one_billion.py target/release/surefoot --memory 4GiB --memory 2GiB
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import numpy

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 2048, 5632, 22, 32, 4, 32000


def tensors():
    """Names and shapes, as transformers' LlamaForCausalLM has them."""
    kv = HIDDEN // HEADS * KV_HEADS
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in [
            ("self_attn.q_proj", (HIDDEN, HIDDEN)), ("self_attn.k_proj", (kv, HIDDEN)),
            ("self_attn.v_proj", (kv, HIDDEN)), ("self_attn.o_proj", (HIDDEN, HIDDEN)),
            ("mlp.gate_proj", (INNER, HIDDEN)), ("mlp.up_proj", (INNER, HIDDEN)),
            ("mlp.down_proj", (HIDDEN, INNER)), ("input_layernorm", (HIDDEN,)),
            ("post_attention_layernorm", (HIDDEN,)),
        ]:
            yield f"model.layers.{layer}.{name}.weight", shape
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def make(folder, tokenizer):
    """Writes the model; returns how many weights it has."""
    config = {
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "tie_word_embeddings": False, "eos_token_id": 2, "bos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    header, at = {}, 0
    for name, shape in tensors():
        end = at + 2 * int(numpy.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    random = numpy.random.default_rng(1)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name, shape in tensors():
            count = int(numpy.prod(shape))
            numbers = numpy.ones(count, "<f4")
            if len(shape) == 2:
                numbers = random.standard_normal(count, dtype="f4") * numpy.float32(0.02)
            # bf16 is the upper half of an f32.
            file.write((numbers.view("<u4") >> 16).astype("<u2").tobytes())
    return at // 2


def train(program, folder, model, memory, arguments):
    """One run; returns what it told at its end, its peak of resident bytes, and its times."""
    config = {
        "data": {"kind": "jsonl", "path": "chats.jsonl", "length": arguments.length},
        "model": {"kind": "pretrained", "path": str(model), "rank": 8},
        "batch_size": arguments.batch, "steps": arguments.steps, "memory": memory,
        "gradient_checkpointing": arguments.gradient_checkpointing, "checkpoint": {"folder": memory},
    }
    (folder / "run.yaml").write_text(json.dumps(config))
    begun = time.monotonic()
    process = subprocess.Popen(
        [program, "train", "run.yaml", "--json"], cwd=folder, stdout=subprocess.PIPE, text=True)
    lines = process.stdout.read().splitlines()
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"training within {memory} ended with status {status}")
    return json.loads(lines[-1]), used.ru_maxrss * 1024, time.monotonic() - begun, used


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--memory", action="append", required=True)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--folder", type=pathlib.Path, help="where the model is written; needs 2.3 GB")
    arguments = parser.parse_args()
    program = str(pathlib.Path(arguments.program).resolve())
    fixtures = pathlib.Path(__file__).resolve().parents[2] / "crates/surefoot-models/tests/fixtures"
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        folder = pathlib.Path(folder)
        model = folder / "model"
        model.mkdir()
        count = make(model, fixtures / "llama-tiny/tokenizer.json")
        text = "The device has memory for the tensor. " * (arguments.length // 16)
        line = json.dumps({"prompt": "Say it.", "completion": text}) + "\n"
        (folder / "chats.jsonl").write_text(line * 4 * arguments.batch)
        print(f"{count / 1e9:.2f} billion weights, {arguments.batch} x {arguments.length} tokens a step")
        for memory in arguments.memory:
            report, peak, took, used = train(program, folder, model, memory, arguments)
            print(f"--memory {memory}: peak {peak / 2**30:.2f} GiB, {arguments.steps} steps in {took:.0f} s "
                  f"({used.ru_utime + used.ru_stime:.0f} s of processor time), test loss {report['test_loss']:.3f}, "
                  f"faults {len(report.get('faults') or [])}", flush=True)


main()
