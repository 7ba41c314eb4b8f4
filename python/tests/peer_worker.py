"""One rank of the tests in test_peers.py: trains a small model with DistributedDataParallel on gloo.

Called with a JSON object: `runs` (each with a drill and the rank it strikes), `die_at`, `checkpoint` and `save` (rank 0 saves after each
step, and the rank that dies waits for it: torchrun ends the others as soon as one died, on a busy machine before they have saved). Prints a JSON line
per run: the hash of the weights, the number of faults, the seconds.
"""

import hashlib
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F

import surefoot

settings = json.loads(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        self.unused = torch.nn.Linear(2, 2)
        self.sometimes = torch.nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        y = self.layers(x)
        # A branch that only rank 0 takes: its gradient has to reach the other ranks as well.
        return y + self.sometimes(x) if rank == 0 else y


def batch(step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def loss_fn(m, x, y):
    return F.cross_entropy(m(x), y)


def digest(model):
    content = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return hashlib.sha256(content).hexdigest()




def saved_steps():
    """How many steps the checkpoint holds; None while there is none."""
    path = settings["checkpoint"]
    return torch.load(path, weights_only=True)["steps"] if os.path.exists(path) else None


for run in settings["runs"]:
    torch.manual_seed(3)
    model = torch.nn.parallel.DistributedDataParallel(Net(), find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    drill = run.get("drill") if run.get("rank") == rank else None
    foot = surefoot.Footing(
        device="cpu", drill=drill, checkpoint=settings.get("checkpoint"), peer_timeout=30, on_fault=run.get("on_fault", "recover")
    )
    start, faults, loss = time.monotonic(), [], 0.0
    first = foot.resume(model, optimizer) if settings.get("checkpoint") else 0
    try:
        for step in range(first, 6):
            if settings.get("die_at") == [rank, step] and not first:
                while settings.get("save") and saved_steps() != step:
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)
            if run.get("bare"):
                optimizer.zero_grad()
                loss_fn(model, *batch(step)).backward()
                optimizer.step()
            else:
                loss = foot.step(model, optimizer, batch(step), loss_fn, accumulate=run.get("accumulate", 1)).item()
                faults += foot.last.faults
                if settings.get("save") and rank == 0:
                    foot.save(model, optimizer)
        error = None
    except surefoot.Fault as fault:
        error = f"{type(fault).__name__}: {fault}"
    line = {"rank": rank, "weights": digest(model.module), "faults": len(faults), "seconds": time.monotonic() - start, "error": error, "first": first}
    values = torch.cat([p.detach().reshape(-1) for p in model.module.parameters()])
    line["values"] = [round(value, 5) for value in values.tolist()]
    sys.stdout.write(json.dumps(line) + "\n")  # one write, since ranks share the pipe
    sys.stdout.flush()
    if error is not None:
        sys.exit(3)
dist.destroy_process_group()
