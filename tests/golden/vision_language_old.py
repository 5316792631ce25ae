#!/usr/bin/env python3
"""Compares vision_language.safetensors with the values and gradients of another version of transformers, such as 4.57.1, the first
one with Qwen3-VL, whose configuration has other keys. Prints the largest differences, relative to the largest value, and fails above
1e-5. Run it in this folder; needs torch, transformers and safetensors.

With 4.57.1: 2.7e-7 of the logits, 3e-8 of the loss, 1.2e-6 of the gradients; angles are computed in f32 there.
"""
import json

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

tensors = {name: value.double() if value.is_floating_point() else value.long()
           for name, value in load_file("vision_language.safetensors").items()}
with open("vision_language.json") as file:
    cases = json.load(file)


def model_of(config):
    text = dict(config["text_config"])
    rope = dict(text.pop("rope_parameters"))
    text |= dict(rope_theta=rope.pop("rope_theta"), rope_scaling=rope)
    vision = {key: value for key, value in config["vision_config"].items() if key != "rope_parameters"}
    for part in (text, vision):
        part.pop("dtype", None)
    keys = ["image_token_id", "vision_start_token_id", "vision_end_token_id", "video_token_id", "tie_word_embeddings"]
    config = Qwen3VLConfig(text_config=text, vision_config=vision, attn_implementation="eager", **{key: config[key] for key in keys})
    model = Qwen3VLForConditionalGeneration(config).double().eval()
    if config.tie_word_embeddings:
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
    return model


def relative(found, expected):
    return ((found - expected).abs().max() / expected.abs().max()).item()


for name, config in cases.items():
    of = {key.removeprefix(f"{name}/"): value for key, value in tensors.items() if key.startswith(f"{name}/")}
    model = model_of(config)
    with torch.no_grad():
        for key, value in model.named_parameters():
            value.copy_(of[f"value/{key}"])
    ids, patches = of["ids"], of["patches"]
    mask = (torch.arange(ids.shape[1]) < of["lengths"][:, None]).long()
    frames = patches.reshape(len(patches), 3, 1, -1).expand(-1, -1, 2, -1).reshape(len(patches), -1)
    grids = torch.tensor([[1, *grid] for grid in of["grids"].tolist()])
    logits = model(input_ids=ids, attention_mask=mask, pixel_values=frames, image_grid_thw=grids).logits
    loss = F.cross_entropy(logits.flatten(0, 1), of["targets"].flatten(), reduction="sum")
    loss.backward()
    found = {"logits": relative(logits.detach() * mask[:, :, None], of["logits"]), "loss": relative(loss.detach(), of["loss"]),
             "gradients": max(relative(value.grad, of[f"gradient/{key}"]) for key, value in model.named_parameters())}
    print(transformers.__version__, name, *(f"{key} {value:.1e}" for key, value in found.items()))
    assert max(found.values()) <= 1e-5
