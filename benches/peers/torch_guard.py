#!/usr/bin/env python3
"""What guarding a PyTorch training step costs, and who survives which fault.

    python benches/peers/torch_guard.py                 # on the processor
    python benches/peers/torch_guard.py --device cuda   # and with batches that really don't fit
    python benches/peers/torch_guard.py --only overhead,survival,rate --json figures.json

overhead: the CNN and the GPT of train.py, a step of bare PyTorch and a guarded one in turns: medians, the median of the ratios of each
pair, and the ratio of the processor time that both took, which other programs on the machine disturb less.
survival: scenarios x ways to guard; the fault is raised as PyTorch raises it, by the loss function or the optimizer, and what
counts is whether training ends, with the same effective batch and with equal weights; besides, an out-of-memory in validation, a worker and a
process that are killed (for real), where the results count. accelerate's
find_executable_batch_size, torch-max-mem and Lightning's batch size finder are tried where they are installed. Composer is not
among them: it needs PyTorch below 2.7.1.
rate (CUDA only): a batch four times too large for the memory that is left, against the best micro-batch found by hand.
"""

import argparse
import copy
import gc
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from train import Cnn, Gpt  # noqa: E402

import surefoot  # noqa: E402

warnings.simplefilter("ignore", surefoot.SurefootWarning)


def cnn(device, batch=32):
    torch.manual_seed(0)
    x, y = torch.randn(batch, 3, 32, 32, device=device), torch.randint(0, 10, (batch,), device=device)
    return Cnn().to(device), (x, y), lambda m, x, y: F.cross_entropy(m(x), y)


def gpt(device, batch=8, tokens=128):
    torch.manual_seed(0)
    model = Gpt().to(device)
    x = torch.randint(0, 96, (batch, tokens), device=device)
    return model, (x, x.roll(-1, 1)), lambda m, x, y: F.cross_entropy(m(x), y.flatten())


def bare_step(model, optimizer, batch, loss_fn):
    loss = loss_fn(model, *batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def wait(device):
    if device != "cpu":
        torch.cuda.synchronize()


def overhead(device, rounds):
    """Ratios of a guarded step over a bare one, each timed in turn on models of their own."""
    figures = {}
    for name, make in (("cnn", cnn), ("gpt", gpt)):
        plain, batch, loss_fn = make(device)
        guarded = copy.deepcopy(plain)
        foot = surefoot.Footing(device=device)
        ours, theirs = (torch.optim.AdamW(m.parameters(), lr=1e-4) for m in (guarded, plain))
        steps = {
            "bare": lambda: bare_step(plain, theirs, batch, loss_fn),
            "guarded": lambda: foot.step(guarded, ours, batch, loss_fn),
        }
        times, busy = {kind: [] for kind in steps}, {kind: [] for kind in steps}
        for round_ in range(rounds + 3):
            # Which of the two comes first changes, since the first finds colder caches.
            for kind in sorted(steps, reverse=round_ % 2 == 1):
                wait(device)
                start, start_busy = time.perf_counter(), time.process_time()
                steps[kind]()
                wait(device)
                if round_ >= 3:
                    times[kind].append(time.perf_counter() - start)
                    busy[kind].append(time.process_time() - start_busy)
        # A pair was measured within a moment, so what else the machine did is in both.
        ratio = statistics.median(g / b for g, b in zip(times["guarded"], times["bare"]))
        medians = {kind: statistics.median(values) * 1e3 for kind, values in times.items()}
        of_busy = statistics.median(busy["guarded"]) / statistics.median(busy["bare"])
        figures[name] = {**medians, "ratio": ratio, "ratio_of_processor_time": of_busy}
        print(f"{name:4} bare {medians['bare']:8.2f} ms   guarded {medians['guarded']:8.2f} ms   ratio {ratio:.4f}   of processor time {of_busy:.4f}")
    return figures


OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
METAL = "MPS backend out of memory (MPS allocated: 8.87 GB, other allocations: 192.00 KB, max allowed: 9.07 GB)."
SAMPLES, STEPS = 16, 4


def _out_of_memory(message=OUT_OF_MEMORY):
    return torch.OutOfMemoryError(message) if message == OUT_OF_MEMORY else RuntimeError(message)


class Fails:
    """What fails, when, as PyTorch would: `room` is the batch that fits, the rest is by the number of the step."""

    def __init__(self, room=None, message=OUT_OF_MEMORY, backward_at=None, optimizer_at=None, always=None):
        self.room, self.message, self.always = room, message, always
        self.backward_at, self.optimizer_at = backward_at, optimizer_at
        self.step = 0

    def loss(self, model, x, y):
        if self.always is not None:
            raise self.always
        if self.room is not None and len(x) > self.room:
            raise _out_of_memory(self.message)
        loss = F.cross_entropy(model(x), y)
        if self.backward_at == self.step and len(x) > SAMPLES // 2:
            loss.register_hook(self._fail)
        return loss

    def _fail(self, grad):
        raise _out_of_memory(self.message)


class HalfWay(torch.optim.Adam):
    """Adam that runs out of memory after half of its parameters, once, at the second update."""

    fails = None

    def step(self, closure=None):
        if self.fails is not None and self.fails.optimizer_at == self.fails.step:
            self.fails.optimizer_at = None
            parameters = self.param_groups[0]["params"]
            grads = [p.grad for p in parameters]
            for parameter in parameters[len(parameters) // 2 :]:
                parameter.grad = None
            super().step()
            for parameter, grad in zip(parameters, grads):
                parameter.grad = grad
            raise _out_of_memory()
        return super().step(closure)


SCENARIOS = {
    "OOM in forward": lambda: Fails(room=4),
    "OOM in backward": lambda: Fails(backward_at=1),
    "OOM in optimizer, half-way": lambda: Fails(optimizer_at=1),
    "MPS: out of memory": lambda: Fails(room=4, message=METAL),
    "MPS: placeholder storage, once": lambda: Once(RuntimeError("Placeholder storage has not been allocated on MPS device!")),
    "MPS: command buffer, once": lambda: Once(RuntimeError("[MPSCommandBuffer] command buffer exited with error status: Internal Error (0000000e:Internal Error)")),
    "device mismatch, once": lambda: Once(RuntimeError("Expected all tensors to be on the same device, but found at least two devices, mps:0 and cpu!")),
}


class Once(Fails):
    """An error that passes: at the second step, once."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def loss(self, model, x, y):
        if self.step == 1 and self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().loss(model, x, y)


def problem():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 4, (SAMPLES,), generator=generator)) for _ in range(STEPS)]
    return model, HalfWay(model.parameters(), lr=0.05), data


def train(step, fails, batch_size=SAMPLES):
    """Trains with `step`; gives the model and the sizes of the batches that led to an update."""
    model, optimizer, data = problem()
    optimizer.fails = fails
    rows = [(x, y) for batch in data for x, y in zip(*batch)]
    sizes = []
    for start in range(0, len(rows), batch_size):
        fails.step = start // batch_size
        part = rows[start : start + batch_size]
        step(model, optimizer, (torch.stack([x for x, _ in part]), torch.stack([y for _, y in part])), fails)
        sizes.append(len(part))
    return model, sizes


def by_hand(model, optimizer, batch, fails):
    bare_step(model, optimizer, batch, fails.loss)


def with_bare(fails):
    return train(by_hand, fails)


def with_surefoot(fails):
    foot = surefoot.Footing(device="cpu")
    return train(lambda m, o, b, f: foot.step(m, o, b, f.loss), fails)


def with_accelerate(fails):
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=SAMPLES)
    def run(batch_size):
        return train(by_hand, fails, batch_size)

    return run()


def with_torch_max_mem(fails):
    from torch_max_mem import maximize_memory_utilization

    @maximize_memory_utilization()
    def run(*, batch_size):
        return train(by_hand, fails, batch_size)

    result = run(batch_size=SAMPLES)
    return result[0] if isinstance(result, tuple) and isinstance(result[0], tuple) else result


def with_lightning(fails):
    """Lightning's finder halves the batch until one trial fits, then trains with what it found."""
    import logging

    import lightning
    from lightning.pytorch.tuner import Tuner

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, optimizer, data = problem()
    optimizer.fails = fails
    whole = torch.utils.data.TensorDataset(*(torch.cat(column) for column in zip(*data)))
    sizes = []

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.batch_size = model, SAMPLES

        def training_step(self, batch, at):
            fails.step = at
            return fails.loss(self.model, *batch)

        def on_train_batch_end(self, outputs, batch, at):
            sizes.append(len(batch[0]))

        def configure_optimizers(self):
            return optimizer

        def train_dataloader(self):
            return torch.utils.data.DataLoader(whole, batch_size=self.batch_size)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    module = Module()
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet)
    Tuner(trainer).scale_batch_size(module, mode="power", init_val=SAMPLES, steps_per_trial=1)
    sizes.clear()
    lightning.Trainer(accelerator="cpu", max_epochs=1, **quiet).fit(module)
    return model, sizes


WAYS = {
    "bare PyTorch": (None, with_bare),
    "accelerate": ("accelerate", with_accelerate),
    "torch-max-mem": ("torch_max_mem", with_torch_max_mem),
    "Lightning's finder": ("lightning", with_lightning),
    "Surefoot": (None, with_surefoot),
}


def survival():
    """Who survives what: yes means with the same effective batch and equal weights."""
    expected, _ = with_bare(Fails())
    table = {}
    for scenario, make in SCENARIOS.items():
        table[scenario] = {}
        for way, (module, run) in WAYS.items():
            if module is not None and importlib.util.find_spec(module) is None:
                table[scenario][way] = "not installed"
                continue
            try:
                model, sizes = run(make())
            except Exception as error:
                table[scenario][way] = f"no: {type(error).__name__}"
                continue
            same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(model.parameters(), expected.parameters()))
            if sizes != [SAMPLES] * STEPS:
                table[scenario][way] = f"batch {sizes[0]} instead of {SAMPLES}"
            else:
                table[scenario][way] = "yes" if same else "other weights"
    table |= outside_of_steps()
    width = max(map(len, table))
    print(f"{'':{width}}  " + "  ".join(f"{way:>24}" for way in WAYS))
    for scenario, row in table.items():
        print(f"{scenario:{width}}  " + "  ".join(f"{row[way]:>24}" for way in WAYS))
    return table


# What happens outside a training step. Each way gives what it got, or raises; it has to be equal to the undisturbed result.


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
from torch_guard import Fails, problem
model, optimizer, data = problem()
foot = surefoot.Footing(device="cpu", checkpoint="state.pt")
guarded = sys.argv[1] == "guarded"
begin = foot.resume(model, optimizer) if guarded else 0
for at in range(begin, len(data)):
    if at == 2 and not Path("mark").exists():
        Path("mark").touch()
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


def killed_process(way):
    """The weights of a script that is killed in its third step."""
    program = os.environ.get("SUREFOOT_PROGRAM") or shutil.which("surefoot", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if way == "Surefoot" and program is None:
        raise FileNotFoundError("surefoot")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "script.py").write_text(KILLED.format(here=str(Path(__file__).parent)))
        starts = {"Surefoot": [program, "run", "--restarts", "2", "--python", sys.executable], "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--cpu"]}
        command = [*starts.get(way, [sys.executable]), "script.py", "guarded" if way == "Surefoot" else "bare"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return torch.cat([weights.flatten() for weights in torch.load(Path(folder) / "weights.pt")])


def undisturbed_outputs():
    model, _, data = problem()
    with torch.no_grad():
        return model(torch.cat([x for x, _ in data]))


OTHERS = {
    "OOM in validation": (validation, undisturbed_outputs),
    "a worker that loads data is killed": (dead_worker, lambda: torch.arange(16.0)),
    "the process is killed": (killed_process, lambda: torch.cat([p.detach().flatten() for p in with_bare(Fails())[0].parameters()])),
}


def outside_of_steps():
    table = {}
    for scenario, (run, expected) in OTHERS.items():
        table[scenario] = {}
        for way, (module, _) in WAYS.items():
            if module is not None and importlib.util.find_spec(module) is None:
                table[scenario][way] = "not installed"
                continue
            try:
                found = run(way)
                table[scenario][way] = "yes" if torch.allclose(found, expected(), rtol=1e-4, atol=1e-5) else "other results"
            except NotImplementedError:
                table[scenario][way] = "-"
            except Exception as error:
                table[scenario][way] = f"no: {type(error).__name__}"
    return table


def rate(device, seconds=25.0):
    """Samples/s with a batch that is four times too large, against the best micro-batch by hand."""
    layers, width, tokens = 12, 1024, 512
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    head = torch.nn.Linear(width, width).to(device)
    whole = torch.nn.Sequential(model, head)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-5, fused=True)

    def loss_fn(m, x):
        return m(x).square().mean()

    def make(samples):
        return torch.randn(samples, tokens, width, device=device)

    # A small share of the card, so that the search by hand takes seconds.
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 16 * 2**30 / total))

    def hand(micro, samples, count):
        batch = make(samples)
        for _ in range(count):
            for part in batch.split(micro):
                (loss_fn(whole, part) * (len(part) / samples)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    fits, size = 1, 1
    while True:
        try:
            hand(size, size, 1)
            fits, size = size, size * 2
        except torch.OutOfMemoryError:
            pass
        else:
            continue
        gc.collect()
        torch.cuda.empty_cache()
        optimizer.zero_grad(set_to_none=True)
        break
    samples = 4 * fits
    best = {}
    for micro in sorted({fits, fits // 2 or 1, max(1, 3 * fits // 4), fits // 4 or 1}):
        torch.cuda.synchronize()
        try:
            hand(micro, samples, 1)
            torch.cuda.synchronize()
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < seconds / 5:
                hand(micro, samples, 1)
                torch.cuda.synchronize()
                count += 1
            best[micro] = count * samples / (time.perf_counter() - start)
        except torch.OutOfMemoryError:
            gc.collect()
            torch.cuda.empty_cache()
            optimizer.zero_grad(set_to_none=True)
    foot = surefoot.Footing(device=device)
    batch = make(samples)
    start = time.perf_counter()
    foot.step(whole, optimizer, (batch,), loss_fn)
    torch.cuda.synchronize()
    first, found = time.perf_counter() - start, foot.last
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        foot.step(whole, optimizer, (batch,), loss_fn)
        torch.cuda.synchronize()
        count += 1
    ours = count * samples / (time.perf_counter() - start)
    micro, by_hand_rate = max(best.items(), key=lambda item: item[1])
    torch.cuda.set_per_process_memory_fraction(1.0)
    print(
        f"batch {samples}, of which {fits} fit: by hand {by_hand_rate:.1f} samples/s in micro-batches of {micro}; "
        f"guarded {ours:.1f} samples/s in {foot.last.parts} parts, ratio {ours / by_hand_rate:.4f}; "
        f"first step {first:.2f} s, {found.attempts} attempts, rungs {', '.join(found.rungs)}"
    )
    return {"batch": samples, "fits": fits, "by_hand": by_hand_rate, "micro": micro, "guarded": ours, "ratio": ours / by_hand_rate, "first_step_s": first, "attempts": found.attempts, "by_hand_all": best}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30, help="pairs of steps that are timed for each model")
    parser.add_argument("--only", default="overhead,survival,rate")
    parser.add_argument("--json", help="a file for the figures")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    where = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else f"{torch.get_num_threads()} threads"
    print(f"PyTorch {torch.__version__}, surefoot {surefoot.__version__}, {arguments.device}: {where}")
    figures = {"torch": torch.__version__, "device": where}
    if "overhead" in wanted:
        figures["overhead"] = overhead(arguments.device, arguments.rounds)
    if "survival" in wanted:
        figures["survival"] = survival()
    if "rate" in wanted and arguments.device.startswith("cuda"):
        figures["rate"] = rate(arguments.device)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
