"""What `surefoot export` writes, read by the programs it is written for.

    python benches/peers/export.py SUREFOOT

Trains a small mlp (classes and numbers), cnn and gpt, exports them, and compares: ONNX Runtime's
outputs with `surefoot predict`, transformers' logits and greedy tokens with `surefoot forward` and
`surefoot generate` on the checkpoint itself. Reads the TensorBoard event files of a run with
TensorBoard. Exits with 1 if anything differs. Needs numpy, onnxruntime, torch, transformers,
safetensors and tensorboard.
"""

import csv
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy
import onnxruntime
import torch
import transformers
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

LINE = "the quick brown fox jumps over the lazy dog, and then it sleeps. "


def main(program):
    program = os.path.abspath(program)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)

        def surefoot(*arguments):
            done = subprocess.run([program, *arguments], capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"surefoot {' '.join(arguments)}\n{done.stderr}")
            return done.stdout

        def trained(name, config, *more):
            with open(f"{name}.yaml", "w") as file:
                file.write(config)
            told = surefoot("train", f"{name}.yaml", "--json", *more)
            return json.loads(told.splitlines()[-1])["checkpoint"]

        worst = {}
        worst["mlp, classes"] = table(surefoot, trained, "side", lambda x, y: ["left", "right"][x + y > 0])
        worst["mlp, numbers"] = table(surefoot, trained, "sum", lambda x, y: round(3 * x - 2 * y + 100, 4))
        worst["cnn"] = images(surefoot, trained)
        worst["gpt"] = text(surefoot, trained)
        curves(trained)
    print("largest difference")
    failed = False
    for name, difference in worst.items():
        good = difference < 2e-5
        failed |= not good
        print(f"  {name:14} {difference:.1e} {'equal' if good else 'DIFFERENT'}")
    sys.exit(1 if failed else 0)


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def table(surefoot, trained, label, target):
    """A table's predictions; the columns have different scales, so normalisation matters."""
    points = [(math.sin(at * 1.3) * 2, math.cos(at * 0.7)) for at in range(300)]
    with open(f"{label}.csv", "w") as file:
        file.write(f"x,y,{label}\n")
        file.writelines(f"{x * 1000},{y},{target(x, y)}\n" for x, y in points)
    checkpoint = trained(
        label,
        f"{{data: {{kind: csv, path: {label}.csv, label: {label}}}, model: {{kind: mlp, hidden: [16, 8]}},"
        " batch_size: 32, epochs: 5, optimizer: {lr: 0.01}}",
    )
    surefoot("export", checkpoint, "--to", "onnx", "--out", f"{label}-onnx")
    predicted = json.loads(surefoot("predict", checkpoint, f"{label}.csv", "--top", "2", "--json"))
    network = session(f"{label}-onnx/model.onnx")
    columns = json.loads(network.get_modelmeta().custom_metadata_map["surefoot.columns"])
    with open(f"{label}.csv") as file:
        rows = [[float(row[column]) for column in columns] for row in csv.DictReader(file)]
    got = network.run(None, {"input": numpy.array(rows, numpy.float32)})
    if label == "sum":
        ours = numpy.array([line["value"] for line in predicted["predictions"]])
        return float(numpy.abs(got[0][:, 0] - ours).max() / numpy.abs(ours).max())
    classes = json.loads(network.get_modelmeta().custom_metadata_map["surefoot.classes"])
    return probabilities(predicted, classes, got[1])


def probabilities(predicted, classes, theirs):
    largest = 0.0
    for line, row in zip(predicted["predictions"], theirs):
        for entry in line["top"]:
            largest = max(largest, abs(entry["probability"] - float(row[classes.index(entry["label"])])))
    return largest


def images(surefoot, trained):
    from PIL import Image

    generator = numpy.random.default_rng(1)
    pixels = []
    for name, bright in [("dark", 60), ("light", 160)]:
        os.makedirs(f"images/{name}")
        for at in range(24):
            image = generator.integers(0, 90, (12, 12, 3)) + bright
            pixels.append(image.astype(numpy.float32) / 255)
            Image.fromarray(image.astype(numpy.uint8)).save(f"images/{name}/{at:02}.png")
    checkpoint = trained(
        "images",
        "{data: {kind: folder, path: images, size: 12, channels: 3}, model: {kind: cnn, width: 8, stages: 3},"
        " batch_size: 16, epochs: 2, optimizer: {lr: 0.001}}",
    )
    surefoot("export", checkpoint, "--to", "onnx", "--out", "images-onnx")
    files = [f"images/{name}/{at:02}.png" for name in ["dark", "light"] for at in range(24)]
    predicted = json.loads(surefoot("predict", checkpoint, *files, "--top", "2", "--json"))
    network = session("images-onnx/model.onnx")
    classes = json.loads(network.get_modelmeta().custom_metadata_map["surefoot.classes"])
    got = network.run(["probabilities"], {"input": numpy.stack(pixels).transpose(0, 3, 1, 2)})
    return probabilities(predicted, classes, got[0])


def text(surefoot, trained):
    with open("text.txt", "w") as file:
        file.write(LINE * 100)
    checkpoint = trained(
        "text",
        "{data: {kind: text, path: text.txt, length: 32}, model: {kind: gpt, layers: 2, heads: 2, width: 32},"
        " batch_size: 16, epochs: 4, optimizer: {lr: 0.003}}",
    )
    surefoot("export", checkpoint, "--to", "hf", "--out", "gpt")
    model = transformers.AutoModelForCausalLM.from_pretrained("gpt").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained("gpt")
    prompt = LINE[:20]
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    if tokenizer.decode(ids[0]) != prompt:
        sys.exit(f"the tokenizer does not give the text back: {tokenizer.decode(ids[0])!r}")
    with torch.no_grad():
        theirs = model(ids).logits.numpy()
    surefoot("forward", checkpoint, "--text", prompt, "--out", "logits.safetensors")
    (ours,) = (value for name, value in load_file("logits.safetensors").items() if "logits" in name)
    every = torch.ones_like(ids)
    tokens = model.generate(ids, attention_mask=every, max_new_tokens=10, do_sample=False, pad_token_id=0)
    tokens = tokens[0][ids.shape[1] :]
    told = json.loads(surefoot("generate", checkpoint, prompt, "--max-tokens", "10", "--json"))
    said = json.dumps(told)
    if json.dumps(tokenizer.decode(tokens))[1:-1] not in said:
        sys.exit(f"transformers goes on with {tokenizer.decode(tokens)!r}, surefoot with {said}")
    return float(numpy.abs(ours.reshape(theirs.shape) - theirs).max())


def curves(trained):
    config = "{data: {kind: digits}, model: {kind: mlp, hidden: [16]}, epochs: 3}"
    trained("digits", config, "--tensorboard", "logs")
    events = EventAccumulator("logs")
    events.Reload()
    scalars = set(events.Tags()["scalars"])
    expected = {"step/loss", "step/samples_per_second", "train/loss", "train/accuracy", "test/loss", "test/accuracy"}
    if scalars != expected or len(events.Scalars("test/loss")) != 3:
        sys.exit(f"TensorBoard sees {scalars}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
