"""Writes tests/quantized/*: a tiny model as GPTQ, AWQ and fp8 store it, with what the dequantised weights compute.

    python make_quantized.py

Needs torch, transformers and numpy. Weights are quantised here by rounding to the nearest, and dequantised by the formulas of the
formats' papers and loaders, written independently of the program that is tested: w = scale · (q − zero). The dequantised weights
are stored beside the logits, so that a test can compare weight by weight.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
CONFIG = dict(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, initializer_range=0.1, max_position_embeddings=128)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def grouped(weight, group, symmetric, order):
    """q [in, out], scales and zeros [groups, out]; order is the group of each input."""
    turned = weight.T.numpy()
    groups = order.max() + 1
    scales, zeros = np.zeros((groups, turned.shape[1]), np.float16), np.zeros((groups, turned.shape[1]), np.int64)
    q = np.zeros(turned.shape, np.int64)
    for number in range(groups):
        part = turned[order == number]
        if symmetric:
            scale = (np.abs(part).max(0) / 7).astype(np.float16)
            zero = np.full(part.shape[1], 8)
        else:
            low, high = np.minimum(part.min(0), 0), np.maximum(part.max(0), 0)
            scale = ((high - low) / 15).astype(np.float16)
            zero = np.clip(np.round(-low / scale.astype(np.float32)), 1, 15).astype(np.int64)
        scales[number], zeros[number] = scale, zero
        q[order == number] = np.clip(np.round(part / scale.astype(np.float32)) + zero, 0, 15)
    return q, scales, zeros


def words(numbers, axis, order=range(8)):
    """Eight numbers of 4 bits in a word, along an axis; the lowest bits are those of order[0]."""
    numbers = np.moveaxis(numbers, axis, 0)
    numbers = numbers.reshape(numbers.shape[0] // 8, 8, *numbers.shape[1:])
    packed = np.zeros((numbers.shape[0], *numbers.shape[2:]), np.uint32)
    for at, place in enumerate(order):
        packed |= numbers[:, place].astype(np.uint32) << np.uint32(4 * at)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed, 0, axis)).view(np.int32))


def dequantised(q, scales, zeros, order):
    return torch.from_numpy((scales.astype(np.float32)[order] * (q - zeros[order]).astype(np.float32)).T.copy())


def gptq(group, symmetric, act_order=False, zero_offset=1):
    def one(name, weight):
        inputs = weight.shape[1]
        size = inputs if group == -1 else group
        order = np.arange(inputs) // size
        if act_order:
            order = order[np.random.RandomState(inputs).permutation(inputs)]
        q, scales, zeros = grouped(weight, size, symmetric, order)
        base = name.removesuffix(".weight")
        return {
            f"{base}.qweight": words(q, 0), f"{base}.qzeros": words(zeros - zero_offset, 1),
            f"{base}.scales": torch.from_numpy(scales), f"{base}.g_idx": torch.from_numpy(order.astype(np.int32)),
        }, dequantised(q, scales, zeros, order)
    config = dict(quant_method="gptq", bits=4, group_size=group, sym=symmetric, desc_act=act_order,
                  checkpoint_format="gptq" if zero_offset else "gptq_v2")
    return one, config


def awq(group):
    def one(name, weight):
        order = np.arange(weight.shape[1]) // group
        q, scales, zeros = grouped(weight, group, False, order)
        base = name.removesuffix(".weight")
        return {
            f"{base}.qweight": words(q, 1, AWQ_ORDER), f"{base}.qzeros": words(zeros, 1, AWQ_ORDER),
            f"{base}.scales": torch.from_numpy(scales),
        }, dequantised(q, scales, zeros, order)
    return one, dict(quant_method="awq", bits=4, group_size=group, version="gemm", zero_point=True)


def fp8(block=None, by_row=False):
    def one(name, weight):
        rows, cols = weight.shape
        height, width = block or ((1, cols) if by_row else (rows, cols))
        down, across = -(-rows // height), -(-cols // width)
        scales = torch.zeros(down, across)
        wide = torch.zeros(rows, cols)
        for y in range(down):
            for x in range(across):
                part = slice(y * height, (y + 1) * height), slice(x * width, (x + 1) * width)
                scales[y, x] = weight[part].abs().max() / 448
                wide[part] = scales[y, x]
        packed = (weight / wide).to(torch.float8_e4m3fn)
        scale_name = "weight_scale_inv" if block else "weight_scale"
        stored = scales if block or by_row else scales.reshape(())
        base = name.removesuffix(".weight")
        return {name: packed, f"{base}.{scale_name}": stored.contiguous()}, packed.to(torch.float32) * wide
    if block:
        return one, dict(quant_method="fp8", activation_scheme="dynamic", weight_block_size=list(block))
    strategy = "channel" if by_row else "tensor"
    weights = dict(num_bits=8, type="float", strategy=strategy, symmetric=True, dynamic=False)
    return one, dict(quant_method="compressed-tensors", format="float-quantized",
                     config_groups=dict(group_0=dict(targets=["Linear"], weights=weights)))


CASES = {
    "gptq-symmetric": gptq(32, True),
    "gptq-zero-points": gptq(64, False),
    "gptq-act-order": gptq(32, True, act_order=True),
    "gptq-v2-whole": gptq(-1, False, zero_offset=0),
    "awq": awq(32),
    "fp8-blocks": fp8(block=(48, 32)),
    "fp8-tensor": fp8(),
    "fp8-channel": fp8(by_row=True),
}


def make(name, one, quantization):
    torch.manual_seed(sum(map(ord, name)))
    config = LlamaConfig(**CONFIG, tie_word_embeddings=False)
    config._attn_implementation = "eager"
    model = LlamaForCausalLM(config).eval()
    folder = HERE / "quantized" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tensors, golden = {}, {}
    for key, weight in model.state_dict().items():
        if "_proj" in key:
            stored, exact = one(key, weight)
            tensors.update(stored)
            golden[key] = exact
            weight.copy_(exact)
        else:
            tensors[key] = weight.clone()
    written = {**json.loads(config.to_json_string()), "architectures": ["LlamaForCausalLM"]}
    written["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(written, indent=2) + "\n")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    ids = torch.randint(0, config.vocab_size, (2, 24))
    with torch.no_grad():
        golden["logits"] = model(input_ids=ids).logits.contiguous()
    golden["input_ids"] = ids.to(torch.int32)
    save_file(golden, folder / "golden.safetensors")


for name, (one, quantization) in CASES.items():
    make(name, one, quantization)
