"""Uncaught errors explain themselves once `install` was called: in scripts, in threads and in IPython."""

import subprocess
import sys
import textwrap

import pytest
import torch

import surefoot
from surefoot._install import explanation
from surefoot._remedies import framework_of, remedy


def run(tmp_path, code):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    return subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)


def test_a_script_that_runs_out_of_memory_says_where_and_what_to_do(tmp_path):
    done = run(tmp_path, """
        import surefoot, torch
        surefoot.install()
        def train(x):
            return x.expand(1 << 40, 1024).contiguous()   # my own line
        train(torch.ones(1, 1024))
    """)
    assert done.returncode == 1 and done.stdout == ""
    traceback, found, told = done.stderr.partition("\nsurefoot: out_of_memory\n")
    assert found and "Traceback (most recent call last)" in traceback and "RuntimeError" in traceback
    assert "  cause    Memory ran out while something was allocated.\n" in told
    assert "  where    script.py:5 in train: return x.expand(1 << 40, 1024).contiguous()   # my own line\n" in told
    assert "  in code (PyTorch):\n" in told and "foot.step(model, optimizer" in told


def test_a_thread_explains_itself_too(tmp_path):
    done = run(tmp_path, """
        import surefoot, threading, torch
        surefoot.install()
        def work():
            torch.ones(2, 3) @ torch.ones(4, 5)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    assert done.returncode == 0, "a thread's error does not end the program"
    assert "surefoot: shape_mismatch" in done.stderr and "script.py:5 in work" in done.stderr


def test_ordinary_errors_and_exits_are_left_alone(tmp_path):
    done = run(tmp_path, """
        import surefoot, sys, torch
        surefoot.install()
        for error in (KeyError("x"), SystemExit(3), KeyboardInterrupt()):
            sys.excepthook(type(error), error, None)
        raise ValueError("CUDA out of memory is only words here")
    """)
    assert done.returncode == 1 and "KeyError" in done.stderr and "ValueError" in done.stderr
    assert "surefoot:" not in done.stderr, done.stderr


def test_the_hook_that_was_there_is_called_and_comes_back(tmp_path):
    done = run(tmp_path, """
        import surefoot, sys, torch
        def mine(kind, error, trace): print("mine", kind.__name__, file=sys.stderr)
        sys.excepthook = mine
        surefoot.install(); surefoot.install()
        try:
            torch.ones(2, 3) @ torch.ones(4, 5)
        except RuntimeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        surefoot.uninstall()
        assert sys.excepthook is mine
    """)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("mine RuntimeError\n\nsurefoot: shape_mismatch")
    assert done.stderr.count("surefoot: shape_mismatch") == 1


def test_an_error_without_torch_does_not_import_it(tmp_path):
    done = run(tmp_path, """
        import surefoot, sys, atexit
        atexit.register(lambda: print("torch" in sys.modules))
        surefoot.install()
        raise RuntimeError("CUDA out of memory")
    """)
    assert done.stdout == "False\n" and "surefoot:" not in done.stderr


def test_ipython_shows_the_traceback_then_the_explanation(tmp_path):
    pytest.importorskip("IPython")
    (tmp_path / "cell.ipy").write_text("import surefoot, torch\nsurefoot.install()\ntorch.ones(2, 3) @ torch.ones(4, 5)\n")
    command = [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", "--HistoryManager.enabled=False", "cell.ipy"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**__import__("os").environ, "IPYTHONDIR": str(tmp_path)})
    out = done.stdout + done.stderr
    assert "mat1 and mat2 shapes cannot be multiplied" in out
    assert out.count("surefoot: shape_mismatch") == 1, out


def test_a_fault_of_surefoot_brings_its_own_advice_device_and_story():
    foot = surefoot.Footing(device="cpu", drill="out_of_memory:count=99", forbid=["split"])
    with pytest.raises(surefoot.Fault) as raised:
        foot.run(lambda: torch.ones(2))
    told = explanation(raised.value)
    assert told.startswith("surefoot: out_of_memory\n") and "\n  device   cpu\n" in told
    assert raised.value.advice and f"    - {raised.value.advice[0]}" in told
    assert "faults were recovered from or tried against first" in told


def test_the_cause_of_an_error_is_read_as_well():
    try:
        try:
            torch.ones(2, 3) @ torch.ones(4, 5)
        except RuntimeError as inner:
            raise RuntimeError("the forward pass failed") from inner
    except RuntimeError as error:
        told = explanation(error)
    assert told.startswith("surefoot: shape_mismatch\n")


def test_code_is_for_the_framework_at_hand():
    assert framework_of(["__main__", "torch.nn.modules", "transformers.trainer"]) == "transformers"
    assert framework_of(["__main__", "torch.nn.modules", "lightning.pytorch.loops"]) == "Lightning"
    assert framework_of(["__main__"]) == "PyTorch"
    assert "gradient_accumulation_steps" in remedy("out_of_memory", "transformers", True)[0]
    assert "guard(split=0)" in remedy("out_of_memory", "PyTorch", False)[0]
    assert remedy("shape_mismatch", "PyTorch", True) == []
