#!/usr/bin/env python3
"""A server under load for a long time, while devices fail, clients leave and memory is short.

    python benches/soak.py SUREFOOT [--minutes 60] [--clients 24] [--memory MIB] [--seed 1] [--format F16]
                             [--weights as-stored] [--kill-every SECONDS] [--out FILE.json]

A small Llama with random weights, in F16 or in another format that GGUF files have (`--format Q8_0`), is served twice: by a
server without faults, which gives the expected answers, and by one with faults at random moments (`--drill`) and a memory budget
that holds few of the sequences that are asked for. Clients ask for completions, some of them long, some with a common beginning,
whole or streamed; some leave in the midst of their answer. Every answer has to be the expected one, and none may be missing. The
server's resident memory is noted every few seconds. With `--kill-every` the server runs with `--isolate`, its process is killed
(`kill -9`) about so often, and loses its only device once in between if it lives that long.

Prints one JSON document. Ends with 1 if an answer was lost or wrong, if nothing failed or nobody was preempted (then nothing
was tested), or if memory grew: the most in the last third of the time is compared with the most in the second third. Needs openai, gguf and numpy.
"""

import argparse
import asyncio
import collections
import importlib.util
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import gguf
import openai

PEERS = pathlib.Path(__file__).parent / "peers"
# Those whose recovery is another try: a lost device would be the last one.
KINDS = ["out_of_memory", "command_buffer", "numeric", "kernel_compile"]
MOMENTS = ["at=before", "at=during,nth=3", "at=during,nth=9", "at=after"]
# The pass in which a process loses its device.
LOST_AT = 2000
# How much more memory than before counts as growth: the allocator's own.
GROWTH = 1.1
PROMPTS = 60
LENGTHS = [8, 40, 200, 900]


def load(name):
    spec = importlib.util.spec_from_file_location(name, PEERS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("surefoot")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--memory", type=int, help="the budget in MiB (default: a little more than the least that serves)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", default="F16", help="the format of the GGUF file's weights: F32, F16, BF16, Q8_0, Q4_0 …")
    parser.add_argument("--weights", default="as-stored", help="as-stored, q8 or q4: quantised while they are loaded")
    parser.add_argument("--kill-every", type=float, help="kill the process of an isolated server about every so many seconds")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        model = str(pathlib.Path(folder) / "model.gguf")
        sys.path.insert(0, str(PEERS))
        load("bytes").make(model, 90, gguf.GGMLQuantizationType[arguments.format])
        weights = ["--weights", arguments.weights]
        requests = make_requests(chance)
        with Server(arguments.surefoot, model, weights) as calm:
            asyncio.run(expect(calm, requests))
        budget = arguments.memory or least_memory(arguments.surefoot, model, weights)
        drill = ";".join(faults(chance, arguments.minutes, arguments.kill_every))
        options = [*weights, "--memory", f"{budget}MiB", "--drill", drill]
        if arguments.kill_every:
            options.append("--isolate")
        with Server(arguments.surefoot, model, options) as server:
            soak = Soak(server, requests, chance, arguments)
            asyncio.run(soak.run())
            report = soak.report(budget)
    print(json.dumps(report, indent=1))
    if arguments.out:
        pathlib.Path(arguments.out).write_text(json.dumps(report, indent=1))
    sys.exit(0 if report["passed"] else 1)


def make_requests(chance):
    """Prompts of many lengths, a third of which begin alike."""
    common = [chance.randrange(4000) for _ in range(300)]
    requests = []
    for number in range(PROMPTS):
        prompt = [chance.randrange(4000) for _ in range(chance.choice(LENGTHS))]
        if number % 3 == 0:
            prompt = common + prompt[:20]
        requests.append({"prompt": prompt, "max_tokens": chance.choice([4, 24, 80, 280])})
    return requests


def faults(chance, minutes, kill_every):
    """At random passes, more and more rarely: a drill counts passes, and nobody knows how many there will be."""
    step, rules = 20, []
    if kill_every:
        # Each process counts its own passes.
        rules.append(f"device_lost:op=decode,{chance.choice(MOMENTS)},step={LOST_AT},count=1")
    while step < 20_000 * minutes and len(rules) < 400:
        rules.append(f"{chance.choice(KINDS)}:op=decode,{chance.choice(MOMENTS)},step={step},count=1")
        step += chance.randrange(20, 400)
    return rules


def least_memory(program, model, weights):
    """What a refusal asks for, and a little more: then one sequence of full length fits, and few others beside it."""
    refused = subprocess.run([program, "serve", model, "--port", "0", "--device", "cpu", "--memory", "20MiB",
                              *weights],
                             capture_output=True, text=True, timeout=300)
    asked = re.search(r"--memory (\d+)\s*MiB", refused.stderr)
    if not asked:
        sys.exit(f"the refusal names no size: {refused.stderr[-1000:]}")
    return int(asked[1]) + 8


def memory_of(pid):
    """In KiB; 0 if the process has ended."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


class Server:
    """`surefoot serve`, until it is left."""

    def __init__(self, program, model, options):
        command = [program, "serve", model, "--port", "0", "--chat-template", "plain", "--name", "model",
                   "--device", "cpu", "--max-sequences", "32", "--context", "1200",
                   # A busy machine is slow; what counts here is what is lost.
                   "--timeout", "3600", *options]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.url = None
        while self.url is None:
            if self.process.poll() is not None:
                self.log.seek(0)
                sys.exit(f"the server ended: {self.log.read()[-2000:]}")
            self.log.seek(0)
            found = re.search(r"http://[^ ]*?:\d+", self.log.read())
            self.url = found and found[0]
            time.sleep(0.1)

    def child(self):
        """The process that answers, if the server has one; none while it starts."""
        pid = self.process.pid
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def memory(self):
        """Of the server and of the process that it has started."""
        sizes = [memory_of(pid) for pid in (self.process.pid, self.child()) if pid]
        return sum(sizes) / 1024

    def said(self, text):
        """How often the server said so."""
        self.log.seek(0)
        return self.log.read().count(text)

    def metrics(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[0] != "#"}

    def client(self):
        return openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="none", timeout=3600, max_retries=0)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


async def expect(server, requests):
    client = server.client()
    for request in requests:
        answer = await client.completions.create(model="model", temperature=0, **request)
        request["expected"] = answer.choices[0].text
    await client.close()


class Soak:
    def __init__(self, server, requests, chance, arguments):
        self.server, self.requests, self.chance, self.arguments = server, requests, chance, arguments
        self.seconds = 60 * arguments.minutes
        self.answers = self.left = self.put_off = self.kills = 0
        self.wrong, self.memory = [], []
        # The last figures of each process.
        self.figures = {}

    async def run(self):
        self.begun = time.monotonic()
        tasks = [asyncio.create_task(self.watch())]
        if self.arguments.kill_every:
            tasks.append(asyncio.create_task(self.kill()))
        clients = [self.ask_again(self.server.client()) for _ in range(self.arguments.clients)]
        await asyncio.gather(*clients)
        for task in tasks:
            task.cancel()
        await self.note()

    def is_over(self):
        return time.monotonic() - self.begun > self.seconds

    async def watch(self):
        while True:
            self.memory.append((time.monotonic() - self.begun, self.server.memory()))
            await self.note()
            await asyncio.sleep(min(5, self.seconds / 60))

    async def note(self):
        """Keeps the figures of the process that answers; they end with it."""
        process = self.server.child()
        try:
            figures = await asyncio.to_thread(self.server.metrics)
        except OSError:
            # It is being started, or ends just now.
            return
        if process == self.server.child():
            self.figures[process] = figures

    async def kill(self):
        while True:
            await asyncio.sleep(self.arguments.kill_every * self.chance.uniform(0.5, 1.5))
            if process := self.server.child():
                os.kill(process, signal.SIGKILL)
                self.kills += 1

    async def ask_again(self, client):
        while not self.is_over():
            request = self.chance.choice(self.requests)
            fields = {"model": "model", "temperature": 0, "prompt": request["prompt"], "max_tokens": request["max_tokens"]}
            try:
                if self.chance.random() < 0.5:
                    answer = await client.completions.create(**fields)
                    text = answer.choices[0].text
                else:
                    text = await self.streamed(client, fields)
            except openai.RateLimitError:
                self.put_off += 1
                await asyncio.sleep(0.2)
                continue
            except openai.OpenAIError as error:
                self.wrong.append(repr(error)[:300])
                continue
            if text is None:
                self.left += 1
            elif text == request["expected"]:
                self.answers += 1
            else:
                self.wrong.append(f"{text!r} instead of {request['expected']!r}"[:300])

    async def streamed(self, client, fields):
        """The text; none if the client left before it was whole."""
        leaves_after = self.chance.randrange(1, 20) if self.chance.random() < 0.3 else None
        stream = await client.completions.create(stream=True, **fields)
        text, parts = "", 0
        async for part in stream:
            if part.choices:
                text += part.choices[0].text
                parts += 1
            if parts == leaves_after:
                await stream.close()
                return None
        return text

    def report(self, budget):
        third = self.seconds / 3
        most = [max((size for at, size in self.memory if number * third <= at < (number + 1) * third), default=0)
                for number in range(3)]
        metrics = collections.Counter()
        for figures in self.figures.values():
            metrics.update(figures)
        total = lambda name: sum(value for key, value in metrics.items() if key.startswith(name))
        struck = {re.search('"(.*)"', key)[1]: int(value) for key, value in metrics.items()
                  if key.startswith("surefoot_faults_total")}
        lost = self.server.said("no device is left, or a thread has ended")
        preempted = int(total("surefoot_preemptions_total"))
        is_flat = most[2] <= GROWTH * most[1]
        return {"format": self.arguments.format, "weights": self.arguments.weights,
                "minutes": self.arguments.minutes, "clients": self.arguments.clients, "seed": self.arguments.seed,
                "answers": self.answers, "clients that left": self.left, "told to come back (429)": self.put_off,
                "lost or wrong": len(self.wrong), "examples": self.wrong[:5],
                "faults": struck, "preemptions": preempted, "processes killed": self.kills, "devices lost": lost,
                "prompts with a known beginning": int(metrics['surefoot_prefix_lookups_total{result="hit"}']),
                "generated tokens": int(metrics['surefoot_tokens_total{kind="generated"}']),
                "budget, MiB": budget, "most memory in each third, MiB": [round(size, 1) for size in most],
                "memory is flat": is_flat,
                "passed": bool(self.answers and not self.wrong and is_flat and struck and preempted
                               and (not self.arguments.kill_every or (self.kills and lost)))}


if __name__ == "__main__":
    main()
