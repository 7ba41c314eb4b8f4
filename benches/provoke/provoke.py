"""Provokes errors on purpose and writes them down as labelled messages.

    python benches/provoke/provoke.py pytorch_cases onnxruntime_cases ... > round.jsonl

Each module beside this file holds functions marked with @case(kind): they use a framework wrongly, so that the kind of
the error follows from what was done, not from what the message says. Every case runs in a forked process of its own, because
some abort. A framework that is not installed, and a case that raises nothing here, are named on stderr and left out.
"""

import importlib
import json
import os
import pathlib
import sys
import tempfile
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parent))
CASES = []


def case(kind):
    def mark(function):
        CASES.append((function.__name__, kind, function))
        return function

    return mark


def provoked(function):
    """What the case wrote to stderr in a child process, and whether it failed."""
    with tempfile.TemporaryFile() as log:
        child = os.fork()
        if child == 0:
            os.dup2(log.fileno(), 2)
            os.dup2(log.fileno(), 1)
            code = 0
            try:
                function()
            except BaseException:
                traceback.print_exc()
                code = 1
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        log.seek(0)
        return log.read().decode(errors="replace"), status != 0


def message_of(stderr):
    """The last exception as Python prints it, without the frames; of an abort the last lines."""
    lines = stderr.rstrip().splitlines()
    start = max((i for i, line in enumerate(lines) if line.startswith("Traceback (most recent")), default=None)
    if start is None:
        return "\n".join(lines[-8:])
    first = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith(" "))
    return "\n".join(lines[first:])[:1500]


def without_own_paths(text):
    """The same text whoever provokes it, wherever the repository and the environment are."""
    here = str(pathlib.Path(__file__).resolve().parent)
    return text.replace(here, "/home/user/project").replace(sys.prefix, "/home/user/venv")


def main(modules):
    for module in modules:
        CASES.clear()
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{module}: not installed here: {error}", file=sys.stderr)
            continue
        for name, kind, function in CASES:
            stderr, failed = provoked(function)
            missing = "ModuleNotFoundError" in stderr
            if not failed or missing:
                why = "not installed here" if missing else "nothing was raised here"
                print(f"{module}.{name}: {why}", file=sys.stderr)
                continue
            row = {
                "message": without_own_paths(message_of(stderr)), "label": kind, "framework": module.removesuffix("_cases"),
                "source": f"provoked by benches/provoke/{module}.py, {name}"}
            print(json.dumps(row, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    sys.modules["provoke"] = sys.modules["__main__"]
    main(sys.argv[1:])
