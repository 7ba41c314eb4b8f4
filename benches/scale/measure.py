#!/usr/bin/env python3
"""Measures the small cases that the simulation has to reproduce, and fits its constants: writes figures.json.

    benches/scale/measure.py target/release/surefoot MODEL [fingerprint] [merge]

Run it in the repository, with the folder of a model.

Times are processor time of one thread, of merges the least of five rounds: other work on the machine hardly changes it.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = int(os.environ.get("ROUNDS", "3"))
HERE = Path(__file__).parent
TINY = "crates/surefoot-models/tests/fixtures/llama-tiny"
ENVIRONMENT = {**os.environ, "RAYON_NUM_THREADS": "1"}


def processor_seconds(command: list[str]) -> float:
    """Seconds of processor time: unlike the time on the clock, hardly changed by other work."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def least(measure, cases, rounds=ROUNDS) -> dict:
    seen: dict = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            seen[case].append(measure(case))
    return {case: min(values) for case, values in seen.items()}


def line_through(points: dict) -> tuple[float, float]:
    """The line y = a + b x of least squares."""
    slope, start = statistics.linear_regression(list(points), list(points.values()))
    return start, slope


def fingerprints(surefoot: str, folder: Path, model: str) -> dict:
    """Parts of a fingerprint of 64 challenges; those of 64, 16 and 4 challenges give the two constants."""
    def shard(count: int) -> float:
        options = ["-q", "--challenges", "64", "--out", str(folder / "f.json")]
        return processor_seconds([surefoot, "fingerprint", model, *options, *(["--shard", f"1/{count}"] if count > 1 else [])])

    seen = least(shard, [1, 2, 4, 8, 16], rounds=1)
    fixed, challenge = line_through({64 // count: seen[count] for count in (1, 4, 16)})
    return {
        "model": {"fixed": fixed, "challenge": challenge},
        "cases": [{"shards": count, "challenges": 64, "seconds": seconds} for count, seconds in seen.items()],
    }


def merges(surefoot: str, folder: Path) -> dict:
    """Parts of a tiny model: their number and that of the challenges give the constants."""
    cases = [(4, 64), (16, 64), (64, 64), (16, 512)]
    for parts, challenges in cases:
        for index in range(1, parts + 1):
            part = str(folder / f"{challenges}-{parts}-{index}.json")
            options = ["-q", "--challenges", str(challenges), "--shard", f"{index}/{parts}", "--out", part]
            processor_seconds([surefoot, "fingerprint", TINY, *options])

    def merge(case: tuple[int, int]) -> float:
        files = [str(path) for path in folder.glob(f"{case[1]}-{case[0]}-*.json")]
        return processor_seconds([surefoot, "merge", *files, "--out", str(folder / "m.json")])

    seen = least(merge, cases, rounds=5)
    part = max(0.0, (seen[(64, 64)] - seen[(4, 64)]) / 60)
    challenge = (seen[(16, 512)] - seen[(16, 64)]) / 448
    return {
        "model": {"fixed": seen[(16, 64)] - 16 * part - 64 * challenge, "part": part, "challenge": challenge},
        "cases": [{"parts": parts, "challenges": count, "seconds": seconds} for (parts, count), seconds in seen.items()],
    }


def main() -> None:
    surefoot, model = sys.argv[1], sys.argv[2]
    wanted = sys.argv[3:] or ["fingerprint", "merge"]
    path = HERE / "figures.json"
    figures = json.loads(path.read_text()) if path.exists() else {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "fingerprint" in wanted:
            figures["fingerprint"] = fingerprints(surefoot, folder, model)
        if "merge" in wanted:
            figures["merge"] = merges(surefoot, folder)
    path.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
