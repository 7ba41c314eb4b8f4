"""One of two ranks runs out of memory: `torchrun` with two processes and gloo on the CPU, for each way to guard.

Run as a program by torchrun, it is one rank: `torch_survival_ranks.py WAY MOMENT FOLDER` trains and writes its weights and the sizes of its
batches to FOLDER. `RANKS` has a function for each moment, from a way's name to a verdict. Rank 1 fails at its second step as long as
its batch is whole; the time limit is what tells a job that waits for ever from a slow one.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch_survival_steps import SAMPLES, STEPS, Fails, by_hand, composer_trainer, problem, train

LIMIT_S = 150


class FailsInForward(Fails):
    """Out of memory in the forward pass of the second step, while the batch is whole."""

    def loss(self, model, x, y):
        self.room = SAMPLES // 2 if self.step == 1 else None
        return super().loss(model, x, y)


FAULTS = {"none": Fails, "forward": FailsInForward, "backward": lambda: Fails(backward_at=1)}


def parallel(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def with_bare(fails, rank):
    return train(by_hand, fails, rank=rank, wrap=parallel)


def with_surefoot(fails, rank):
    import surefoot

    foot = surefoot.Footing(device="cpu")
    return train(lambda m, o, b, f: foot.step(m, o, b, f.loss), fails, rank=rank, wrap=parallel)


def with_accelerate(fails, rank):
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size

    accelerator = Accelerator(cpu=True)

    @find_executable_batch_size(starting_batch_size=SAMPLES)
    def run(batch_size):
        accelerator.free_memory()
        return train(by_hand, fails, batch_size, rank=rank, wrap=accelerator.prepare)

    return run()


def with_torch_max_mem(fails, rank):
    from torch_max_mem import maximize_memory_utilization

    run = maximize_memory_utilization()(lambda *, batch_size: train(by_hand, fails, batch_size, rank=rank, wrap=parallel))
    result = run(batch_size=SAMPLES)
    return result[0] if isinstance(result, tuple) and isinstance(result[0], tuple) else result


def with_composer(fails, rank):
    model, optimizer, _ = problem(rank)
    # Its trainer wants a DistributedSampler, which gives rank r every second sample from r on: so that each gets its own.
    columns = zip(*(map(torch.cat, zip(*problem(other)[2])) for other in range(2)))
    whole = torch.utils.data.TensorDataset(*(torch.stack(column, 1).flatten(0, 1) for column in columns))
    sampler = torch.utils.data.DistributedSampler(whole, num_replicas=2, rank=rank, shuffle=False)
    sizes = []
    loader = torch.utils.data.DataLoader(whole, batch_size=SAMPLES, sampler=sampler)
    composer_trainer(model, optimizer, loader, fails, sizes).fit()
    return model, sizes


WAYS = {
    "bare PyTorch": with_bare,
    "accelerate": with_accelerate,
    "torch-max-mem": with_torch_max_mem,
    "Composer": with_composer,
    "Surefoot": with_surefoot,
}


def one_rank(way, moment, folder):
    rank = int(os.environ["RANK"])
    if way != "Composer":
        dist.init_process_group("gloo")
    model, sizes = WAYS[way](FAULTS[moment]() if rank == 1 else Fails(), rank)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.save({"weights": weights, "sizes": sizes}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


def _job(way, moment, limit):
    """What each rank wrote; raises if the job failed or did not end."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), "CUDA_VISIBLE_DEVICES": ""}
        command = [*launch, __file__, way, moment, folder]
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True) as job:
            try:
                _, said = job.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, 9)
                raise
        if job.returncode != 0:
            if os.environ.get("SURVIVAL_VERBOSE"):
                print(said[-3000:], file=sys.stderr)
            raise RuntimeError("the job failed")
        return [torch.load(Path(folder) / f"{rank}.pt") for rank in range(2)]


def verdict(way, moment):
    if way not in WAYS:
        raise NotImplementedError("its finder tries batches of one process")
    try:
        found = _job(way, moment, LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"hangs (ended after {LIMIT_S} s)"
    sizes = [rank["sizes"] for rank in found]
    if any(size != [SAMPLES] * STEPS for size in sizes):
        return f"batch {sizes[1][0]} instead of {SAMPLES}"
    expected = _job("bare PyTorch", "none", 4 * LIMIT_S)
    same = all(torch.allclose(a["weights"], b["weights"], rtol=1e-4, atol=1e-5) for a, b in zip(found, expected))
    return "yes" if same else "other weights"


RANKS = {
    "one of two ranks: OOM in forward": lambda way: verdict(way, "forward"),
    "one of two ranks: OOM in backward": lambda way: verdict(way, "backward"),
}

if __name__ == "__main__":
    one_rank(*sys.argv[1:])
