#!/usr/bin/env python3
"""Makes decoders.safetensors and decoders.json: the results of transformers for small decoders of Qwen3, Qwen2 and
Llama with random weights, and its angles for each rope type.

Run it in this folder; needs torch, transformers and safetensors (written with torch 2.15, transformers 5.24).
lib/tasks/tests/decoders.rs reads the results.

Everything is drawn as f32 and computed in f64. A case NAME has NAME/ids, NAME/lengths, NAME/targets (the next token, -100
at the end and at padding), NAME/logits (zero at padding), NAME/loss (the sum over tokens), and for each parameter its value
NAME/value/<parameter> and gradient of the loss NAME/gradient/<parameter>. decoders.json has the config.json of each case.
A rope type NAME has rope_NAME/positions and rope_NAME/table, and in decoders.json its parameters.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

torch.manual_seed(9)
tensors, configs = {}, {}
LENGTHS = [11, 1, 7]
SIZES = dict(vocab_size=53, num_hidden_layers=2, max_position_embeddings=64, attn_implementation="eager")


def keep(name, value):
    dtype = single if value.is_floating_point() else torch.int
    tensors[name] = value.detach().to(dtype).contiguous().clone()


def case(name, model, config):
    model = model(config)
    # Other values than the initial ones, so that biases and normalisations matter.
    with torch.no_grad():
        for key, value in model.named_parameters():
            offset = 1.0 if key.endswith("norm.weight") else 0.0
            value.copy_((offset + 0.2 * torch.randn(value.shape, dtype=single)))
    model = model.double().eval()
    ids = torch.zeros(len(LENGTHS), max(LENGTHS), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(1, SIZES["vocab_size"], (length,))
        mask[row, :length] = 1
    labels = ids.masked_fill(mask == 0, -100)
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    logits = model(input_ids=ids, attention_mask=mask).logits
    assert logits.dtype == torch.float64
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    for key, value in dict(ids=ids, lengths=torch.tensor(LENGTHS), targets=targets).items():
        keep(f"{name}/{key}", value)
    keep(f"{name}/logits", (logits * mask[:, :, None]))
    keep(f"{name}/loss", loss.reshape(1))
    for key, value in model.named_parameters():
        keep(f"{name}/value/{key}", value)
        keep(f"{name}/gradient/{key}", value.grad)
    configs[name] = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}


def rope(name, **parameters):
    """Angles of a head of 64 elements."""
    parameters = dict(rope_theta=500_000.0, rope_type=name.split("_")[0]) | parameters
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, max_position_embeddings=131072, rope_parameters=dict(parameters))
    positions = torch.tensor([[0, 1, 2, 77, 5000, 131071]])
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1, dtype=torch.float64), positions)
    table = torch.cat((cos[0, :, :32], sin[0, :, :32]), -1)
    assert table.dtype == torch.float64
    keep(f"rope_{name}/positions", positions[0])
    keep(f"rope_{name}/table", table)
    configs[f"rope_{name}"] = parameters


# transformers computes angles, normalisations and the softmax in f32 in every model. Here it must not.
single = torch.float32
torch.float32 = torch.float = torch.float64
yarn = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
llama3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=4.0, original_max_position_embeddings=32)
qwen3 = dict(hidden_size=26, intermediate_size=34, num_attention_heads=6, num_key_value_heads=2, head_dim=10)
try:
    case("qwen3", Qwen3ForCausalLM, Qwen3Config(
        **qwen3, **SIZES, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6)))
    case("qwen2", Qwen2ForCausalLM, Qwen2Config(
        **SIZES, hidden_size=24, intermediate_size=30, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5,
        rope_parameters=dict(rope_type="linear", factor=2.5, rope_theta=1e4)))
    case("llama", LlamaForCausalLM, LlamaConfig(
        **SIZES, hidden_size=20, intermediate_size=27, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
        attention_bias=True, mlp_bias=True, rope_parameters=llama3 | dict(rope_theta=1e4)))
    case("qwen3_yarn", Qwen3ForCausalLM, Qwen3Config(
        **qwen3, **SIZES, rope_parameters=yarn | dict(rope_theta=1e4)))
    rope("default")
    rope("linear", factor=3.0)
    rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    rope("yarn", factor=4.0, original_max_position_embeddings=32768)
    rope("yarn_whole", factor=16.0, original_max_position_embeddings=4096, truncate=False, beta_fast=20.0, beta_slow=2.0)
    rope("yarn_scaled", factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=0.8)
    rope("yarn_factor", factor=4.0, original_max_position_embeddings=4096, attention_factor=0.9)
finally:
    torch.float32 = torch.float = single
save_file(tensors, "decoders.safetensors")
os.chmod("decoders.safetensors", 0o644)
with open("decoders.json", "w") as file:
    json.dump(configs, file, indent=1)
    file.write("\n")
