"""Makes tiny models with transformers and writes what they compute beside them.

    python make_goldens.py FOLDER [NAME…]

Each model folder gets config.json, model.safetensors (or shards) and golden.safetensors with
input_ids, logits or last_hidden_state, and hidden_0 … hidden_n. Needs torch and transformers.
"""

import json
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    BertConfig, BertForMaskedLM, BertModel, Cohere2Config, Cohere2ForCausalLM, CohereConfig, CohereForCausalLM,
    Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, GraniteConfig, GraniteForCausalLM,
    ModernBertConfig, ModernBertForMaskedLM, ModernBertModel, Olmo2Config, Olmo2ForCausalLM,
    RobertaConfig, RobertaForMaskedLM, XLMRobertaConfig, XLMRobertaModel,
    Phi3Config, Phi3ForCausalLM, SmolLM3Config, SmolLM3ForCausalLM, GPT2Config, GPT2LMHeadModel, GPT2Model,
    GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaModel, MistralConfig,
    MistralForCausalLM, MixtralConfig, MixtralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig,
    Qwen2MoeForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM,
)

SMALL = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=4, initializer_range=0.1, max_position_embeddings=128)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16, rope_theta=500000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32, rope_theta=10000.0)
GPT2 = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.1)


def llama(**more):
    return LlamaForCausalLM, LlamaConfig(**{**SMALL, **more}), {}


def qwen3(**more):
    return Qwen3ForCausalLM, Qwen3Config(**{**SMALL, "head_dim": 16, **more}), {}


def qwen2(**more):
    return Qwen2ForCausalLM, Qwen2Config(**{**SMALL, "num_key_value_heads": 2, **more}), {}


def mistral(**more):
    return MistralForCausalLM, MistralConfig(**{**SMALL, "num_key_value_heads": 2, **more}), {}


def gemma3(**more):
    own = dict(num_key_value_heads=2, head_dim=16, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=24,
               layer_types=["sliding_attention", "full_attention", "sliding_attention"], pad_token_id=0)
    return Gemma3ForCausalLM, Gemma3TextConfig(**{**SMALL, **own, **more}), {}


def gemma2(**more):
    own = dict(num_key_value_heads=2, head_dim=16, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=24,
               attn_logit_softcapping=0.7, final_logit_softcapping=2.5, pad_token_id=0)
    return Gemma2ForCausalLM, Gemma2Config(**{**SMALL, **own, **more}), {}


def cohere(**more):
    own = dict(num_key_value_heads=2, logit_scale=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    return CohereForCausalLM, CohereConfig(**{**SMALL, **own, **more}), {}


def cohere2(**more):
    own = dict(num_key_value_heads=2, logit_scale=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=2, num_hidden_layers=3,
               sliding_window=5, layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    return Cohere2ForCausalLM, Cohere2Config(**{**SMALL, **own, **more}), {}


def modernbert(model=ModernBertModel, **more):
    own = dict(num_hidden_layers=4, local_attention=6, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
               sep_token_id=2)
    return model, ModernBertConfig(**{**SMALL, **own, **more}), {}


def old_modernbert(config):
    rope = config.pop("rope_parameters")
    config["global_rope_theta"] = rope["full_attention"]["rope_theta"]
    config["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]
    config["global_attn_every_n_layers"] = 3
    config.pop("layer_types")


def roberta(model, config, **more):
    own = dict(max_position_embeddings=40, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1)
    return model, config(**{**SMALL, **own, **more}), {"first_id": 2}


def old_gemma3(config):
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope["full_attention"]["rope_theta"]
    config["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = None
    config["sliding_window_pattern"] = 2
    config.pop("layer_types")


def granite(**more):
    own = dict(num_key_value_heads=2, embedding_multiplier=6.0, attention_multiplier=0.2, residual_multiplier=0.4,
               logits_scaling=3.0)
    return GraniteForCausalLM, GraniteConfig(**{**SMALL, **own, **more}), {}


def olmo2(**more):
    return Olmo2ForCausalLM, Olmo2Config(**{**SMALL, "num_key_value_heads": 2, **more}), {}


def phi3(**more):
    own = dict(num_key_value_heads=2, pad_token_id=0)
    return Phi3ForCausalLM, Phi3Config(**{**SMALL, **own, **more}), {}


def smollm3(**more):
    own = dict(num_key_value_heads=2, num_hidden_layers=4, pad_token_id=0)
    return SmolLM3ForCausalLM, SmolLM3Config(**{**SMALL, **own, **more}), {}


def mixtral(**more):
    own = dict(num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2)
    return MixtralForCausalLM, MixtralConfig(**{**SMALL, **own, **more}), {}


def qwen2_moe(**more):
    own = dict(num_key_value_heads=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
               shared_expert_intermediate_size=64)
    return Qwen2MoeForCausalLM, Qwen2MoeConfig(**{**SMALL, **own, **more}), {}


def qwen3_moe(**more):
    own = dict(num_key_value_heads=2, head_dim=16, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32)
    return Qwen3MoeForCausalLM, Qwen3MoeConfig(**{**SMALL, **own, **more}), {}


def neox(**more):
    return GPTNeoXForCausalLM, GPTNeoXConfig(**{**SMALL, **more}), {}


def gpt2(model=GPT2LMHeadModel, **more):
    return model, GPT2Config(**{**GPT2, **more}), {}


def bert(model=BertModel, **more):
    return model, BertConfig(**{**SMALL, **more}), {}


def saved(case, **how):
    """The same case, stored in another way: dtype=…, shards=…, rename=…, config=…"""
    model, config, old = case
    return model, config, {**old, **how}


def old_rope(config):
    """The spelling of older files: rope_theta beside rope_scaling."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope.get("rope_type") != "default" else None


def old_rope_type(config):
    old_rope(config)
    config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")


def old_neox(config):
    rope = config.pop("rope_parameters")
    config["rotary_emb_base"] = rope["rope_theta"]
    config["rotary_pct"] = rope["partial_rotary_factor"]


def without(*keys):
    def change(config):
        for key in keys:
            config.pop(key, None)
    return change


CASES = {
    "llama-gqa-tied": llama(num_key_value_heads=2, tie_word_embeddings=True),
    "llama-mqa-headdim-bias": llama(num_key_value_heads=1, head_dim=24, attention_bias=True, mlp_bias=True),
    "llama-llama3": llama(rope_parameters=LLAMA3, num_key_value_heads=2),
    "llama-llama3-old": saved(llama(rope_parameters=LLAMA3, num_key_value_heads=2), config=old_rope),
    "llama-linear": llama(rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=20000.0)),
    "llama-linear-oldtype": saved(llama(rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=20000.0)), config=old_rope_type),
    "llama-yarn": llama(rope_parameters=YARN),
    "llama-yarn-mscale": llama(rope_parameters=dict(YARN, mscale=0.7, mscale_all_dim=1.3, beta_fast=16, beta_slow=2)),
    "llama-yarn-nofloor": llama(rope_parameters=dict(YARN, attention_factor=1.2, truncate=False)),
    "llama-theta-old": saved(llama(rope_parameters=dict(rope_type="default", rope_theta=1e6)), config=old_rope),
    "llama-gelu-eps": llama(hidden_act="gelu_pytorch_tanh", rms_norm_eps=1e-3),
    "llama-relu": llama(hidden_act="relu"),
    "llama-defaults": saved(llama(), config=without("rope_parameters", "num_key_value_heads", "head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act", "rms_norm_eps")),
    "llama-wide": saved(llama(vocab_size=256, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_key_value_heads=2, tie_word_embeddings=True), dtype=torch.bfloat16),
    "llama-bf16": saved(llama(num_key_value_heads=2), dtype=torch.bfloat16),
    "llama-f16-sharded": saved(llama(num_key_value_heads=2), dtype=torch.float16, shards="20KB"),
    "llama-base": (LlamaModel, LlamaConfig(**SMALL), {}),
    "llama-noprefix-tied": saved(llama(tie_word_embeddings=True), rename=lambda n: n.removeprefix("model.")),
    "mistral-window": mistral(sliding_window=5),
    "mistral-nowindow": mistral(sliding_window=None),
    "mistral-headdim": mistral(head_dim=12, sliding_window=7),
    "qwen2-tied": qwen2(tie_word_embeddings=True),
    "qwen2-window": qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen2-window-old": saved(qwen2(use_sliding_window=True, sliding_window=6, max_window_layers=1), config=without("layer_types")),
    "qwen2-yarn": qwen2(rope_parameters=YARN),
    "qwen3": qwen3(num_key_value_heads=2),
    "qwen3-bias-tied": qwen3(num_key_value_heads=1, attention_bias=True, tie_word_embeddings=True),
    "qwen3-window": qwen3(num_key_value_heads=4, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen3-bf16": saved(qwen3(num_key_value_heads=2), dtype=torch.bfloat16),
    "gemma3-tiny": gemma3(),
    "gemma3-old": saved(gemma3(), config=old_gemma3),
    "gemma2-tiny": gemma2(),
    "gemma2-plain": saved(gemma2(attn_logit_softcapping=None, final_logit_softcapping=None, num_hidden_layers=2), config=without("layer_types")),
    "cohere-tiny": cohere(),
    "cohere-bias": cohere(attention_bias=True, tie_word_embeddings=False),
    "cohere2-tiny": cohere2(),
    "modernbert-tiny": modernbert(),
    "modernbert-old": saved(modernbert(model=ModernBertForMaskedLM, norm_bias=True, mlp_bias=True, attention_bias=True), config=old_modernbert),
    "xlm-roberta-tiny": roberta(XLMRobertaModel, XLMRobertaConfig),
    "roberta-masked": roberta(RobertaForMaskedLM, RobertaConfig),
    "granite-tiny": granite(tie_word_embeddings=True),
    "olmo2-tiny": olmo2(),
    "phi3-tiny": phi3(sliding_window=6),
    "phi3-partial": phi3(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)),
    "smollm3-tiny": smollm3(),
    "mixtral-tiny": mixtral(),
    "mixtral-window": mixtral(sliding_window=5, num_local_experts=3, tie_word_embeddings=True),
    "qwen2-moe-tiny": qwen2_moe(),
    "qwen2-moe-some": qwen2_moe(num_hidden_layers=3, mlp_only_layers=[1], norm_topk_prob=True),
    "qwen3-moe-tiny": qwen3_moe(norm_topk_prob=True),
    "qwen3-moe-some": qwen3_moe(num_hidden_layers=3, decoder_sparse_step=2, num_experts_per_tok=1),
    "neox-serial": neox(use_parallel_residual=False),
    "neox-full-nobias": neox(rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=1.0), attention_bias=False),
    "neox-half-old": saved(neox(rope_parameters=dict(rope_type="default", rope_theta=25000.0, partial_rotary_factor=0.5), hidden_act="gelu_fast"), config=old_neox),
    "neox-odd": neox(hidden_size=40, rope_parameters=dict(rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.3)),
    "neox-tied-quick": neox(tie_word_embeddings=True, hidden_act="quick_gelu"),
    "neox-f16": saved(neox(), dtype=torch.float16),
    "gpt2-variants": gpt2(activation_function="relu", scale_attn_by_inverse_layer_idx=True, n_inner=40),
    "gpt2-unscaled": gpt2(scale_attn_weights=False, reorder_and_upcast_attn=True, activation_function="silu"),
    "gpt2-untied": gpt2(tie_word_embeddings=False, layer_norm_epsilon=1e-3),
    "gpt2-noprefix": saved(gpt2(activation_function="gelu"), rename=lambda n: n.removeprefix("transformer.")),
    "gpt2-base": gpt2(model=GPT2Model),
    "gpt2-sharded": saved(gpt2(), shards="20KB"),
    "bert-prefix": bert(model=BertForMaskedLM),
    "bert-newgelu": bert(hidden_act="gelu_new", type_vocab_size=1, layer_norm_eps=1e-5),
    "bert-gamma": saved(bert(), rename=lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")),
    "bert-f16": saved(bert(), dtype=torch.float16),
}


ENCODERS = ["bert", "modernbert", "roberta", "xlm-roberta"]


def make(folder, name, model_class, config, how):
    torch.manual_seed(len(name) * 7919 + sum(map(ord, name)))
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    with torch.no_grad():  # norms and biases that matter
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    if "dtype" in how:  # the parameters alone: rotary frequencies stay in fp32
        for parameter in model.parameters():
            parameter.data = parameter.data.to(how["dtype"])
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    model.save_pretrained(path, max_shard_size=how.get("shards", "10GB"))
    generation = os.path.join(path, "generation_config.json")
    if os.path.exists(generation):
        os.remove(generation)
    if "rename" in how:
        file = os.path.join(path, "model.safetensors")
        tensors = {how["rename"](n): t for n, t in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
    if "config" in how:
        file = os.path.join(path, "config.json")
        written = json.load(open(file))
        how["config"](written)
        json.dump(written, open(file, "w"), indent=2)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.float32)
    ids = torch.randint(how.get("first_id", 0), config.vocab_size, (2, 24))
    with torch.no_grad():
        output = model(input_ids=ids, output_hidden_states=True)
    golden = {"input_ids": ids.to(torch.int32)}
    for number, hidden in enumerate(output.hidden_states):
        golden[f"hidden_{number}"] = hidden.contiguous()
    if config.model_type in ENCODERS or "logits" not in output:
        golden["last_hidden_state"] = output.hidden_states[-1].contiguous().clone()
    else:
        golden["logits"] = output.logits.contiguous()
    save_file(golden, os.path.join(path, "golden.safetensors"))
    print(name, flush=True)


if __name__ == "__main__":
    names = sys.argv[2:] or CASES
    for name in names:
        make(sys.argv[1], name, *CASES[name])
