"""Examples in docstrings are true."""

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ["_audit", "_batcher", "_compare", "_errors", "_explain", "_footing", "_guard", "_install", "_lanes", "_loader", "_probe"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(f"surefoot.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_the_packages_own_example():
    # In a process of its own: here torch is imported.
    code = "import doctest, surefoot; r = doctest.testmod(surefoot); assert r.attempted and not r.failed"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_readmes_example_runs(tmp_path):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    section = readme[readme.index("## PyTorch") :]
    code = section[section.index("```python") + len("```python") : section.index("```", section.index("```python") + 3)]
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1000, 10])" in done.stdout and (tmp_path / "run.jsonl").exists()


def test_the_notebook_runs(tmp_path):
    notebook = json.loads((Path(__file__).parents[1] / "examples" / "guarded_training.ipynb").read_text())
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "step 3: 5 attempts, 8 parts, rungs ['reclaim', 'split', 'split', 'split']" in done.stdout
