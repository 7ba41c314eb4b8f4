#!/usr/bin/env python3
"""Measures training by several ranks, and merging many shards.

    benches/scale/training.py target/release/surefoot [ranks] [merge]

`ranks`: 2 ranks with 1 thread each against 1 process with 2 threads and 1 process with 1 thread, in turns, in samples a second (the aim is 0.9 × of
the one with 2 threads), and what averaging gradients costs in each step. Needs a build with the feature `mpi`, Open MPI and an otherwise idle machine with two processors.
`merge`: the time to join 1,000 shards (the aim is below 1 s).

Run it in the repository. Prints tables and one line of JSON. ROUNDS (5), STEPS (150) and SHARDS (1000) can be set in the environment.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "5"))
STEPS = int(os.environ.get("STEPS", "150"))
SHARDS = int(os.environ.get("SHARDS", "1000"))
TINY = Path("crates/surefoot-models/tests/fixtures/llama-tiny").resolve()
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    # One processor for each rank, and no spinning on the other's while it waits.
    "OMPI_MCA_hwloc_base_binding_policy": "core",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}

# What is trained, with the same batch for all: a wide network, whose gradients are many for its arithmetic, and a GPT.
WORKLOADS = {
    "mlp 64-1024-1024-10": "data: {kind: digits}\nmodel: {kind: mlp, hidden: [1024, 1024]}\n",
    "gpt 4 × 128": "data: {kind: text, path: book.txt, length: 128}\nmodel: {kind: gpt, layers: 4, heads: 4, width: 128}\n",
}
BATCHES = {"mlp 64-1024-1024-10": 256, "gpt 4 × 128": 32}


def book(folder: Path) -> None:
    """A text with some structure, always the same."""
    words = "the model keeps its footing when a device fails and says which step it took to go on".split()
    lines = (" ".join(words[(7 * row + 3 * column) % len(words)] for column in range(12)) for row in range(6000))
    (folder / "book.txt").write_text("\n".join(lines))


def train(surefoot: str, folder: Path, ranks: int, threads: int, name: str) -> dict:
    """One run; its samples a second are those of all steps together, without tests and checkpoints."""
    command = [surefoot, "train", "job.yaml", "--steps", str(STEPS), "--json", "-q", "--folder", f"runs/{name}"]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    environment = {**os.environ, **MPI, "RAYON_NUM_THREADS": str(threads)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
    return json.loads(run.stdout.splitlines()[-1])


def rate(report: dict) -> float:
    """The median of the epochs but the first, which warms up; of all if there is only one."""
    rates = [epoch["samples_per_second"] for epoch in report["epochs"]]
    return statistics.median(rates[1:] or rates)


def measure_ranks(surefoot: str) -> dict:
    measured = {}
    print("| model | parameters | bytes of gradients a step | 1 process × 1 thread | 1 process × 2 threads | 2 ranks × 1 thread | ratio | averaging a step | waiting a step |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for workload, config in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            book(folder)
            (folder / "job.yaml").write_text(config + f"batch_size: {BATCHES[workload]}\nsteps: 1\n")
            single, alone, together, ratios, summing, agreeing, report = [], [], [], [], [], [], {}
            # In turns, so that what else the machine does meets both alike.
            for number in range(ROUNDS):
                single.append(rate(train(surefoot, folder, 1, 1, f"single-{number}")))
                one = rate(train(surefoot, folder, 1, 2, f"one-{number}"))
                report = train(surefoot, folder, 2, 1, f"two-{number}")
                two = rate(report)
                alone.append(one)
                together.append(two)
                ratios.append(two / one)
                ranks = report["ranks"]
                summing.append(max(rank["summing_seconds"] for rank in ranks) / report["steps"])
                agreeing.append(max(rank["agreeing_seconds"] for rank in ranks) / report["steps"])
        parameters = report["parameters"]
        figures = {
            "parameters": parameters,
            "gradient_bytes": 4 * parameters,
            "batch": BATCHES[workload],
            "one_thread": statistics.median(single),
            "one_process": statistics.median(alone),
            "two_ranks": statistics.median(together),
            "ratio": statistics.median(ratios),
            "summing_seconds_per_step": statistics.median(summing),
            "agreeing_seconds_per_step": statistics.median(agreeing),
        }
        measured[workload] = figures
        print(
            f"| {workload} | {parameters:,} | {4 * parameters:,} | {figures['one_thread']:,.0f} samples/s | {figures['one_process']:,.0f} samples/s | {figures['two_ranks']:,.0f} samples/s "
            f"| {figures['ratio']:.2f} | {1e3 * figures['summing_seconds_per_step']:.2f} ms | {1e3 * figures['agreeing_seconds_per_step']:.2f} ms |",
            flush=True,
        )
    return measured


def measure_merge(surefoot: str) -> dict:
    """As many shards as challenges, of a tiny model."""
    shards = SHARDS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = [str(folder / f"{index}.json") for index in range(1, shards + 1)]
        for index, file in enumerate(files, 1):
            options = ["-q", "--challenges", str(shards), "--tokens", "8", "--shard", f"{index}/{shards}", "--out", file]
            subprocess.run([surefoot, "fingerprint", str(TINY), *options], check=True, stdout=subprocess.DEVNULL)
        seconds = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            subprocess.run([surefoot, "merge", *files, "--out", str(folder / "all.json")], check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - begun)
        size = statistics.mean(Path(file).stat().st_size for file in files)
    print(f"merge of {shards:,} shards of {size / 1e3:.0f} kB: {statistics.median(seconds):.2f} s, at best {min(seconds):.2f} s")
    return {"shards": shards, "seconds": statistics.median(seconds), "best_seconds": min(seconds), "bytes_of_a_shard": size}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    surefoot = str(Path(sys.argv[1]).resolve())
    wanted = sys.argv[2:] or ["ranks", "merge"]
    figures: dict = {}
    if "ranks" in wanted:
        figures["ranks"] = measure_ranks(surefoot)
    if "merge" in wanted:
        figures["merge"] = measure_merge(surefoot)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
