"""What the wheel holds. `.ci/python` builds it and says where it is."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEEL = os.environ.get("SUREFOOT_WHEEL")
needs_wheel = pytest.mark.skipif(WHEEL is None, reason="SUREFOOT_WHEEL is not set: run .ci/python")


@needs_wheel
def test_it_is_under_30_mb_and_holds_types_and_the_program():
    size = Path(WHEEL).stat().st_size
    assert size < 30e6, f"{size / 1e6:.1f} MB"
    names = zipfile.ZipFile(WHEEL).namelist()
    assert "surefoot/py.typed" in names and "surefoot/_native.pyi" in names
    assert any(name.endswith(".data/scripts/surefoot") for name in names), names
    assert "-cp310-abi3-" in Path(WHEEL).name, "one wheel for Python 3.10 and later"


@needs_wheel
def test_the_program_is_installed_beside_python():
    program = shutil.which("surefoot", path=str(Path(sys.executable).parent))
    assert program is not None
    out = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    import surefoot

    assert out.split() == ["surefoot", surefoot.__version__]
