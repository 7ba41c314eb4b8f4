#!/usr/bin/env python3
"""Many threads on one PyTorch model: calling it as it is, through surefoot.Lanes, and through surefoot.Batcher.

    python benches/peers/torch_threads.py [--device cuda] [--threads 1,8,32] [--seconds 3]

A small network (256-512-512-10), one sample a call, each result read by its caller; calls a second, in turns, median of three rounds.
"""

import argparse
import statistics
import threading
import time

import torch

import surefoot


def rate(call, threads, seconds, device):
    done = [0] * threads
    start = time.perf_counter()

    def work(at):
        x = torch.randn(1, 256, device=device)
        while time.perf_counter() - start < seconds:
            call(x).sum().item()
            done[at] += 1

    workers = [threading.Thread(target=work, args=(at,)) for at in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=2.0)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)]
    model = torch.nn.Sequential(*layers).to(arguments.device).eval()

    def bare(x):
        with torch.no_grad():
            return model(x)

    lanes, batcher = surefoot.Lanes(model), surefoot.Batcher(model, max_batch=64)
    ways = {"bare": bare, "Lanes": lanes, "Batcher": batcher}
    for threads in map(int, arguments.threads.split(",")):
        rounds = [{way: rate(call, threads, arguments.seconds, arguments.device) for way, call in ways.items()} for _ in range(3)]
        medians = {way: statistics.median(one[way] for one in rounds) for way in ways}
        print(f"{threads:3} threads  " + "  ".join(f"{way} {calls:9.0f}/s" for way, calls in medians.items()))
    print(f"lanes: {lanes.count} ({lanes.reason}); the batcher ran {batcher.calls / max(1, batcher.batches):.1f} calls at once in the mean")
    batcher.close()


if __name__ == "__main__":
    main()
