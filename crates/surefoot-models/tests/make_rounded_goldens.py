"""Writes tests/rounded.safetensors: what transformers computes with weights that were rounded to few bits.

    pip install gguf numpy safetensors torch transformers && python make_rounded_goldens.py

Weights are rounded and dequantised by the `gguf` Python package, independently of the program that is tested, and loaded into
transformers in f32. The first eight tokens of a fixture's golden.safetensors are run. The keys:

    q8/FIXTURE, q4/FIXTURE     a model folder with `--weights q8` or `q4`: embeddings and routers stay as they are, the head is in Q8_0
    gguf/FILE/FORMAT           a file of tests/gguf in which every matrix was rounded to the format
    llama-wide/FORMAT          the weights of llama-wide.Q4_K.gguf rounded to the format; for Q2_K to Q6_K those of llama.cpp's own files

Each is a tensor of logits, or of last hidden states where the fixture's golden.safetensors has no logits.
"""

import json
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
TOKENS = 8
GGUF_FILES = [
    "llama-tiny.F32", "gemma2-tiny.F32", "gemma3-tiny.F32", "cohere-tiny.F32", "cohere2-tiny.F32", "mixtral-tiny.F32",
    "qwen2-moe-tiny.F32", "qwen3-moe-tiny.F32", "qwen2-tiny.Q8_0", "qwen3.Q8_0", "mistral-nowindow.Q8_0", "gpt2-tiny.Q8_0",
]
SIMPLE = [Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]
OF_LLAMA_CPP = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
TABLES = ["embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "position_embeddings", "token_type_embeddings", "tok_embeddings"]
ROUTERS = ["mlp.gate.weight", "block_sparse_moe.gate.weight", "shared_expert_gate.weight"]
HEADS = ["lm_head.weight", "embed_out.weight"]


def rounded(weight, form):
    if weight.shape[-1] % gguf.GGML_QUANT_SIZES[form][0]:
        return weight
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    return gguf.quants.dequantize(gguf.quants.quantize(weight, form), form).reshape(weight.shape)


def tensors_of(folder):
    """All tensors in f32, and the configuration."""
    tensors = {}
    for file in sorted(folder.glob("model*.safetensors")):
        tensors.update({name: tensor.to(torch.float32).numpy() for name, tensor in load_torch(file).items()})
    return tensors, json.loads((folder / "config.json").read_text())


def is_one_of(name, parts):
    return any(name.endswith(part) for part in parts)


def is_turned(config, name):
    """GPT-2's projections have inputs as rows."""
    return config["model_type"] == "gpt2" and ".c_" in name


def output(fixture, tensors, config):
    """What the fixture's class computes with these tensors."""
    golden = load_file(HERE / "fixtures" / fixture / "golden.safetensors")
    config = dict(config, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        save_file({name: torch.from_numpy(np.ascontiguousarray(tensor)) for name, tensor in tensors.items()},
                  Path(folder) / "model.safetensors", metadata={"format": "pt"})
        (Path(folder) / "config.json").write_text(json.dumps(config))
        model_class = getattr(transformers, config["architectures"][0])
        model, report = model_class.from_pretrained(folder, attn_implementation="eager", output_loading_info=True)
    if report["missing_keys"] and config["architectures"][0] != "BertModel":
        raise SystemExit(f"{fixture} lacks {report['missing_keys']}")
    model.eval()

    def run(ids):
        with torch.no_grad():
            result = model(input_ids=torch.from_numpy(ids.astype(np.int64)), output_hidden_states=True)
        return result.logits if "logits" in golden else result.hidden_states[-1]
    ids = golden["input_ids"]
    return run(ids[:1, :TOKENS]), run(ids), golden["logits" if "logits" in golden else "last_hidden_state"]


def folder_golden(fixture, form):
    tensors, config = tensors_of(HERE / "fixtures" / fixture)
    # The head is rounded where it is the table of embeddings, too, which stays as it is.
    if config.get("tie_word_embeddings") and is_causal(config):
        table = [name for name in tensors if name.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))]
        head = "embed_out.weight" if config["model_type"] == "gpt_neox" else "lm_head.weight"
        tensors[head] = tensors[table[0]].copy()
        config["tie_word_embeddings"] = False
    count = 0
    for name, weight in tensors.items():
        table = any(f"{part}." in name for part in TABLES)
        if weight.ndim != 2 or table or is_one_of(name, ROUTERS):
            continue
        wanted = Type.Q8_0 if is_one_of(name, HEADS) else form
        if is_turned(config, name):
            if weight.shape[0] % 32 == 0 and weight.shape[1] % 32 == 0:
                tensors[name] = rounded(weight.T, wanted).T
        else:
            tensors[name] = rounded(weight, wanted)
        count += 1
    return output(fixture, tensors, config)[0], count


def is_causal(config):
    return config["architectures"][0].endswith(("CausalLM", "LMHeadModel"))


def gguf_golden(file, form):
    fixture, source = file.split(".")
    tensors, config = tensors_of(HERE / "fixtures" / fixture)
    for name, weight in tensors.items():
        if weight.ndim < 2 or name.endswith("shared_expert_gate.weight"):
            continue
        factor = 1.0
        if config["model_type"] == "gemma2" and name.endswith("q_proj.weight"):
            factor = np.float32((config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5)
        turn = (lambda weight: weight.T) if is_turned(config, name) else (lambda weight: weight)
        weight = turn(weight) * factor
        kept_plain = name.endswith("wpe.weight") or is_one_of(name, ROUTERS)
        if source != "F32" and not kept_plain:
            weight = rounded(weight, Type[source])
        tensors[name] = turn(rounded(weight, form) / factor)
    return output(fixture, tensors, config)[0]


def halves(weight, heads):
    """The order of a folder of what llama.cpp stores with rotated pairs as neighbours."""
    shape = weight.shape
    return weight.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(shape)


def wide_golden(form):
    """Llama's names from those of a GGUF file."""
    name = form.name if form in OF_LLAMA_CPP else "Q4_K"
    _, config = tensors_of(HERE / "fixtures" / "llama-wide")
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
             "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
    whole = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    tensors = {}
    for tensor in gguf.GGUFReader(HERE / "gguf" / f"llama-wide.{name}.gguf").tensors:
        shape = [int(size) for size in reversed(tensor.shape)]
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        if form not in OF_LLAMA_CPP and weight.ndim > 1:
            weight = rounded(weight, form)
        if tensor.name in whole:
            tensors[whole[tensor.name]] = weight
            continue
        _, block, part, kind = tensor.name.split(".")
        if part == "attn_q":
            weight = halves(weight, config["num_attention_heads"])
        if part == "attn_k":
            weight = halves(weight, config["num_key_value_heads"])
        tensors[f"model.layers.{block}.{parts[part]}.{kind}"] = weight
    return output("llama-wide", tensors, config)[0]


def main():
    goldens = {}
    fixtures = sorted(path.parent.name for path in (HERE / "fixtures").glob("*/golden.safetensors"))
    for fixture in fixtures:
        tensors, config = tensors_of(HERE / "fixtures" / fixture)
        _, all_of_it, expected = output(fixture, tensors, config)
        apart = float(np.abs(all_of_it.numpy() - expected).max())
        if apart > 1e-4:
            raise SystemExit(f"transformers does not read {fixture} as it was made: {apart}")
        for choice, form in [("q8", Type.Q8_0), ("q4", Type.Q4_0)]:
            goldens[f"{choice}/{fixture}"], count = folder_golden(fixture, form)
            print(f"{choice}/{fixture}: {count} matrices rounded")
    for file in GGUF_FILES:
        for form in [Type.Q8_0, Type.Q4_0]:
            goldens[f"gguf/{file}/{form.name}"] = gguf_golden(file, form)
    for form in SIMPLE + OF_LLAMA_CPP:
        goldens[f"llama-wide/{form.name}"] = wide_golden(form)
    save_file({name: tensor.contiguous() for name, tensor in goldens.items()}, HERE / "rounded.safetensors")


if __name__ == "__main__":
    main()
