"""What importing the package costs, and that all its names load."""

import importlib
import subprocess
import sys

import surefoot


def test_import_takes_no_torch_and_little_time():
    code = (
        "import time, sys; start = time.process_time(); import surefoot;"
        "print(time.process_time() - start, 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    seconds = []
    for _ in range(5):
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        taken, torch, numpy = out.split()
        assert (torch, numpy) == ("False", "False")
        seconds.append(float(taken))
    # Processor time, with room for a busy machine: 12 ms were measured. Importing torch takes seconds.
    assert min(seconds) < 0.2, seconds


def test_every_public_name_loads_and_unknown_names_do_not():
    for name in surefoot.__all__:
        assert getattr(surefoot, name) is not None
    assert not hasattr(surefoot, "no_such_name")


def test_the_version_is_the_native_modules():
    native = importlib.import_module("surefoot._native")
    assert surefoot.__version__ == native.__version__
