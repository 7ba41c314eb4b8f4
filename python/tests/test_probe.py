"""Devices are tried in a child process, and what was found is remembered."""

import subprocess
import sys

import surefoot
from surefoot import _probe


def test_the_cpu_passes_every_check():
    checks = surefoot.probe("cpu", fresh=True)
    assert [check.name for check in checks] == list(_probe._names())
    assert all(check.ok for check in checks), checks
    assert _probe.why_not(checks) is None


def test_what_was_found_is_remembered_for_this_torch_and_machine(monkeypatch):
    surefoot.probe("cpu", fresh=True)
    monkeypatch.setattr(_probe, "_run_child", lambda name: 1 / 0)
    assert surefoot.probe("cpu")[0].name == "storage"
    monkeypatch.setattr(_probe.platform, "release", lambda: "another kernel")
    try:
        surefoot.probe("cpu")
    except ZeroDivisionError:
        return
    raise AssertionError("another system's result was used")


def test_a_child_that_dies_names_the_check_it_died_in(monkeypatch):
    code = "import json, os; print(json.dumps({'name': 'storage', 'ok': True})); os.abort()"
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **kw: real([sys.executable, "-c", f"import sys\n{code}".replace("os.abort", "sys.stdout.flush(), os.abort")], **kw))
    checks = surefoot.probe("cpu", fresh=True)
    assert [(check.name, check.ok) for check in checks] == [("storage", True), ("product fp32", False)]
    assert "signal 6" in checks[-1].detail
    assert "product fp32: the process died by signal 6" in _probe.why_not(checks)


def test_a_device_that_computes_wrongly_is_passed_over():
    checks = [_probe.Check(name, True) for name in _probe._names()]
    checks[2].ok, checks[2].detail = False, "is 3.0e-01 from the CPU's result"
    assert _probe.why_not(checks) == "convolution fp32: is 3.0e-01 from the CPU's result"
    threads = [_probe.Check(name, name != "threads") for name in _probe._names()]
    assert _probe.why_not(threads) is None, "a device for one thread at a time is still one"


def test_a_damaged_file_of_results_costs_only_time():
    surefoot.probe("cpu")
    _probe._file().write_text("{")
    assert all(check.ok for check in surefoot.probe("cpu"))


def test_auto_asks_what_there_is():
    names = [name for name, _ in _probe.candidates()]
    assert names == ["metal", "cuda", "xpu", "cpu"]
