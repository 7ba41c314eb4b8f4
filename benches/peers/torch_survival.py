"""Who survives what: scenarios x ways to guard a PyTorch program.

    python benches/peers/torch_survival.py [--rows TEXT] [--json FILE]

Inside a training step (torch_survival_steps.py) "yes" means that training ended with the same effective batch and with equal weights;
outside (torch_survival_outside.py) that the result is equal; with two ranks (torch_survival_ranks.py) both, on both ranks.
accelerate's find_executable_batch_size, torch-max-mem, Lightning's batch size finder and Composer's automatic micro-batches are tried
where they are installed. Composer 0.32 asks for PyTorch below 2.7.1; `pip install --no-deps` installs it beside a later one.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from torch_survival_outside import OUTSIDE  # noqa: E402
from torch_survival_ranks import RANKS  # noqa: E402
from torch_survival_steps import (  # noqa: E402
    METAL,
    SAMPLES,
    STEPS,
    Fails,
    Once,
    bare_step,
    with_accelerate,
    with_bare,
    with_composer,
    with_lightning,
    with_surefoot,
    with_torch_max_mem,
)

__all__ = ["bare_step", "survival"]

WAYS = {
    "bare PyTorch": (None, with_bare),
    "accelerate": ("accelerate", with_accelerate),
    "torch-max-mem": ("torch_max_mem", with_torch_max_mem),
    "Lightning's finder": ("lightning", with_lightning),
    "Composer": ("composer", with_composer),
    "Surefoot": (None, with_surefoot),
}


def once(text, kind=RuntimeError):
    return lambda: Once(kind(text))


STEP_ROWS = {
    "OOM in forward": lambda: Fails(room=4),
    "OOM in backward": lambda: Fails(backward_at=1),
    "OOM in optimizer, half-way": lambda: Fails(optimizer_at=1),
    "MPS: out of memory": lambda: Fails(room=4, message=METAL),
    "MPS: invalid buffer size": lambda: Fails(room=4, message="Invalid buffer size: 20.00 GiB"),
    "MPS: placeholder storage, once": once("Placeholder storage has not been allocated on MPS device!"),
    "MPS: command buffer, once": once("[MPSCommandBuffer] command buffer exited with error status: Internal Error (0000000e:Internal Error)"),
    "MPS: command buffer timed out, once": once("[METAL] Command buffer failed: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"),
    "MPS: operator not implemented, first device only": once(
        "The operator 'aten::_linalg_svd' is not currently implemented for the MPS device. If you want this op to be considered for addition "
        "please comment on https://github.com/pytorch/pytorch/issues/141287", NotImplementedError),
    "MPS: float64, first device only": once("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead.", TypeError),
    "device mismatch, once": once("Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!"),
    "dtype mismatch, once": once("expected m1 and m2 to have the same dtype, but got: float != c10::Half"),
}


def _judge_step(run, make, expected):
    model, sizes = run(make())
    if sizes != [SAMPLES] * STEPS:
        return f"batch {sizes[0]} instead of {SAMPLES}"
    same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(model.parameters(), expected.parameters()))
    return "yes" if same else "other weights"


def _judge_outside(run, expected, way):
    return "yes" if torch.allclose(run(way), expected(), rtol=1e-4, atol=1e-5) else "other results"


def _rows():
    """Each scenario's name, and a function from a way's name to a verdict."""
    expected, _ = with_bare(Fails())
    for scenario, make in STEP_ROWS.items():
        yield scenario, lambda way, make=make: _judge_step(WAYS[way][1], make, expected)
    for scenario, (run, undisturbed) in OUTSIDE.items():
        yield scenario, lambda way, run=run, undisturbed=undisturbed: _judge_outside(run, undisturbed, way)
    yield from RANKS.items()


def survival(wanted=""):
    """The table, printed row by row: `wanted` is a text that the names of rows have to contain."""
    table = {}
    print(" | ".join(["fault", *WAYS]))
    for scenario, judge in _rows():
        if wanted not in scenario:
            continue
        row = table[scenario] = {}
        for way, (module, _) in WAYS.items():
            if module is not None and importlib.util.find_spec(module) is None:
                row[way] = "not installed"
                continue
            try:
                row[way] = judge(way)
            except NotImplementedError as error:
                # A scenario raises one as well; where a way has no part in it, it says so itself.
                row[way] = f"no: {type(error).__name__}" if scenario in STEP_ROWS else "-"
            except Exception as error:
                row[way] = f"no: {type(error).__name__}"
        print(" | ".join([scenario, *row.values()]), flush=True)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="only rows whose name has this text")
    parser.add_argument("--json", help="a file for the table")
    arguments = parser.parse_args()
    found = survival(arguments.rows)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(found, indent=1))
