#!/usr/bin/env python3
"""Writes a folder of transformers with a Qwen3 of random weights in bf16, for tests at the size of real models.

The default is the shape of Qwen3-1.7B with a head of its own: 2.03 billion parameters, 4.1 GB in shards of about 1 GB with an
index. Weights are normal with standard deviation 0.02, norms are 1. Values are drawn and written piece by piece, so it needs
little memory. The tokenizer and its chat template are copied from another folder; the vocabulary of the model may be larger
than that of the tokenizer. Needs numpy.

    tests/peers/random_decoder.py FOLDER --tokenizer FOLDER
"""
import argparse
import json
import math
import pathlib
import shutil

import numpy

# Elements that are drawn at once.
PIECE = 1 << 22
TOKENIZER = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"]

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=pathlib.Path)
SHAPE = [("hidden", 2048), ("layers", 28), ("heads", 16), ("kv-heads", 8), ("head", 128), ("wide", 6144), ("vocabulary", 151936)]
for name, default in [*SHAPE, ("positions", 40960), ("seed", 1)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--tied", action="store_true", help="the head is the table of embeddings")
parser.add_argument("--shard", type=float, default=1e9, help="bytes after which a file ends")
parser.add_argument("--tokenizer", type=pathlib.Path, help="folder whose tokenizer and chat template are copied")


def shapes(a):
    """Name and shape of every parameter."""
    yield "model.embed_tokens.weight", [a.vocabulary, a.hidden]
    for layer in range(a.layers):
        sizes = [("q", a.heads * a.head, a.hidden), ("k", a.kv_heads * a.head, a.hidden), ("v", a.kv_heads * a.head, a.hidden),
                 ("o", a.hidden, a.heads * a.head)]
        for name, outputs, inputs in sizes:
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", [outputs, inputs]
        for name in ("q_norm", "k_norm"):
            yield f"model.layers.{layer}.self_attn.{name}.weight", [a.head]
        for name, outputs, inputs in [("gate", a.wide, a.hidden), ("up", a.wide, a.hidden), ("down", a.hidden, a.wide)]:
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", [outputs, inputs]
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{layer}.{name}.weight", [a.hidden]
    yield "model.norm.weight", [a.hidden]
    if not a.tied:
        yield "lm_head.weight", [a.vocabulary, a.hidden]


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
        for _, shape in tensors:
            left = math.prod(shape)
            while left:
                count = min(left, PIECE)
                is_norm = len(shape) == 1
                values = numpy.ones(count, "f4") if is_norm else 0.02 * generator.standard_normal(count, "f4")
                file.write(bf16(values.astype("f4", copy=False)))
                left -= count


def main(a):
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
    config = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": a.vocabulary, "hidden_size": a.hidden, "intermediate_size": a.wide, "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head,
        "max_position_embeddings": a.positions, "rms_norm_eps": 1e-6, "attention_bias": False, "attention_dropout": 0.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": a.tied, "initializer_range": 0.02,
    }
    for name, content in [("model.safetensors.index.json", index), ("config.json", config)]:
        (a.folder / name).write_text(json.dumps(content, indent=2) + "\n")
    for name in TOKENIZER if a.tokenizer else []:
        if (a.tokenizer / name).is_file():
            shutil.copy(a.tokenizer / name, a.folder / name)
    print(f"{total // 2} parameters in {len(shards)} files")


if __name__ == "__main__":
    main(parser.parse_args())
