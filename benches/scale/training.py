#!/usr/bin/env python3
"""Measures training by several ranks, on one machine and over a network, and merging many shards.

    benches/scale/training.py target/release/surefoot [ranks] [oversubscribed] [hosts] [merge] [--write]

`ranks`: 2 ranks with 1 thread each against 1 process with 2 threads and 1 process with 1 thread, in turns, in samples a second (the aim is 0.9 × of
the one with 2 threads), and what a rank spends its steps on. Needs a build with the feature `mpi`, Open MPI and an otherwise idle machine with two processors.
`oversubscribed`: 4 ranks on the two processors.
`hosts`: 2 and 4 hosts with one rank each, network namespaces on the two processors with 1 Gbit/s each. Needs root and OpenSSH's server (deploy/hosts.py).
`merge`: the time to join 1,000 shards (the aim is below 1 s).

Run it in the repository. Prints tables and one line of JSON; --write puts the figures of training into figures.json, from which simulate.py computes.
ROUNDS (5), STEPS (150), SHARDS (1000) and ONLY (the beginning of a workload's name) can be set in the environment.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "deploy"))
from hosts import Hosts  # noqa: E402

ROUNDS = int(os.environ.get("ROUNDS", "5"))
STEPS = int(os.environ.get("STEPS", "150"))
SHARDS = int(os.environ.get("SHARDS", "1000"))
ONLY = os.environ.get("ONLY", "")
TINY = Path("crates/surefoot-models/tests/fixtures/llama-tiny").resolve()
RATE = "1gbit"
MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}

# What is trained, with the same batch for all: a wide network, whose gradients are many for its arithmetic, a residual network and a GPT.
WORKLOADS = {
    "mlp 64-1024-1024-10": "data: {kind: digits}\nmodel: {kind: mlp, hidden: [1024, 1024]}\nbatch_size: 256\n",
    "cnn 32 × 2": "data: {kind: digits}\nmodel: {kind: cnn, width: 32, stages: 2}\nbatch_size: 64\n",
    "gpt 4 × 128": "data: {kind: text, path: book.txt, length: 128}\nmodel: {kind: gpt, layers: 4, heads: 4, width: 128}\nbatch_size: 32\n",
}
WORKLOADS = {name: config for name, config in WORKLOADS.items() if name.startswith(ONLY)}
# Steps of these take so many times as long: fewer are run.
SLOWER = {"gpt 4 × 128": 4}
# What these exchange passes at once, whatever the rate: a limit by a token bucket lets 256 kB through.
TOO_SMALL = ("cnn 32 × 2",)
PARTS = ("computing", "agreeing", "summing", "updating")


def book(folder: Path) -> None:
    """A text with some structure, always the same."""
    words = "the model keeps its footing when a device fails and says which step it took to go on".split()
    lines = (" ".join(words[(7 * row + 3 * column) % len(words)] for column in range(12)) for row in range(6000))
    (folder / "book.txt").write_text("\n".join(lines))


class Place:
    """A folder with the job of a workload."""

    def __init__(self, surefoot: str, folder: Path, workload: str) -> None:
        self.surefoot, self.folder, self.runs = surefoot, folder, 0
        self.steps, config = STEPS // SLOWER.get(workload, 1), WORKLOADS[workload]
        book(folder)
        (folder / "job.yaml").write_text(config + "steps: 1\n")

    def train(self, ranks: int, threads: int, hosts: Hosts | None = None, part: int = 1, bound: bool = False) -> dict:
        """The report of a run of all steps, or a part of them; `bound` to one processor, as ranks are."""
        self.runs += 1
        command = [self.surefoot, "train", "job.yaml", "--steps", str(self.steps // part), "--json", "-q", "--folder", f"runs/{self.runs}"]
        environment = {**os.environ, **MPI, "RAYON_NUM_THREADS": str(threads)}
        if ranks > 1:
            command += ["--ranks", str(ranks)]
            # One processor for each rank. Ranks that share one must not spin while they wait.
            environment["OMPI_MCA_hwloc_base_binding_policy"] = "none" if hosts or ranks > 2 else "core"
            environment["OMPI_MCA_rmaps_base_oversubscribe"] = "1"
            environment["OMPI_MCA_mpi_yield_when_idle"] = "1" if hosts or ranks > 2 else "0"
        if hosts:
            (self.folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
            command += ["--launcher", f"mpirun --hostfile hosts --wdir {self.folder} -x RAYON_NUM_THREADS"]
            command = [*hosts.on(hosts.names[0]), *command]
            environment = {**hosts.environment(), **environment}
        processor = {min(os.sched_getaffinity(0))}
        bind = (lambda: os.sched_setaffinity(0, processor)) if bound else None
        run = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, preexec_fn=bind)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
        return json.loads(run.stdout.splitlines()[-1])


def rate(report: dict) -> float:
    """Samples a second of all steps together, without tests and checkpoints: the median of the epochs but the first, which warms up; of all if there
    is only one."""
    rates = [epoch["samples_per_second"] for epoch in report["epochs"]]
    return statistics.median(rates[1:] or rates)


def parts_of_a_step(report: dict) -> dict:
    """Seconds that a rank spends on each part of a step, the mean of the ranks."""
    ranks = report["ranks"]
    return {part: statistics.mean(rank[f"{part}_seconds"] for rank in ranks) / report["steps"] for part in PARTS}


def medians(rows: list[dict]) -> dict:
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def batch_of(config: str) -> int:
    return int(config.rsplit("batch_size: ", 1)[1])


def milliseconds(parts: dict) -> str:
    return " | ".join(f"{1e3 * parts[part]:.2f}" for part in PARTS)


def measure_ranks(surefoot: str) -> dict:
    measured = {}
    print("| model | parameters | 1 process × 1 thread | 1 process × 2 threads | 2 ranks × 1 thread | ratio | computing | agreeing | averaging | updating (ms a step) |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for workload, config in WORKLOADS.items():
        with tempfile.TemporaryDirectory() as name:
            place = Place(surefoot, Path(name), workload)
            rows, parts, parameters = [], [], 0
            # In turns, so that what else the machine does meets all alike.
            for _ in range(ROUNDS):
                single, double = rate(place.train(1, 1, bound=True)), rate(place.train(1, 2))
                report = place.train(2, 1)
                together, parameters = rate(report), report["parameters"]
                rows.append({"one_thread": single, "two_threads": double, "two_ranks": together, "ratio": together / double})
                parts.append(parts_of_a_step(report))
        ratios = sorted(row["ratio"] for row in rows)
        figures = {"parameters": parameters, "batch": batch_of(config), **medians(rows), "ratios": ratios, "parts": medians(parts)}
        measured[workload] = figures
        print(
            f"| {workload} | {parameters:,} | {figures['one_thread']:,.0f} samples/s | {figures['two_threads']:,.0f} | {figures['two_ranks']:,.0f} "
            f"| {figures['ratio']:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | {milliseconds(figures['parts'])} |",
            flush=True,
        )
    return measured


ECHO = """
import socket
with socket.create_server(("", 7777)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while message := connection.recv(64):
        connection.sendall(message)
"""
ASK = """
import socket, statistics, time
connection = socket.create_connection(("host-2", 7777))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
seen = []
for _ in range(500):
    begun = time.perf_counter()
    connection.sendall(bytes(64))
    connection.recv(64, socket.MSG_WAITALL)
    seen.append(time.perf_counter() - begun)
print(statistics.median(seen) / 2)
"""


def latency_of_hosts() -> float:
    """Seconds of a short message over TCP from one host to another."""
    with Hosts(2, RATE) as hosts:
        server = hosts.start("host-2", [sys.executable, "-c", ECHO])
        server.stdout.readline()
        asked = hosts.command("host-1", [sys.executable, "-c", ASK], check=True)
        server.communicate()
    return float(asked.stdout)


def measure_many(surefoot: str, over_network: bool) -> list[dict]:
    """Runs of 4 ranks on this machine, or of 2 and 4 hosts."""
    cases = []
    print("| model | ranks | ms a step | computing | agreeing | averaging | updating (ms a step) |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for ranks in (2, 4) if over_network else (4,):
        for workload, config in WORKLOADS.items():
            if over_network and workload in TOO_SMALL:
                continue
            with tempfile.TemporaryDirectory() as name, (Hosts(ranks, RATE) if over_network else nullcontext()) as hosts:
                place, seen, parts = Place(surefoot, Path(name), workload), [], []
                for _ in range(ROUNDS):
                    report = place.train(ranks, 1, hosts, 3)
                    seen.append(batch_of(config) / rate(report))
                    parts.append(parts_of_a_step(report))
            step, spent = statistics.median(seen), medians(parts)
            cases.append({"workload": workload, "ranks": ranks, "network": RATE if over_network else "shared memory", "step": step, "parts": spent})
            print(f"| {workload} | {ranks} | {1e3 * step:.1f} | {milliseconds(spent)} |", flush=True)
    return cases


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


def write(figures: dict) -> None:
    path = HERE / "figures.json"
    known = json.loads(path.read_text())
    training = known.setdefault("training", {})
    training["processors"] = os.cpu_count()
    for name in ("ranks", "oversubscribed", "hosts", "latency_of_hosts"):
        if name in figures:
            training[name] = figures[name]
    path.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    surefoot = str(Path(sys.argv[1]).resolve())
    wanted = [word for word in sys.argv[2:] if word != "--write"] or ["ranks", "oversubscribed", "hosts", "merge"]
    figures: dict = {}
    if "ranks" in wanted:
        figures["ranks"] = measure_ranks(surefoot)
    if "oversubscribed" in wanted:
        figures["oversubscribed"] = measure_many(surefoot, False)
    if "hosts" in wanted:
        figures["hosts"] = measure_many(surefoot, True)
        figures["latency_of_hosts"] = latency_of_hosts()
    if "merge" in wanted:
        figures["merge"] = measure_merge(surefoot)
    print(json.dumps(figures))
    if "--write" in sys.argv:
        write(figures)


if __name__ == "__main__":
    main()
