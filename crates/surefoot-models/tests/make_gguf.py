"""Writes tests/gguf/*.gguf: fixtures of this folder as GGUF files, with the `gguf` Python package.

    pip install gguf numpy && python make_gguf.py LLAMA_QUANTIZE

LLAMA_QUANTIZE is llama.cpp's program llama-quantize: Q2_K to Q6_K are its own quantisation, since the package has none.

Queries and keys of Llama are stored in GGUF's order, in which the two dimensions that are rotated
together are neighbours, GPT-2's matrices are turned, norms of Gemma get the 1 that folders leave out, and
experts are put into one tensor: as llama.cpp's converter does it. GGUF has no query_pre_attn_scalar (llama.cpp takes the
width of a head), so queries of Gemma get the factor instead.
"""

import json
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HERE = Path(__file__).parent
LLAMA = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}
GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
EXPERTS = {
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}
ARCHITECTURES = {  # Files of Mistral and Mixtral say llama.
    "mistral": "llama", "mixtral": "llama", "gemma3_text": "gemma3", "cohere": "command-r",
    "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe",
}
GPT2 = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight", "transformer.wte.weight": "token_embd.weight",
    "transformer.wpe.weight": "position_embd.weight", "transformer.ln_f.weight": "output_norm.weight",
    "transformer.ln_f.bias": "output_norm.bias",
}
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def load(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file; numpy has no bf16, so the upper halves of f32 are read as such."""
    tensors = {}
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            numbers = (np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            numbers = np.frombuffer(data[start:end], {"F32": np.float32, "F16": np.float16}[entry["dtype"]])
        tensors[name] = numbers.reshape(entry["shape"])
    return tensors


def neighbours(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head so that row i of its first half is beside row i of its second."""
    shape = weight.shape
    return weight.reshape(heads, 2, shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(shape)


def add_tokenizer(writer: gguf.GGUFWriter, tokenizer: dict) -> None:
    tokens = [token for token, _ in sorted(tokenizer["vocab"].items(), key=lambda pair: pair[1])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token == "<|endoftext|>" else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


def add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, form: Type) -> None:
    plain = name == "position_embd.weight" or "_inp" in name
    if form != Type.F32 and weight.ndim >= 2 and weight.shape[-1] % 32 == 0 and not plain:
        writer.add_tensor(name, gguf.quants.quantize(weight, form), raw_dtype=form)
    else:
        writer.add_tensor(name, weight)


def write(fixture: str, form: Type, target: str) -> None:
    folder = HERE / "fixtures" / fixture
    config = json.loads((folder / "config.json").read_text())
    family = ARCHITECTURES.get(config["model_type"], config["model_type"])
    gemma = family.startswith("gemma")
    writer = gguf.GGUFWriter(HERE / "gguf" / target, family)
    if family == "gpt2":
        writer.add_embedding_length(config["n_embd"])
        writer.add_block_count(config["n_layer"])
        writer.add_context_length(config["n_positions"])
        writer.add_feed_forward_length(4 * config["n_embd"])
        writer.add_head_count(config["n_head"])
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        writer.add_embedding_length(config["hidden_size"])
        writer.add_block_count(config["num_hidden_layers"])
        writer.add_context_length(config["max_position_embeddings"])
        writer.add_feed_forward_length(config["intermediate_size"])
        writer.add_head_count(config["num_attention_heads"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        if "rms_norm_eps" in config:
            writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        else:
            writer.add_layer_norm_eps(config["layer_norm_eps"])
        rope = config["rope_parameters"]
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if gemma or family == "cohere2":
            writer.add_sliding_window(config["sliding_window"])
        if family in ["gemma3", "cohere2"]:  # their own default is longer than these models have layers
            writer.add_uint32(f"{family}.attention.sliding_window_pattern", 2)
        if family == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        if "logit_scale" in config:
            writer.add_logit_scale(config["logit_scale"])
        if "num_experts_per_tok" in config:
            writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
        if "moe_intermediate_size" in config:
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(width)
        if width * config["num_attention_heads"] != config["hidden_size"]:
            writer.add_key_length(width)
            writer.add_value_length(width)
    tokenizer = folder / "tokenizer.json"
    if fixture == "llama-wide":  # llama.cpp opens no file without one
        tokenizer = HERE / "fixtures" / "llama-tiny" / "tokenizer.json"
    if tokenizer.exists():
        add_tokenizer(writer, json.loads(tokenizer.read_text())["model"])
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, weight in sorted(load(folder / "model.safetensors").items()):
        weight = weight.astype(np.float32)
        if gemma and name.endswith("norm.weight"):
            weight = weight + 1
        if gemma and name.endswith("q_norm.weight" if family == "gemma3" else "q_proj.weight"):
            weight = weight * np.float32((config["head_dim"] / config["query_pre_attn_scalar"]) ** 0.5)
        if name.endswith((".attn.bias", ".masked_bias")):
            continue
        if name in WHOLE:
            name = WHOLE[name]
        else:
            _, _, block, rest = name.split(".", 3)
            part, kind = rest.rsplit(".", 1)
            if family == "gpt2" and weight.ndim == 2:
                weight = np.ascontiguousarray(weight.T)
            if family == "llama" and part.endswith("q_proj"):
                weight = neighbours(weight, config["num_attention_heads"])
            if family == "llama" and part.endswith("k_proj"):
                weight = neighbours(weight, config["num_key_value_heads"])
            if ".experts." in part:
                _, _, expert, part = part.split(".")
                stacks.setdefault(f"blk.{block}.{EXPERTS[part]}.weight", {})[int(expert)] = weight
                continue
            if part == "mlp.shared_expert_gate":
                weight = weight[0]
            parts = LLAMA | GPT2 | EXPERTS | (GEMMA if gemma else {})
            name = f"blk.{block}.{parts[part]}.{kind}"
        add(writer, name, weight, form)
    for name, experts in stacks.items():
        add(writer, name, np.stack([weight for _, weight in sorted(experts.items())]), form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(llama_quantize: str) -> None:
    (HERE / "gguf").mkdir(exist_ok=True)
    write("llama-tiny", Type.F32, "llama-tiny.F32.gguf")
    write("llama-tiny", Type.Q8_0, "llama-tiny.Q8_0.gguf")
    write("llama-tiny", Type.Q4_0, "llama-tiny.Q4_0.gguf")
    write("qwen2-tiny", Type.Q8_0, "qwen2-tiny.Q8_0.gguf")
    write("gpt2-tiny", Type.Q8_0, "gpt2-tiny.Q8_0.gguf")
    write("qwen3", Type.Q8_0, "qwen3.Q8_0.gguf")
    write("mistral-nowindow", Type.Q8_0, "mistral-nowindow.Q8_0.gguf")
    for fixture in ["gemma2-tiny", "gemma3-tiny", "cohere-tiny", "cohere2-tiny", "mixtral-tiny", "qwen2-moe-tiny", "qwen3-moe-tiny"]:
        write(fixture, Type.F32, f"{fixture}.F32.gguf")
    write("gemma3-tiny", Type.Q8_0, "gemma3-tiny.Q8_0.gguf")
    write("qwen3-moe-tiny", Type.Q4_0, "qwen3-moe-tiny.Q4_0.gguf")

    plain = HERE / "gguf" / "llama-wide.F32.gguf"
    write("llama-wide", Type.F32, plain.name)
    for form, name in [("Q4_K_S", "Q4_K"), ("Q2_K", "Q2_K"), ("Q3_K_S", "Q3_K"), ("Q5_K_S", "Q5_K"), ("Q6_K", "Q6_K")]:
        # All tensors in one format, but for Q4_K, which is as published files are.
        pure = [] if name == "Q4_K" else ["--pure"]
        subprocess.run([llama_quantize, *pure, plain, HERE / "gguf" / f"llama-wide.{name}.gguf", form], check=True)
    plain.unlink()


if __name__ == "__main__":
    main(sys.argv[1])
