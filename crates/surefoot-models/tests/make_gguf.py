"""Writes tests/gguf/*.gguf: fixtures of this folder as GGUF files, with the `gguf` Python package.

    pip install gguf numpy safetensors && python make_gguf.py

Queries and keys of Llama are stored in GGUF's order, in which the two dimensions that are rotated
together are neighbours, and GPT-2's matrices are turned: as llama.cpp's converter does it.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import load_file

HERE = Path(__file__).parent
LLAMA = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate",
    "post_attention_layernorm": "ffn_norm", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
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


def write(fixture: str, form: Type, target: str) -> None:
    folder = HERE / "fixtures" / fixture
    config = json.loads((folder / "config.json").read_text())
    # Files of Mistral say llama.
    family = config["model_type"].replace("mistral", "llama")
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
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
        width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_rope_dimension_count(width)
        if width * config["num_attention_heads"] != config["hidden_size"]:
            writer.add_key_length(width)
            writer.add_value_length(width)
    if (folder / "tokenizer.json").exists():
        add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text())["model"])
    for name, weight in sorted(load_file(folder / "model.safetensors").items()):
        weight = weight.astype(np.float32)
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
            name = f"blk.{block}.{(LLAMA | GPT2)[part]}.{kind}"
        whole = weight.ndim == 2 and weight.shape[1] % 32 == 0 and name != "position_embd.weight"
        if form != Type.F32 and whole:
            writer.add_tensor(name, gguf.quants.quantize(weight, form), raw_dtype=form)
        else:
            writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


(HERE / "gguf").mkdir(exist_ok=True)
write("llama-tiny", Type.F32, "llama-tiny.F32.gguf")
write("llama-tiny", Type.Q8_0, "llama-tiny.Q8_0.gguf")
write("llama-tiny", Type.Q4_0, "llama-tiny.Q4_0.gguf")
write("qwen2-tiny", Type.Q8_0, "qwen2-tiny.Q8_0.gguf")
write("gpt2-tiny", Type.Q8_0, "gpt2-tiny.Q8_0.gguf")
write("qwen3", Type.Q8_0, "qwen3.Q8_0.gguf")
write("mistral-nowindow", Type.Q8_0, "mistral-nowindow.Q8_0.gguf")
