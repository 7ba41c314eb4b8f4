"""Makes the golden values of the fine-tuning tests with PEFT and transformers.

    python benches/peers/peft_goldens.py [NAME…]

Without names all of them are made.
Needs torch, transformers, peft and safetensors. For each tiny model of crates/surefoot-models/tests/fixtures it trains ten
steps on the CPU in fp32 and writes to crates/surefoot-train/tests/fixtures/NAME:

- the first adapter as PEFT saves it (adapter_config.json, adapter_model.safetensors);
- batches.json: the sequences of each step, each with the number of tokens that are not predicted;
- golden.safetensors: the loss of each step, and the adapter after one step and after ten;
- curve.safetensors, for llama-tiny: the losses of 300 steps from the same start.

Models are in eval mode: what is compared has no dropout. Sequences are padded on the right and masked, each in a row of its own.
"""

import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BertForSequenceClassification

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "crates/surefoot-models/tests/fixtures"
OUT = ROOT / "crates/surefoot-train/tests/fixtures"
LR, DECAY, STEPS, LONG = 1e-3, 0.01, 10, 300
LORA = {
    "llama-tiny": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "gpt2-tiny": ["c_attn", "c_proj", "c_fc"],
    "qwen2-tiny": ["q_proj", "v_proj"],
    "mistral-window": ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"],
    "qwen3-bias-tied": ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj"],
    "neox-tiny": ["query_key_value", "dense"],
    # Weights in fp16, in three files.
    "llama-f16-sharded": ["q_proj", "o_proj", "down_proj"],
    "granite-tiny": ["q_proj", "v_proj", "down_proj"],
    "olmo2-tiny": ["q_proj", "k_proj", "o_proj", "up_proj"],
    "phi3-tiny": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "smollm3-tiny": ["q_proj", "v_proj", "gate_proj"],
    # The attention of models with experts; the experts and their routers stay as they are.
    "mixtral-tiny": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qwen3-moe-tiny": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "qwen2-moe-tiny": ["q_proj", "v_proj", "o_proj"],
}


def sequences(vocab, generator):
    """Two batches of three sequences that the steps take in turn."""
    batches = []
    for lengths in ([9, 14, 5], [11, 7, 13]):
        batch = []
        for length in lengths:
            tokens = torch.randint(3, vocab, (length,), generator=generator).tolist()
            batch.append({"tokens": tokens, "unpredicted": length // 3 + 1})
        batches.append(batch)
    return batches


def tensors(batch):
    width = max(len(row["tokens"]) for row in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for at, row in enumerate(batch):
        length = len(row["tokens"])
        ids[at, :length] = torch.tensor(row["tokens"])
        mask[at, :length] = 1
        labels[at, row["unpredicted"] : length] = ids[at, row["unpredicted"] : length]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def train(model, batches, state, steps=STEPS):
    """Trains some steps; gives the losses and what `state` says after one step and after ten."""
    model.eval()
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # As Surefoot has it: vectors do not decay.
    groups = [
        {"params": [p for p in wanted if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in wanted if p.dim() <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=LR)
    losses, kept = [], {}
    for step in range(steps):
        loss = model(**batches[step % len(batches)]).loss
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 in (1, STEPS):
            kept.update({f"after{step + 1}.{k}": v.detach().clone() for k, v in state().items()})
    return losses, kept


def write(name, batches, losses, kept):
    folder = OUT / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "batches.json").write_text(json.dumps(batches) + "\n")
    kept["losses"] = torch.tensor(losses, dtype=torch.float64)
    save_file({k: v.contiguous() for k, v in kept.items()}, folder / "golden.safetensors")
    print(name, losses[0], losses[-1])


def lora(name, targets):
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager")
    config = LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=6, target_modules=targets, lora_dropout=0.0, init_lora_weights=False,
        fan_in_fan_out=name.startswith("gpt2"),
    )
    vocab = model.config.vocab_size
    model = get_peft_model(model, config)
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # No path of the machine that this ran on.
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = name
    settings["target_modules"] = sorted(settings["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    batches = sequences(vocab, torch.Generator().manual_seed(11))
    losses, kept = train(model, [tensors(batch) for batch in batches], lambda: get_peft_model_state_dict(model))
    write(name, batches, losses, kept)


def curve(name):
    """A longer run from the adapter and with the batches that `lora` wrote."""
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(model, OUT / name, is_trainable=True)
    batches = json.loads((OUT / name / "batches.json").read_text())
    losses, _ = train(model, [tensors(batch) for batch in batches], dict, LONG)
    save_file({"losses": torch.tensor(losses, dtype=torch.float64)}, OUT / name / "curve.safetensors")
    print(name, "curve", losses[0], losses[-1])


def full(name):
    model = AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32, attn_implementation="eager")
    batches = sequences(model.config.vocab_size, torch.Generator().manual_seed(11))
    some = [k for k in model.state_dict() if "embed_tokens" in k or "layers.0." in k or k.endswith("norm.weight")]
    losses, kept = train(model, [tensors(batch) for batch in batches], lambda: {k: model.state_dict()[k] for k in some})
    kept = {k: v for k, v in kept.items() if k.startswith("after10")}
    write(f"{name}-full", batches, losses, kept)


def classify(name):
    torch.manual_seed(7)
    model = BertForSequenceClassification.from_pretrained(
        MODELS / name, dtype=torch.float32, attn_implementation="eager", num_labels=3
    )
    batches = sequences(model.config.vocab_size, torch.Generator().manual_seed(11))
    for batch in batches:
        for at, row in enumerate(batch):
            row["class"] = at
    start = {f"start.{k}": v.clone() for k, v in model.state_dict().items() if k.startswith("classifier")}
    ready = []
    for batch in batches:
        inputs = tensors(batch)
        inputs["labels"] = torch.tensor([row["class"] for row in batch])
        ready.append(inputs)
    names = ["classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.encoder.layer.0.attention.self.query.weight"]
    losses, kept = train(model, ready, lambda: {k: model.state_dict()[k] for k in names})
    kept = {k: v for k, v in kept.items() if k.startswith("after10")}
    write(f"{name}-classes", batches, losses, {**kept, **start})


if __name__ == "__main__":
    torch.set_num_threads(2)
    wanted = sys.argv[1:] or [*LORA, "curve", "full", "classes"]
    for name, targets in LORA.items():
        if name in wanted:
            lora(name, targets)
    if "curve" in wanted:
        curve("llama-tiny")
    if "full" in wanted:
        full("qwen2-tiny")
    if "classes" in wanted:
        classify("bert-tiny")
