"""Faults outside training steps: validation, and workers and processes that really die.

Each way gives what it got, or raises; it has to be equal to the undisturbed result.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch_survival_steps import SAMPLES, Fails, _out_of_memory, problem, with_bare

import surefoot


def validation(way):
    """All samples in one batch, of which a quarter fits; the outputs count."""
    model, _, data = problem()
    x = torch.cat([x for x, _ in data])

    def outputs(x):
        if len(x) > len(data) * SAMPLES // 4:
            raise _out_of_memory()
        with torch.no_grad():
            return model(x)

    def in_batches(batch_size):
        return torch.cat([outputs(part) for part in x.split(batch_size)])

    if way == "Surefoot":
        return surefoot.Footing(device="cpu").guard(outputs, split=0)(x)
    if way == "accelerate":
        from accelerate.utils import find_executable_batch_size

        return find_executable_batch_size(in_batches, starting_batch_size=len(x))()
    if way == "torch-max-mem":
        from torch_max_mem import maximize_memory_utilization

        found = maximize_memory_utilization()(lambda *, batch_size: in_batches(batch_size))(batch_size=len(x))
        return found[0] if isinstance(found, tuple) else found
    if way == "Lightning's finder":
        raise NotImplementedError("its finder runs training batches")
    if way == "Composer":
        raise NotImplementedError("its trainer has no call for outputs")
    return outputs(x)


class KillsItsWorker(torch.utils.data.Dataset):
    """Sample 5 kills the process that loads it, once."""

    def __init__(self, mark):
        self.mark, self.home = mark, os.getpid()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 5 and os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(float(index))


def dead_worker(way):
    """The batches of an epoch whose loader loses a worker."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = KillsItsWorker(Path(folder) / "mark")
        if way == "Surefoot":
            return torch.cat(list(surefoot.loader(dataset, batch_size=4, workers=2)))
        loader = torch.utils.data.DataLoader(dataset, batch_size=4, num_workers=2)
        if way == "accelerate":
            from accelerate import Accelerator

            loader = Accelerator(cpu=True).prepare(loader)
        if way == "Lightning's finder":
            import lightning

            loader = lightning.Fabric(accelerator="cpu").setup_dataloaders(loader)
        return torch.cat(list(loader))


KILLED = """
import os, signal, sys, torch, surefoot
from pathlib import Path
sys.path.insert(0, {here!r})
from torch_survival_steps import Fails, problem
model, optimizer, data = problem()
foot = surefoot.Footing(device="cpu", checkpoint="state.pt")
guarded = sys.argv[1] == "guarded"
begin = foot.resume(model, optimizer) if guarded else 0
for at in range(begin, len(data)):
    if at == 2 and not Path("mark").exists():
        Path("mark").touch()
        if sys.argv[2] == "abort":
            print("MPSNDArray.mm:850: failed assertion `total bytes of NDArray > 2**32'", file=sys.stderr)
            os.abort()
        os.kill(os.getpid(), signal.SIGKILL)
    loss = Fails().loss
    if guarded:
        foot.step(model, optimizer, data[at], loss)
        foot.save(model, optimizer)
    else:
        loss(model, *data[at]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
torch.save([p.detach() for p in model.parameters()], "weights.pt")
"""


def killed_process(way, how="kill"):
    """The weights of a script that is killed, or aborts as under Metal's assertions, in its third step."""
    program = os.environ.get("SUREFOOT_PROGRAM") or shutil.which("surefoot", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if way == "Surefoot" and program is None:
        raise FileNotFoundError("surefoot")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.py").write_text(KILLED.format(here=str(Path(__file__).parent)))
        starts = {"Surefoot": [program, "run", "--restarts", "2", "--python", sys.executable], "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]}
        command = [*starts.get(way, [sys.executable]), "script.py", "guarded" if way == "Surefoot" else "bare", how]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return torch.cat([weights.flatten() for weights in torch.load(Path(folder) / "weights.pt")])


def undisturbed_outputs():
    model, _, data = problem()
    with torch.no_grad():
        return model(torch.cat([x for x, _ in data]))


def final_weights():
    return torch.cat([p.detach().flatten() for p in with_bare(Fails())[0].parameters()])


OUTSIDE = {
    "OOM in validation": (validation, undisturbed_outputs),
    "a worker that loads data is killed": (dead_worker, lambda: torch.arange(16.0)),
    "MPS: an assertion of Metal aborts the process": (lambda way: killed_process(way, "abort"), final_weights),
    "the process is killed": (killed_process, final_weights),
}
