#!/usr/bin/env python3
"""Follows the README's "Training by several processes" on two hosts with ssh (network namespaces).

Two hosts train the model that one process trains; a rank that is killed on the second host ends the job with exit code 3,
one message and a whole checkpoint; the job is resumed from it on one host. Needs root, iproute2, OpenSSH's server, Open MPI
and a build with the feature mpi.

    deploy/test_hosts.py target/release/surefoot
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hosts import Hosts

CONFIG = """\
data: {kind: digits}
model: {kind: mlp, hidden: [32]}
batch_size: 96
steps: STEPS
optimizer: {lr: 0.01}
checkpoint: {every: 5}
"""
# Ranks add gradients in another order than one process does, and nothing else differs.
TOLERANCE = 1e-4
# Longer than anything here takes on a machine that is many times slower.
PATIENCE = 600


def expect(what, is_so, *shown):
    if not is_so:
        sys.exit("\n".join([f"failed: {what}", *map(str, shown)]))
    print(f"ok: {what}", flush=True)


def report(ended):
    expect(f"exit code 0 of {ended.args[-1]}", ended.returncode == 0, ended.returncode, ended.stderr)
    return json.loads(ended.stdout.splitlines()[-1])


def ranks_on(host, program):
    """The ids of the ranks of this program that run on a host."""
    listed = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=True)
    found = []
    for process in listed.stdout.split():
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes()
            running = os.readlink(f"/proc/{process}/exe")
        except OSError:
            continue  # It has ended.
        if b"OMPI_COMM_WORLD_RANK=" in environment and running == program:
            found.append(process)
    return found


def until(what, found):
    deadline = time.monotonic() + PATIENCE
    while not (seen := found()):
        if time.monotonic() > deadline:
            sys.exit(f"failed after {PATIENCE} s: {what}")
        time.sleep(0.05)
    print(f"ok: {what}", flush=True)
    return seen


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    surefoot = str(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as name, Hosts(2) as hosts:
        folder = Path(name)
        (folder / "job.yaml").write_text(CONFIG.replace("STEPS", "20"))
        (folder / "endless.yaml").write_text(CONFIG.replace("STEPS", "1000000"))
        (folder / "hosts").write_text("host-1 slots=1\nhost-2 slots=1\n")
        launcher = f"mpirun --hostfile hosts --wdir {folder}"
        options = {"cwd": folder, "env": hosts.environment()}
        first, second = hosts.names

        def train(*arguments):
            return hosts.command(first, [surefoot, "train", *arguments], **options)

        alone = report(train("job.yaml", "--json"))
        both = report(train("job.yaml", "--ranks", "2", "--launcher", launcher, "--json"))
        expect("one rank on each host", [rank["host"] for rank in both["ranks"]] == hosts.names, both["ranks"])
        apart = abs(both["test_loss"] - alone["test_loss"])
        expect("two hosts train the model that one process trains", apart < TOLERANCE, alone, both)

        job = hosts.start(first, [surefoot, "train", "endless.yaml", "--ranks", "2", "--launcher", launcher], **options)
        until("a checkpoint is written", lambda: list(folder.glob("runs/endless/step-*.safetensors")))
        victim = until("a rank runs on the second host", lambda: ranks_on(second, surefoot))[0]
        subprocess.run(["kill", "-9", victim], check=True)
        killed = time.monotonic()
        _, errors = job.communicate(timeout=PATIENCE)
        took = time.monotonic() - killed
        expect("the job ended with 3", job.returncode == 3, job.returncode, errors)
        print(f"    {took:.1f} s after the rank was killed on {second}", flush=True)
        expect("one message", errors.count("error:") == 1 and "a rank died" in errors, errors)
        until("no rank is left on either host", lambda: not [*ranks_on(first, surefoot), *ranks_on(second, surefoot)])
        last = max(folder.glob("runs/endless/step-*.safetensors"))
        expect("the message names the last checkpoint", f"--resume=runs/endless/{last.name}" in errors, last, errors)
        step = int(last.stem.removeprefix("step-"))
        more = report(train(f"--resume={last}", "--steps", str(step + 7), "--override", "--json"))
        expect("one host goes on where two stopped", (more["resumed_from"], more["steps"]) == (step, step + 7), more)


if __name__ == "__main__":
    main()
