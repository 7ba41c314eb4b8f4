#!/usr/bin/env python3
"""What limits training, verification and serving on many machines: a simulation from measured figures.

    benches/scale/simulate.py            the tables of docs/scale.md
    python3 -m unittest discover benches/scale

figures.json has what was measured: ranks by training.py, parts and merges by measure.py, replicas by deploy/test_replicas.py. test_simulate.py holds the
simulation to the small cases that were measured: it has to be within 20 % of them. Larger cases are extrapolated with the assumptions below.
"""
import heapq
import json
import math
import random
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

FIGURES = json.loads((Path(__file__).parent / "figures.json").read_text())


# Challenges of one batch (`BATCH` of crates/surefoot-verify/src/verifier.rs): a shard runs whole batches.
BATCH = 4


def challenges_run(challenges: int, shards: int) -> int:
    """The challenges that the shard which runs the most of them runs, with those that only share a batch with its own."""
    unit = next((unit for unit in (BATCH, BATCH // 2, 1) if math.ceil(challenges / unit) >= shards), 1)
    units = math.ceil(challenges / unit)
    starts = [min(units * index // shards * unit, challenges) for index in range(shards + 1)]
    return max(min(math.ceil(end / BATCH) * BATCH, challenges) - start // BATCH * BATCH for start, end in zip(starts, starts[1:]))


def fingerprint_time(figures: dict, challenges: int, shards: int) -> float:
    """The time of the slowest shard: what every shard does once, and the challenges that it runs."""
    return figures["fixed"] + challenges_run(challenges, shards) * figures["challenge"]


def merge_time(figures: dict, parts: int, challenges: int) -> float:
    """The time to join the parts: each is opened, and each challenge is read, checked and written."""
    return figures["fixed"] + parts * figures["part"] + challenges * figures["challenge"]


# Seconds of a short message through shared memory (Open MPI 4.1, an exchange of 1 kB takes 0.4 to 1.1 µs).
SHARED_MEMORY = 1e-6

# Numbers that ranks exchange at once (`BUCKET` of crates/surefoot-train/src/ranks/mpi.rs), and the bytes of a message without news.
BUCKET = 4 << 20
MESSAGE = 64


@dataclass(frozen=True)
class Network:
    """What a rank has between itself and the others."""

    bandwidth: float  # bytes a second, in each direction at once
    latency: float  # seconds of a message
    by_processor: bool = False  # whether ranks copy the bytes themselves, as through shared memory


@dataclass(frozen=True)
class Job:
    """What one rank computes in a step."""

    gradients: int  # bytes
    batch: int  # samples of all ranks together
    sample: float  # seconds of a forward and backward pass for each sample, on one processor
    fixed: float  # seconds of it for each step
    update: float  # seconds to change the weights


def averaging(gradients: int, ranks: int, network: Network) -> float:
    """The time to sum gradients: every rank sends each other rank its part of them, adds up its own, and sends the sum to all."""
    if ranks == 1:
        return 0.0
    buckets = math.ceil(gradients / 4 / BUCKET)
    return 2 * (gradients * (ranks - 1) / ranks / network.bandwidth + buckets * (ranks - 1) * network.latency)


def agreement(ranks: int, network: Network) -> float:
    """The time of one agreement: a short message of each rank to all, in rounds that double who knows it."""
    return math.ceil(math.log2(ranks)) * network.latency + MESSAGE * (ranks - 1) / network.bandwidth


def training_step(job: Job, ranks: int, network: Network, ranks_on_a_processor: float = 1.0) -> float:
    """The time of a step: ranks that share a processor compute one after another. Each step has two agreements."""
    computing = job.sample * job.batch / ranks + job.fixed + job.update
    exchanging = averaging(job.gradients, ranks, network) * (ranks_on_a_processor if network.by_processor else 1.0)
    return computing * ranks_on_a_processor + exchanging + 2 * agreement(ranks, network)


def measured_job(figures: dict) -> Job:
    """A workload from its steps of one process with one thread and of two ranks: what a pass takes for each sample and at all."""
    batch, parts = figures["batch"], figures["parts"]
    whole = batch / figures["one_thread"] - parts["updating"]
    half = parts["computing"]
    sample = (whole - half) / (batch / 2)
    fixed = half - sample * batch / 2
    if fixed < 0.0:
        sample, fixed = (whole + half) / (batch + batch / 2), 0.0
    return Job(4 * figures["parameters"], batch, sample, fixed, parts["updating"])


def two_ranks(ranks: dict) -> list[dict]:
    """The cases of two ranks on one machine."""
    shown = {"ranks": 2, "network": "shared memory"}
    return [{"workload": name, **shown, "step": seen["batch"] / seen["two_ranks"], "parts": seen["parts"]} for name, seen in ranks.items()]


def measured_network(cases: list[dict], ranks: dict, latency: float) -> Network:
    """The bandwidth is what the two ranks with the largest gradients had."""
    two = [(4 * ranks[case["workload"]]["parameters"], case["parts"]["summing"]) for case in cases if case["ranks"] == 2]
    gradients, seconds = max(two)
    return Network(gradients / (seconds - 2 * latency), latency, cases[0]["network"] == "shared memory")


def serve(replicas: int, rate: float, clients: int, proxy: float, seed: int = 0) -> dict:
    """Clients that each wait for an answer before they ask again, over replicas behind a proxy.

    A replica answers one request after another, `rate` a second on average; the proxy passes on `proxy` requests
    a second at most, each to the replica with the fewest waiting.
    """
    chance = random.Random(seed)
    waiting: list[deque] = [deque() for _ in range(replicas)]
    fewest = [(0, index) for index in range(replicas)]
    proxy_free = now = 0.0
    # (when, order, what happens, client or replica, when the request was sent)
    events = [(chance.random() / 100, index, "send", index, 0.0) for index in range(clients)]
    heapq.heapify(events)
    order, wanted, latencies, began = clients, 8 * clients + 10_000, [], 0.0

    def later(when: float, what: str, who: int, sent: float) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (when, order, what, who, sent))

    def count(replica: int) -> None:
        heapq.heappush(fewest, (len(waiting[replica]), replica))

    while len(latencies) < wanted:
        now, _, what, who, sent = heapq.heappop(events)
        if len(latencies) == wanted // 2 and not began:
            began = now
        if what == "send":
            proxy_free = max(proxy_free, now) + 1 / proxy
            later(proxy_free, "arrive", who, now)
        elif what == "arrive":
            # Entries of replicas that have changed since are passed over.
            while fewest[0][0] != len(waiting[fewest[0][1]]):
                heapq.heappop(fewest)
            replica = fewest[0][1]
            waiting[replica].append((who, sent))
            count(replica)
            if len(waiting[replica]) == 1:
                later(now + chance.expovariate(rate), "answer", replica, 0.0)
        else:
            client, sent = waiting[who].popleft()
            count(who)
            latencies.append(now - sent)
            later(now, "send", client, now)
            if waiting[who]:
                later(now + chance.expovariate(rate), "answer", who, 0.0)
    # The first half is the start.
    steady = sorted(latencies[wanted // 2 :])
    return {
        "rate": len(steady) / (now - began),
        "p50": steady[len(steady) // 2],
        "p99": steady[int(0.99 * len(steady))],
    }


# What is assumed of machines that were not at hand.
PROXY = 40_000.0  # requests a second that one HAProxy passes on
FAST = Network(bandwidth=0.9 * 25e9 / 8, latency=30e-6)  # 25 Gbit/s Ethernet


def efficiency(job: Job, machines: int, network: Network) -> tuple[float, float]:
    """The time of a step, and the share of it that machines compute, if each is given as many samples as were measured on one."""
    grown = replace(job, batch=machines * job.batch)
    step = training_step(grown, machines, network)
    return step, training_step(job, 1, network) / step


def training_tables(figures: dict) -> list[str]:
    jobs = {name: measured_job(seen) for name, seen in figures["ranks"].items()}
    slow = measured_network(figures["hosts"], figures["ranks"], figures["latency_of_hosts"])
    lines = ["| model | gradients | computing | machines | step, 1 Gbit/s | computing | step, 25 Gbit/s | computing |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, job in jobs.items():
        for machines in (8, 64, 1000):
            shown = [f"{job.gradients / 1e6:.1f} MB", f"{1e3 * training_step(job, 1, slow):.1f} ms", f"{machines:,}"]
            for network in (slow, FAST):
                step, share = efficiency(job, machines, network)
                shown += [f"{1e3 * step:,.0f} ms", f"{100 * share:.0f} %"]
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return [*lines, ""]


def tables() -> str:
    figures, lines = FIGURES, training_tables(FIGURES["training"])
    lines.append("| shards | challenges | slowest shard | merge | speedup |")
    lines.append("| --- | --- | --- | --- | --- |")
    verify, merge = figures["fingerprint"]["model"], figures["merge"]["model"]
    for shards in (1, 8, 64, 1000):
        challenges = 1024
        slowest, joined = fingerprint_time(verify, challenges, shards), merge_time(merge, shards, challenges)
        speedup = fingerprint_time(verify, challenges, 1) / (slowest + joined)
        lines.append(f"| {shards:,} | {challenges:,} | {slowest:.2f} s | {joined:.2f} s | {speedup:.0f} × |")
    lines.append("")
    lines.append("| replicas | clients | answers/s | p50 | p99 |")
    lines.append("| --- | --- | --- | --- | --- |")
    rate = figures["serving"]["rate_of_a_replica"]
    for replicas in (8, 64, 1000):
        seen = serve(replicas, rate, 21 * replicas, PROXY)
        lines.append(
            f"| {replicas:,} | {21 * replicas:,} | {seen['rate']:,.0f} | {1000 * seen['p50']:.0f} ms | {1000 * seen['p99']:.0f} ms |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
