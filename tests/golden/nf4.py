#!/usr/bin/env python3
"""Makes nf4.safetensors: weights quantised by bitsandbytes 0.50.2 on the CPU, with and without double quantisation.

Run it in this folder; needs torch, bitsandbytes and safetensors. lib/tensor/src/nf4/tests.rs reads the result.
"""
import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from safetensors.torch import save_file

random = torch.Generator().manual_seed(8)
normal = torch.randn(96, 260, generator=random) * 0.05
zeros = torch.randn(6, 128, generator=random)
zeros[1] = 0.0
# Halfway between two numbers, and on both sides of it.
numbers = quantize_4bit(torch.ones(64), quant_type="nf4")[1].code
middle = (numbers[1:] + numbers[:-1]) / 2
ties = torch.cat([middle, torch.nextafter(middle, torch.ones(15)), torch.nextafter(middle, -torch.ones(15))])
ties = torch.cat([torch.ones(1), ties, torch.zeros(18)]).reshape(2, 32)
cases = {
    "bf16": normal.bfloat16(),
    "f16": torch.randn(31, 66, generator=random).half(),
    "f32": normal[:40],
    "zeros": zeros,
    "ties": ties,
    "odd": torch.randn(7, 33, generator=random).bfloat16(),
}
tensors = {}
for name, weight in cases.items():
    tensors[f"{name}/weight"] = weight
    for nested in [False, True]:
        codes, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=nested)
        kind = "nested" if nested else "plain"
        found = {"codes": codes, "scales": state.absmax, "numbers": state.code}
        if nested:
            found["largest"] = state.state2.absmax
            found["map"] = state.state2.code
            found["offset"] = state.offset.reshape(1)
        found["weight"] = dequantize_4bit(codes, state)
        tensors |= {f"{name}/{kind}/{key}": value.clone() for key, value in found.items()}
save_file(tensors, "nf4.safetensors")
