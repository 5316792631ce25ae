"""Exchanges models of images and text with transformers, PEFT and bitsandbytes (`make interop`).

A tiny Qwen3-VL with random weights, saved by transformers, is trained here on conversations without images: completely, with LoRA on
vision tower and decoder, and with LoRA on a base in 4 bits. Then transformers and PEFT load what `ckpt export` wrote, and must compute
the same logits of sequences with images as the model before, in f32 within 1e-5 of the largest one; and losses of conversations as
`evaluate score`. Adapters of PEFT, with values of their own in the tower, are read, merged and written.

    .deps/interop/bin/python tests/interop/vision_language.py target/release
"""

import os
import tempfile
import warnings

import decoders
import torch
from decoders import (LENGTH, NEW_TOKENS, NOT_COMPARED, STILL, compare_losses, configured, export, make_conversations, measured, passed,
                      train)
from peft import LoraConfig, PeftModel, get_peft_model
from text import run
from transformers import AutoConfig, AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.utils import logging

TOKENS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
ADAPTED = r".*\.(attn|self_attn|mlp)\.(qkv|linear_fc\d|\w*proj)"
GRIDS = [(4, 6), (2, 2)]
SIZE = 4


def make_base(folder, tokenizer):
    start, end, image, video = tokenizer.convert_tokens_to_ids(TOKENS)
    config = Qwen3VLConfig(
        text_config=dict(vocab_size=len(tokenizer) + 10, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, head_dim=32, max_position_embeddings=LENGTH + NEW_TOKENS,
                         rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[6, 5, 5], mrope_interleaved=True)),
        vision_config=dict(depth=2, hidden_size=64, num_heads=2, intermediate_size=128, out_hidden_size=64, patch_size=SIZE,
                           num_position_embeddings=25, deepstack_visual_indexes=[0]),
        image_token_id=image, video_token_id=video, vision_start_token_id=start, vision_end_token_id=end, tie_word_embeddings=True)
    model = Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            offset = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            value.copy_(offset + 0.1 * torch.randn(value.shape))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(folder):
    """A model that computes in f32, in training mode if it has weights in 4 bits, where bitsandbytes does so."""
    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    layers = [layer for layer in model.modules() if type(layer).__name__ == "Linear4bit"]
    for layer in layers:
        layer.compute_dtype = torch.float32
    for value in model.parameters():
        value.data = value.data.float() if value.dtype == torch.bfloat16 else value.data
    return model.train(bool(layers))


def inputs(config):
    """Two images in a text, and a text alone."""
    generator = torch.Generator().manual_seed(9)
    ids = [5, 6, 7]
    for rows, columns in GRIDS:
        image = [config.image_token_id] * (rows * columns // 4)
        ids += [config.vision_start_token_id, *image, config.vision_end_token_id, 8, 9]
    ids = torch.tensor([ids])
    patches = torch.rand(sum(r * c for r, c in GRIDS), 3, 1, SIZE * SIZE, generator=generator) * 2 - 1
    images = dict(pixel_values=patches.expand(-1, -1, 2, -1).reshape(len(patches), -1),
                  image_grid_thw=torch.tensor([[1, r, c] for r, c in GRIDS]),
                  mm_token_type_ids=(ids == config.image_token_id).int())
    return [dict(input_ids=ids, **images), dict(input_ids=torch.arange(3, 40)[None])]


def compare_logits(what, a, b, tolerance=1e-5):
    config = a.config if hasattr(a.config, "image_token_id") else a.base_model.config
    for kind, given in zip(["images", "text"], inputs(config)):
        with torch.no_grad():
            left, right = a(**given).logits, b(**given).logits
        worst, largest = (left - right).abs().max().item(), left.abs().max().item()
        assert worst <= tolerance * largest, f"{what}: the logits of {kind} differ by {worst:.1e}, the largest is {largest:.1f}"
        passed(f"{what}: logits of {kind} within {worst:.1e}, the largest is {largest:.1f}")


def compare_config(what, folder, base):
    ours, theirs = (AutoConfig.from_pretrained(name).to_dict() for name in (folder, base))
    parts = [(ours, theirs)] + [(ours[part], theirs[part]) for part in ("text_config", "vision_config")]
    for a, b in parts:
        for key in (a.keys() | b.keys()) - NOT_COMPARED - {"text_config", "vision_config"}:
            assert a.get(key) == b.get(key), f"{what}: {key} is {a.get(key)!r}, not {b.get(key)!r}"
    passed(f"{what}: configuration equal")


def compare_all(conversations):
    tokenizer = AutoTokenizer.from_pretrained("tok")
    tokenizer.add_special_tokens({"additional_special_tokens": TOKENS})
    make_base("qwen3vl", tokenizer)
    run("ds-prep", "tokenize", "split.json", "--tokenizer", "qwen3vl", "--max-length", str(LENGTH), "-o", "tokens")

    # As it is.
    own = train("still", "tokens", configured("qwen3vl"), *STILL)
    base = load("qwen3vl")
    compare_losses("imported", base, tokenizer, conversations, measured(own, "tokens"))
    folder = export(own, "hf")
    compare_config("exported", folder, "qwen3vl")
    compare_logits("exported", load(folder), base, 0.0)

    # LoRA, on the same base and on one in 4 bits.
    run("ckpt", "quantize", "qwen3vl", "-o", "nf4")
    layers = [name for name, layer in load("nf4").named_modules() if type(layer).__name__ == "Linear4bit"]
    assert len(layers) == 2 * 4 + 2 * 7 and not any("merger" in name for name in layers), layers
    for name in ["qwen3vl", "nf4"]:
        lora = f"model.lora={{r: 4, alpha: 8, targets: '{ADAPTED}'}}"
        own = train(f"{name}-lora", "tokens", configured(name), "-s", lora)
        merged, adapted = load(export(own, "hf")), PeftModel.from_pretrained(load(name), export(own, "peft"))
        adapted.train(name == "nf4")
        found = measured(own, "tokens")
        compare_losses(f"{own} merged", merged, tokenizer, conversations, found)
        compare_losses(f"{own} adapter", adapted, tokenizer, conversations, found)
        compare_logits(f"{own} merged and adapter", merged, adapted)

        # Adapters that PEFT saved, whose values in the tower are not zero.
        for number, targets in enumerate([["qkv", "linear_fc2", "q_proj", "down_proj"], ADAPTED, "all-linear"]):
            theirs = get_peft_model(load(name), LoraConfig(r=2, lora_alpha=5, target_modules=targets, use_rslora=number == 1))
            theirs.train(name == "nf4")
            with torch.no_grad():
                for value in theirs.parameters():
                    if value.requires_grad:
                        value.add_(0.1 * torch.randn(value.shape))
            adapter = f"{name}-peft-{number}"
            theirs.save_pretrained(adapter)
            back = train(f"{adapter}-run", "tokens", configured(name, "--adapter", adapter), *STILL)
            compare_losses(f"{name}: adapter of {targets} imported", theirs, tokenizer, conversations, measured(back, "tokens"))
            compare_logits(f"{name}: adapter of {targets} merged", load(export(back, "hf")), theirs)
            again = PeftModel.from_pretrained(load(name), export(back, "peft")).train(name == "nf4")
            compare_logits(f"{name}: adapter of {targets} again", again, theirs, 0.0)


def main():
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        compare_all(make_conversations())
        os.chdir("/")
    print(f"vision_language: {decoders.checks} comparisons with transformers, PEFT and bitsandbytes, all equal")


if __name__ == "__main__":
    main()
