"""What to write instead, in code, for each kind of fault and each framework that the traceback passes through.

Used by `_install` only. A remedy is lines of Python that a user can adapt; there is none where no code helps.
"""

from __future__ import annotations

# Frameworks by the first part of a module's name, the more specific first.
_FRAMEWORKS = {
    "transformers": "transformers",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "accelerate": "accelerate",
    "torch": "PyTorch",
}

_STEP = [
    "foot = surefoot.Footing()                    # chooses the device and survives its faults",
    "model = foot.place(model)",
    "loss = foot.step(model, optimizer, (x, y), lambda m, x, y: loss_fn(m(x), y))",
]

_PLACE = [
    "foot = surefoot.Footing()",
    "model = foot.place(model)",
    "for x, y in foot.batches(loader): ...        # each batch is where the model is",
]

# By kind, then by framework; "" is for every other one.
_REMEDIES: dict[str, dict[str, list[str]]] = {
    "out_of_memory": {
        "transformers": [
            "TrainingArguments(per_device_train_batch_size=batch // 4, gradient_accumulation_steps=4,",
            "                  gradient_checkpointing=True)   # the same effective batch, less memory",
        ],
        "Lightning": ["Trainer(accumulate_grad_batches=4)               # and a loader with a quarter of the batch"],
        "accelerate": [
            "Accelerator(gradient_accumulation_steps=4)       # and a loader with a quarter of the batch",
        ],
        "forward": [
            "@surefoot.guard(split=0)                     # splits the batch where it does not fit, and joins the results",
            "def predict(x): return model(x)",
        ],
        "": _STEP,
    },
    "device_mismatch": {"": _PLACE},
    "placeholder_storage": {"": _PLACE},
    "dtype_mismatch": {
        "": [
            "with torch.autocast(device.type, dtype=torch.bfloat16):   # casts both sides of each operation",
            "    y = model(x)                                           # or: x = x.to(next(model.parameters()).dtype)",
        ]
    },
    "unsupported_dtype": {"": ["x = x.to(torch.float32)                      # before it is moved to the device"]},
    "unsupported_op": {
        "": [
            "os.environ['PYTORCH_ENABLE_MPS_FALLBACK'] = '1'   # before torch is imported; MPS only",
            "y = operation(x.cpu()).to(x.device)               # anywhere else: this operation on the CPU",
        ]
    },
    "device_lost": {"": ["surefoot run --restarts 3 train.py           # in a shell: starts again from foot.resume(...)"]},
    "driver_or_init": {"": ["surefoot doctor --torch                      # in a shell: what each device can do"]},
    "numeric": {"": ["surefoot.audit(model, batch)                 # names the first layer with wrong numbers"]},
    "data_loading": {"": ["loader = surefoot.loader(dataset, batch_size=...)   # survives workers that die"]},
}


def framework_of(modules: list[str]) -> str:
    """The framework that the traceback passes through: the most specific one."""
    roots = {name.partition(".")[0] for name in modules}
    return next((name for root, name in _FRAMEWORKS.items() if root in roots), "PyTorch")


def remedy(kind: str, framework: str, trains: bool) -> list[str]:
    """Lines of code against a fault of this kind; `trains` if the code at fault computes gradients."""
    by_framework = _REMEDIES.get(kind, {})
    if framework in by_framework:
        return by_framework[framework]
    if not trains and "forward" in by_framework:
        return by_framework["forward"]
    return by_framework.get("", [])
