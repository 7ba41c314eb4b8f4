"""Examples in docstrings are true."""

import doctest
import importlib
import subprocess
import sys

import pytest

MODULES = ["_errors", "_footing", "_guard", "_probe"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"surefoot.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_the_packages_own_example():
    # In a process of its own: here torch is imported.
    code = "import doctest, surefoot; r = doctest.testmod(surefoot); assert r.attempted and not r.failed"
    subprocess.run([sys.executable, "-c", code], check=True)
