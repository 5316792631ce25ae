#!/usr/bin/env python3
"""Writes a folder of transformers with a Qwen3 of random weights in bf16, for tests at the size of real models.

The default is the shape of Qwen3-1.7B with a head of its own: 2.03 billion parameters, 4.1 GB in shards of about 1 GB with an
index. With --vision it is that of Qwen3-VL-2B, whose head is tied: 2,127,532,032 parameters in 625 tensors, 4.3 GB. Weights and
biases are normal with standard deviation 0.02, norms are 1. Values are drawn and written piece by piece, so it needs little
memory. The tokenizer, its chat template and the settings of images are copied from another folder; the vocabulary of the model
may be larger than that of the tokenizer. Needs numpy.

    tests/peers/random_decoder.py FOLDER --tokenizer FOLDER [--vision]
"""
import argparse
import json
import math
import pathlib
import shutil

import numpy

# Elements that are drawn at once.
PIECE = 1 << 22
TOKENIZER = [
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "preprocessor_config.json"]
# The tokens of config.json around and in images and videos, and their ids in Qwen3-VL.
IMAGE_TOKENS = {"vision_start": 151652, "vision_end": 151653, "image": 151655, "video": 151656}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=pathlib.Path)
SHAPE = [("hidden", 2048), ("layers", 28), ("heads", 16), ("kv-heads", 8), ("head", 128), ("wide", 6144), ("vocabulary", 151936)]
# Of the vision tower; patches of one token form a square of side --merge.
TOWER = [
    ("depth", 24), ("vision-hidden", 1024), ("vision-heads", 16), ("vision-wide", 4096), ("patch", 16), ("frames", 2), ("merge", 2),
    ("vision-positions", 2304)]
for name, default in [*SHAPE, *TOWER, ("positions", None), ("seed", 1)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--vision", action="store_true", help="write a Qwen3-VL, whose head is tied, with a vision tower")
parser.add_argument("--tied", action="store_true", help="the head is the table of embeddings")
parser.add_argument("--shard", type=float, default=1e9, help="bytes after which a file ends")
parser.add_argument("--tokenizer", type=pathlib.Path, help="folder whose tokenizer and chat template are copied")


def deepstack(a):
    """The blocks of the tower after which features are taken: after each quarter of them but the last."""
    return sorted({max(a.depth * quarter // 4 - 1, 0) for quarter in (1, 2, 3)})[:a.layers]


def of_tower(a):
    """Name and shape of every parameter of the vision tower."""
    width, square = a.vision_hidden, a.vision_hidden * a.merge ** 2

    def both(name, outputs, *inputs):
        return [(f"model.visual.{name}.weight", [outputs, *inputs]), (f"model.visual.{name}.bias", [outputs])]

    yield from both("patch_embed.proj", width, 3, a.frames, a.patch, a.patch)
    yield "model.visual.pos_embed.weight", [a.vision_positions, width]
    for block in (f"blocks.{number}" for number in range(a.depth)):
        yield from both(f"{block}.norm1", width) + both(f"{block}.norm2", width)
        yield from both(f"{block}.attn.qkv", 3 * width, width) + both(f"{block}.attn.proj", width, width)
        yield from both(f"{block}.mlp.linear_fc1", a.vision_wide, width) + both(f"{block}.mlp.linear_fc2", width, a.vision_wide)
    mergers = [("merger", width)] + [(f"deepstack_merger_list.{number}", square) for number in range(len(deepstack(a)))]
    for name, normalized in mergers:
        yield from both(f"{name}.norm", normalized)
        yield from both(f"{name}.linear_fc1", square, square) + both(f"{name}.linear_fc2", a.hidden, square)


def shapes(a):
    """Name and shape of every parameter."""
    if a.vision:
        yield from of_tower(a)
    model = "model.language_model" if a.vision else "model"
    yield f"{model}.embed_tokens.weight", [a.vocabulary, a.hidden]
    for layer in range(a.layers):
        sizes = [("q", a.heads * a.head, a.hidden), ("k", a.kv_heads * a.head, a.hidden), ("v", a.kv_heads * a.head, a.hidden),
                 ("o", a.hidden, a.heads * a.head)]
        for name, outputs, inputs in sizes:
            yield f"{model}.layers.{layer}.self_attn.{name}_proj.weight", [outputs, inputs]
        for name in ("q_norm", "k_norm"):
            yield f"{model}.layers.{layer}.self_attn.{name}.weight", [a.head]
        for name, outputs, inputs in [("gate", a.wide, a.hidden), ("up", a.wide, a.hidden), ("down", a.hidden, a.wide)]:
            yield f"{model}.layers.{layer}.mlp.{name}_proj.weight", [outputs, inputs]
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{model}.layers.{layer}.{name}.weight", [a.hidden]
    yield f"{model}.norm.weight", [a.hidden]
    if not a.tied:
        yield "lm_head.weight", [a.vocabulary, a.hidden]


def text_config(a):
    """What config.json says of the decoder."""
    return {
        "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu", "vocab_size": a.vocabulary, "hidden_size": a.hidden,
        "intermediate_size": a.wide, "num_hidden_layers": a.layers, "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads, "head_dim": a.head, "max_position_embeddings": a.positions or 40960, "rms_norm_eps": 1e-6,
        "attention_bias": False, "attention_dropout": 0.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "initializer_range": 0.02,
    }


def vision_config(a):
    """config.json of a Qwen3-VL."""
    # In the proportions of Qwen3-VL-2B: 24, 20 and 20 of 64 frequencies.
    sides = a.head // 2 * 20 // 64
    rope = {
        "rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
        "mrope_section": [a.head // 2 - 2 * sides, sides, sides]}
    text = text_config(a) | {
        "model_type": "qwen3_vl_text", "rope_parameters": rope, "max_position_embeddings": a.positions or 262144}
    tower = {
        "model_type": "qwen3_vl", "depth": a.depth, "hidden_size": a.vision_hidden, "num_heads": a.vision_heads,
        "intermediate_size": a.vision_wide, "patch_size": a.patch, "temporal_patch_size": a.frames, "spatial_merge_size": a.merge,
        "out_hidden_size": a.hidden, "num_position_embeddings": a.vision_positions, "deepstack_visual_indexes": deepstack(a),
        "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "initializer_range": 0.02,
    }
    ids = dict(IMAGE_TOKENS)
    if a.tokenizer:
        added = {token["content"]: token["id"] for token in json.loads((a.tokenizer / "tokenizer.json").read_text())["added_tokens"]}
        names = {key: f"<|{key}_pad|>" if key in ("image", "video") else f"<|{key}|>" for key in ids}
        ids = {key: added[name] for key, name in names.items() if name in added}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "dtype": "bfloat16", "text_config": text,
        "vision_config": tower, "tie_word_embeddings": a.tied} | {f"{key}_token_id": id for key, id in ids.items()}


def bf16(values):
    """The upper halves of f32, rounded to the nearest."""
    bits = values.view(numpy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(path, tensors, generator):
    """One file in the format of safetensors: the length of the header, the header, the values."""
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in tensors:
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors:
            left, is_norm = math.prod(shape), len(shape) == 1 and not name.endswith("bias")
            while left:
                count = min(left, PIECE)
                values = numpy.ones(count, "f4") if is_norm else 0.02 * generator.standard_normal(count, "f4")
                file.write(bf16(values.astype("f4", copy=False)))
                left -= count


def main(a):
    a.tied |= a.vision
    a.folder.mkdir(parents=True)
    shards, size = [[]], 0
    for name, shape in shapes(a):
        if shards[-1] and size >= a.shard:
            shards, size = [*shards, []], 0
        shards[-1].append((name, shape))
        size += 2 * math.prod(shape)
    generator, places, total = numpy.random.default_rng(a.seed), {}, 0
    for number, tensors in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write(a.folder / file, tensors, generator)
        places.update({name: file for name, _ in tensors})
        total += sum(2 * math.prod(shape) for _, shape in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    if a.vision:
        config = vision_config(a)
    else:
        config = text_config(a) | {"architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": a.tied}
    for name, content in [("model.safetensors.index.json", index), ("config.json", config)]:
        (a.folder / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in TOKENIZER if a.tokenizer else []:
        if (a.tokenizer / name).is_file():
            shutil.copy(a.tokenizer / name, a.folder / name)
    print(f"{total // 2} parameters in {len(places)} tensors and {len(shards)} files")


if __name__ == "__main__":
    main(parser.parse_args())
