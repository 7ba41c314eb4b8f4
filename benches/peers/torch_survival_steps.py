"""Faults inside training steps, raised as PyTorch raises them, and the ways to guard against them.

Each way trains the same small problem and gives the model and the sizes of the batches that led to an update.
"""

import warnings

import torch
from torch.nn import functional as F

import surefoot

warnings.simplefilter("ignore", surefoot.SurefootWarning)


def bare_step(model, optimizer, batch, loss_fn):
    loss = loss_fn(model, *batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


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


def problem(rank=0):
    """A model, its optimizer and the batches of one rank: the same for every way, and the same model on every rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    generator = torch.Generator().manual_seed(1 + rank)
    data = [(torch.randn(SAMPLES, 8, generator=generator), torch.randint(0, 4, (SAMPLES,), generator=generator)) for _ in range(STEPS)]
    return model, HalfWay(model.parameters(), lr=0.05), data


def train(step, fails, batch_size=SAMPLES, rank=0, wrap=lambda model: model):
    """Trains with `step`; gives the model and the sizes of the batches that led to an update."""
    model, optimizer, data = problem(rank)
    model = wrap(model)
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
    # Two devices, as a Mac has them: what the first can't do, the second can.
    foot = surefoot.Footing(device="cpu,cpu:1")
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


def composer_trainer(model, optimizer, loader, fails, sizes):
    """Composer's trainer with `device_train_microbatch_size="auto"`. It refuses that on the CPU, so its check is lifted."""
    from composer import Callback, ComposerModel, Trainer
    from composer.trainer import trainer

    trainer._is_auto_microbatching = lambda size, device: size == "auto"

    class Module(ComposerModel):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, batch):
            return batch

        def loss(self, outputs, batch):
            return fails.loss(self.inner, *batch)

    class Counts(Callback):
        whole = 0

        def batch_start(self, state, logger):
            fails.step = int(state.timestamp.batch)
            self.whole = len(state.batch[0])

        def batch_end(self, state, logger):
            sizes.append(self.whole)  # the batch that led to the update; by now it is the last micro-batch

    quiet = {"progress_bar": False, "log_to_console": False, "loggers": []}
    return Trainer(
        model=Module(), optimizers=optimizer, train_dataloader=loader, max_duration="1ep", device="cpu",
        device_train_microbatch_size="auto", callbacks=[Counts()], seed=0, **quiet,
    )


def with_composer(fails):
    model, optimizer, data = problem()
    optimizer.fails = fails
    whole = torch.utils.data.TensorDataset(*(torch.cat(column) for column in zip(*data)))
    sizes = []
    composer_trainer(model, optimizer, torch.utils.data.DataLoader(whole, batch_size=SAMPLES), fails, sizes).fit()
    return model, sizes
