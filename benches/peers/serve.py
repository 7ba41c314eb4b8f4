#!/usr/bin/env python3
"""The same GGUF file served by Surefoot and by llama.cpp's server, under the same load.

    python benches/peers/serve.py SUREFOOT [--peer LLAMA_SERVER] [--mib 300] [--formats F16,Q8_0] [--rounds 3]
                                  [--clients 1,8,64] [--seconds 15] [--out FILE.json]

The load comes from OpenAI's own client (`AsyncOpenAI`), streaming completions. The model is a Llama with random weights of so
many MiB in F32, in whose vocabulary each letter of the prompts is a token, so both sides run the same tokens. Both sides get the
same number of threads. LLAMA_SERVER is llama.cpp's `llama-server`; or a Python with `llama-cpp-python[server]`, which answers one
request at a time. What is measured:

- throughput, time to the first token and time between tokens with 1, 8 and 64 clients (prompts of 64 tokens, answers
  of 32), and the peak of the server's resident memory;
- the time between tokens of four clients while prompts of 2,000 tokens arrive;
- the time to the first token of a prompt of 1,002 tokens whose first 1,000 were in an earlier one, and of one that is new.

Rounds are interleaved, each server is a process of its own, and the smallest, median and largest value of the rounds are
shown: others may use the machine. Needs openai, gguf and numpy; llama.cpp should be built on the machine that is measured.
"""

import argparse
import asyncio
import json
import os
import pathlib
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import openai

PROMPT, ANSWER = 64, 32
LONG, SHARED = 2000, 1000
# Each of them is a token; 'a' and 'b' together would be one.
LETTERS = [chr(at) for at in range(33, 127) if chr(at) != "a"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("surefoot")
    parser.add_argument("--peer", help="llama.cpp's llama-server")
    parser.add_argument("--other", help="another Surefoot, to compare with")
    parser.add_argument("--mib", type=int, default=300)
    parser.add_argument("--formats", default="F16,Q8_0")
    parser.add_argument("--clients", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out")
    arguments = parser.parse_args()
    sides = {"surefoot": arguments.surefoot}
    if arguments.other:
        sides["other"] = arguments.other
    if arguments.peer:
        sides["llama.cpp"] = arguments.peer
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        models = make_models(arguments, folder)
        for number in range(arguments.rounds):
            for form, model in models.items():
                for side, program in sides.items():
                    print(f"round {number + 1}, {form}, {side}", file=sys.stderr)
                    with Server(side, program, model, arguments.threads) as server:
                        figures = asyncio.run(measure(server, arguments))
                    for name, value in figures.items():
                        found.setdefault((form, name), {}).setdefault(side, []).append(value)
    show(found, list(sides))
    if arguments.out:
        document = {"machine": platform.processor() or platform.machine(), "threads": arguments.threads,
                    "arguments": vars(arguments),
                    "figures": [{"format": form, "what": name, **of} for (form, name), of in found.items()]}
        pathlib.Path(arguments.out).write_text(json.dumps(document, indent=1))


def make_models(arguments, folder):
    """Written by the bench beside this one, which compares formats."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    import gguf
    formats = __import__("bytes")
    models = {}
    for form in arguments.formats.split(","):
        models[form] = os.path.join(folder, f"{form}.gguf")
        formats.make(models[form], arguments.mib, gguf.GGMLQuantizationType[form])
    return models


class Server:
    """One of the programs, until it is left."""

    def __init__(self, side, program, model, threads):
        self.side = side
        self.in_python = "python" in pathlib.Path(program).name
        environment = dict(os.environ, RAYON_NUM_THREADS=str(threads))
        if self.in_python:
            port = free_port()
            command = [program, "-m", "llama_cpp.server", "--model", model, "--port", str(port), "--n_ctx", "4096",
                       "--n_threads", str(threads), "--n_threads_batch", str(threads), "--interrupt_requests", "false"]
        elif side == "llama.cpp":
            port = free_port()
            command = [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-t", str(threads),
                       "-tb", str(threads), "-np", "64", "--kv-unified", "-c", "32768"]
        else:
            port = None
            command = [program, "serve", model, "--port", "0", "--chat-template", "plain", "--name", "model",
                       "--device", "cpu"]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=environment)
        self.url = f"http://127.0.0.1:{port or self.said_port()}"
        self.wait_until_ready()

    def said_port(self):
        while self.process.poll() is None:
            self.log.seek(0)
            found = re.search(r"http://[^ ]*?:(\d+)", self.log.read())
            if found:
                return found[1]
            time.sleep(0.1)
        self.fail()

    def wait_until_ready(self):
        import urllib.request
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/v1/models", timeout=5):
                    return
            except OSError:
                time.sleep(0.2)
        self.fail()

    def fail(self):
        self.log.seek(0)
        sys.exit(f"{self.side} ended: {self.log.read()[-2000:]}")

    def memory(self, which="VmHWM"):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{which}:\s+(\d+)", status)[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def free_port():
    import socket
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Client:
    """Asks for completions, and notes when tokens come."""

    def __init__(self, server):
        self.openai = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=600, max_retries=3)
        # Random weights may choose any token: none of them ends an answer.
        self.extra = {"ignore_eos": True} if server.side == "llama.cpp" and not server.in_python else {}
        self.random = random.Random(7)

    def prompt(self, count):
        return "".join(self.random.choice(LETTERS) for _ in range(count))

    async def complete(self, prompt, count):
        """The times at which tokens came, after the time at which they were asked for."""
        times = [time.perf_counter()]
        stream = await self.openai.completions.create(model="model", prompt=prompt, max_tokens=count, temperature=0,
                                                      stream=True, extra_body=self.extra)
        async for part in stream:
            if part.choices and part.choices[0].text:
                times.append(time.perf_counter())
        return times


async def measure(server, arguments):
    client = Client(server)
    await client.complete(client.prompt(8), 4)
    figures = {}
    for clients in map(int, arguments.clients.split(",")):
        figures |= await steady(client, clients, arguments.seconds)
    figures["peak memory, MiB"] = server.memory()
    figures |= await long_prompts(client)
    figures |= await shared_prefix(client)
    figures["peak memory with long prompts, MiB"] = server.memory()
    await client.openai.close()
    return figures


async def steady(client, clients, seconds):
    """Clients that ask again as soon as they are answered."""
    first, between, tokens = [], [], 0
    begun = time.perf_counter()

    async def one():
        nonlocal tokens
        while time.perf_counter() - begun < seconds:
            times = await client.complete(client.prompt(PROMPT), ANSWER)
            first.append(times[1] - times[0])
            between.extend(gaps(times))
            tokens += len(times) - 1

    await asyncio.gather(*(one() for _ in range(clients)))
    name = f"{clients} clients: "
    return {name + "tokens/s": tokens / (time.perf_counter() - begun),
            name + "first token p50, ms": 1e3 * statistics.median(first),
            name + "first token p99, ms": 1e3 * quantile(first, 0.99),
            name + "between tokens p50, ms": 1e3 * statistics.median(between),
            name + "between tokens p99, ms": 1e3 * quantile(between, 0.99)}


async def long_prompts(client):
    """Four clients are decoded while long prompts arrive."""
    decoded = [asyncio.create_task(client.complete(client.prompt(16), 400)) for _ in range(4)]
    await asyncio.sleep(2)
    begun = time.perf_counter()
    arrivals = []
    for _ in range(3):
        arrivals.append(asyncio.create_task(client.complete(client.prompt(LONG), 1)))
        await asyncio.sleep(1)
    first = [(await arrival)[1] for arrival in arrivals]
    ended = max(first)
    between = []
    for answer in decoded:
        times = await answer
        between.extend(b - a for a, b in zip(times[1:], times[2:]) if a < ended and b > begun)
    p50, p99 = statistics.median(between), quantile(between, 0.99)
    return {"long prompts: between tokens p50, ms": 1e3 * p50, "long prompts: between tokens p99, ms": 1e3 * p99,
            "long prompts: longest, ms": 1e3 * max(between), "long prompts: p99 / p50": p99 / p50,
            "long prompts: until all have begun, s": ended - begun}


async def shared_prefix(client, runs=5):
    async def first_token(prompt):
        times = await client.complete(prompt, 1)
        return times[1] - times[0]

    shared = client.prompt(SHARED)
    await first_token(shared + client.prompt(2))
    fresh, known = [], []
    for _ in range(runs):
        fresh.append(await first_token(client.prompt(SHARED + 2)))
        known.append(await first_token(shared + client.prompt(2)))
    fresh, known = statistics.median(fresh), statistics.median(known)
    return {"prompt of 1,002 tokens, new: first token, ms": 1e3 * fresh,
            "prompt of 1,002 tokens, 1,000 known: first token, ms": 1e3 * known, "known: times faster": fresh / known}


def gaps(times):
    return [b - a for a, b in zip(times[1:], times[2:])]


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def show(found, sides):
    print("| format | what | " + " | ".join(sides) + " |\n| --- | --- |" + " --- |" * len(sides))
    for (form, name), of in found.items():
        cells = [f"{statistics.median(of[side]):.4g} ({min(of[side]):.4g} to {max(of[side]):.4g})" for side in sides]
        print(f"| {form} | {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
