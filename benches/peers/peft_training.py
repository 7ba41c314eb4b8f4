"""LoRA on the CPU: `surefoot train` and PEFT with transformers, in one run.

    python benches/peers/peft_training.py SUREFOOT [--threads 2] [--rounds 3] [--dtype bfloat16] [--steps 2 8]

Makes a decoder of Llama's shape with random weights, and trains adapters of rank 16 on all projections of its blocks with rows of the
same tokens. Seconds of a step are what more steps take longer than fewer, so that starting, loading and testing are left out; peak memory
is that of the whole process. Both sides take turns. Processor time is given as well: on a machine that does other work, too, it says more than the time on the clock. PEFT trains in fp32 (weights of a bf16 file are widened, as its CPU users do) with its
default attention; Surefoot keeps weights as the file has them and computes in fp32. Needs torch, transformers, peft and tokenizers.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

LENGTH, BATCH, RANK = 256, 4, 16

PEER = """
import json, sys, torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
folder, steps, threads, checkpointing = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "yes"
torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder + "/model", dtype=torch.float32)
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=%d, lora_alpha=32, target_modules="all-linear"))
if checkpointing:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
model.train()
rows = torch.tensor(json.load(open(folder + "/rows.json")))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
for step in range(steps):
    batch = rows[(step * %d) %% len(rows):][:%d]
    loss = model(input_ids=batch, labels=batch).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
print(loss.item())
""" % (RANK, BATCH, BATCH)


def make(folder, dtype):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12, num_key_value_heads=4,
        vocab_size=8192, max_position_embeddings=1024, tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(getattr(torch, dtype)).save_pretrained(folder / "model")
    vocabulary = {f"w{at}": at for at in range(8192)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "model/tokenizer.json"))
    rows = torch.randint(1, 8192, (BATCH * 9, LENGTH)).tolist()
    (folder / "rows.json").write_text(json.dumps(rows))
    text = " ".join(f"w{token}" for row in rows for token in row)
    (folder / "text.txt").write_text(text)


def timed(command, environment):
    """Seconds, seconds of processor time and peak bytes of a process."""
    begun = time.perf_counter()
    with tempfile.TemporaryFile() as told:
        child = subprocess.Popen(command, env=environment, stdout=told, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begun
        if child.returncode != 0:
            told.seek(0)
            sys.exit(told.read().decode())
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("surefoot")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--steps", type=int, nargs=2, default=[2, 8], metavar=("FEW", "MANY"))
    options = parser.parse_args()
    few_steps, many_steps = options.steps
    program = os.path.abspath(options.surefoot)
    environment = {**os.environ, "RAYON_NUM_THREADS": str(options.threads), "OMP_NUM_THREADS": str(options.threads)}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make(folder, options.dtype)
        config = {
            "data": {"kind": "text", "path": str(folder / "text.txt"), "length": LENGTH, "test": 0.02},
            "model": {"kind": "pretrained", "path": str(folder / "model"), "rank": RANK, "alpha": 32},
            "batch_size": BATCH, "steps": few_steps, "clip_norm": 1.0, "device": "cpu",
            "gradient_checkpointing": options.checkpointing,
            "optimizer": {"lr": 1e-4, "schedule": "constant"},
        }
        (folder / "run.yaml").write_text(json.dumps(config))

        def ours(steps):
            runs = folder / f"runs-{time.monotonic_ns()}"
            return timed([program, "train", str(folder / "run.yaml"), "-q", "--steps", str(steps), "--folder", str(runs)], environment)

        def theirs(steps):
            flag = "yes" if options.checkpointing else "no"
            return timed([sys.executable, "-c", PEER, str(folder), str(steps), str(options.threads), flag], environment)

        sides = {"surefoot": ours, "peft": theirs}
        steps = {side: [] for side in sides}
        work = {side: [] for side in sides}
        peaks = {side: [] for side in sides}
        for _ in range(options.rounds):
            for side, run in sides.items():
                few, few_work, _ = run(few_steps)
                many, many_work, peak = run(many_steps)
                steps[side].append((many - few) / (many_steps - few_steps))
                work[side].append((many_work - few_work) / (many_steps - few_steps))
                peaks[side].append(peak)
                print(f"{side}: {steps[side][-1]:.2f} s a step, {work[side][-1]:.2f} s of processor time, "
                      f"{peak / 2**20:.0f} MiB", file=sys.stderr, flush=True)
    seconds = {side: statistics.median(values) for side, values in steps.items()}
    memory = {side: statistics.median(values) for side, values in peaks.items()}
    processor = {side: statistics.median(values) for side, values in work.items()}
    for side in sides:
        spread, of_work = (", ".join(f"{value:.2f}" for value in values[side]) for values in (steps, work))
        print(f"{side}: {seconds[side]:.3f} s a step ({spread}), {processor[side]:.3f} s of processor time ({of_work}), peak {memory[side] / 2**20:.0f} MiB")
    print(f"speed: {seconds['peft'] / seconds['surefoot']:.2f} x PEFT's, by processor time {processor['peft'] / processor['surefoot']:.2f} x; peak memory: {memory['surefoot'] / memory['peft']:.2f} x PEFT's")


if __name__ == "__main__":
    main()
