"""`doctor --torch` and `bench --torch` of the program, with this Python, where the program is installed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = shutil.which("surefoot", path=str(Path(sys.executable).parent))
needs_program = pytest.mark.skipif(PROGRAM is None, reason="the program is not installed: run .ci/python")


def run(module, *arguments):
    # With one thread, since threads that wait for each other take long on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_doctor_tests_what_is_named():
    lines = run("surefoot._doctor", "cpu")
    assert lines[0]["torch"] and lines[0]["executable"] == sys.executable
    assert [line["check"]["name"] for line in lines if "check" in line][0] == "storage"
    assert lines[-1]["device"] == "cpu" and lines[-1]["healthy"] and lines[-1]["hardware"].endswith("threads")


def test_the_benchmark_measures_each_workload_once():
    lines = run("surefoot._bench", "--quick", "--device", "cpu", "--precision", "fp32")
    measured = {line["workload"]: line for line in lines if "workload" in line}
    assert len(measured) == 4 and len(lines) == 5
    assert all(line["low_ms"] <= line["median_ms"] <= line["high_ms"] and line["rate"] > 0 for line in measured.values())
    assert measured["convolutions, training step"]["guarded_ratio"] > 0.2


@needs_program
def test_the_program_runs_the_doctor_with_this_python():
    command = [PROGRAM, "doctor", "--torch", "--python", sys.executable, "--device", "cpu", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["healthy"] and report["executable"] == sys.executable
