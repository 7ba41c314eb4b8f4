"""How often a quantised model behind an OpenAI interface is told from others by its log-probabilities alone.

    python benches/black_box.py SUREFOOT MODEL [--runs 20]

SUREFOOT is the program, MODEL a folder with one f32 file `model.safetensors`. Served are: the model as it is, in q8 and in q4, and copies in q4 that were changed
before: every matrix by noise of 1, 3 and 10 % of its own size, and one matrix in the middle by 10 %. Each is compared with each form
of the model (`surefoot compare MODEL URL --weights FORM`), every run with challenges of its own. The only cells where SAME is right
are those of the model in the same form. Needs numpy.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import tempfile

import numpy as np

FORMS = ["as-stored", "q8", "q4"]


def changed(model, folder, share, only=None):
    """A copy of `model` whose matrices have noise of `share` of their own size."""
    shutil.copytree(model, folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as file:
        data = bytearray(file.read())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    random = np.random.default_rng(1)
    matrices = sorted(name for name, tensor in header.items() if len(tensor["shape"]) == 2)
    if only is not None:
        blocks = [name for name in matrices if ".layers." in name or ".h." in name]
        matrices = [blocks[int(len(blocks) * only)]]
    for name in matrices:
        assert header[name]["dtype"] == "F32", f"{name} is not in f32"
        begin, end = (start + at for at in header[name]["data_offsets"])
        numbers = np.frombuffer(bytes(data[begin:end]), np.float32)
        noise = random.standard_normal(numbers.size, dtype=np.float32) * numbers.std() * np.float32(share)
        data[begin:end] = (numbers + noise).astype(np.float32).tobytes()
    with open(path, "wb") as file:
        file.write(data)
    return folder


def serve(surefoot, model, form):
    """A server of its own, and its address once it says it."""
    command = [surefoot, "serve", model, "--weights", form, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if found := re.search(r"http://[\d.:]+", line):
            return process, found.group() + "/v1"
    raise SystemExit(f"{' '.join(command)} did not start")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefoot")
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=20)
    arguments = parser.parse_args()
    verdicts = {0: "SAME", 1: "DIFFERENT", 4: "UNDECIDED"}
    wrong = {"SAME": [0, 0], "DIFFERENT": [0, 0]}
    with tempfile.TemporaryDirectory() as folder:
        served = [(form, arguments.model, form) for form in FORMS]
        for share in [0.01, 0.03, 0.1]:
            copy = changed(arguments.model, os.path.join(folder, f"noise-{share}"), share)
            served.append((f"q4 of a copy with {share:.0%} noise", copy, "q4"))
        copy = changed(arguments.model, os.path.join(folder, "one"), 0.1, only=0.5)
        served.append(("q4 of a copy with 10% noise in one matrix", copy, "q4"))
        print("| served | " + " | ".join(f"against {form}" for form in FORMS) + " |")
        print("| --- |" + " --- |" * len(FORMS))
        for name, model, form in served:
            process, url = serve(arguments.surefoot, model, form)
            cells = []
            for reference in FORMS:
                counts = dict.fromkeys(verdicts.values(), 0)
                for run in range(arguments.runs):
                    command = [arguments.surefoot, "compare", arguments.model, url, "--weights", reference,
                               "--run-id", f"black box {run}", "--json"]
                    done = subprocess.run(command, capture_output=True, text=True)
                    if done.returncode not in verdicts:
                        raise SystemExit(done.stderr)
                    counts[verdicts[done.returncode]] += 1
                expected = "SAME" if (model, form) == (arguments.model, reference) else "DIFFERENT"
                wrong[expected][0] += counts["SAME" if expected == "DIFFERENT" else "DIFFERENT"]
                wrong[expected][1] += arguments.runs
                cells.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
            process.terminate()
            process.wait()
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    print(f"false DIFFERENT: {wrong['SAME'][0]} of {wrong['SAME'][1]}; false SAME: {wrong['DIFFERENT'][0]} of {wrong['DIFFERENT'][1]}")


if __name__ == "__main__":
    main()
