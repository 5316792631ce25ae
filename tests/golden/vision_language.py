#!/usr/bin/env python3
"""Makes vision_language.safetensors and vision_language.json: the results of transformers for small models of Qwen3-VL with
random weights.

Run it in this folder; needs torch, transformers and safetensors (written with torch 2.15, transformers 5.24).
lib/tasks/tests/images.rs and image_models.rs read the results.

Everything is drawn as f32 and computed in f64. A case NAME has NAME/ids and NAME/lengths of its sequences, NAME/targets (the next
token, -100 at the end, at padding and at image tokens), NAME/grids (rows and columns of patches of the images of all sequences, in
order), NAME/images (the number of images of each sequence), NAME/patches (one frame of each patch), NAME/logits (zero at padding),
NAME/loss (the sum over tokens), and for each parameter its value NAME/value/<parameter> and gradient of the loss
NAME/gradient/<parameter>. vision_language.json has the config.json of each case.
"""
import json
import os

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

torch.manual_seed(11)
tensors, configs = {}, {}
IMAGE, START, END, VIDEO = 40, 41, 42, 43


def keep(name, value):
    dtype = single if value.is_floating_point() else torch.int
    tensors[name] = value.detach().to(dtype).contiguous().clone()


def case(name, sequences, text, vision, tied):
    """Each sequence is a list of lengths of text and of grids of images."""
    config = Qwen3VLConfig(
        text_config=dict(vocab_size=44, max_position_embeddings=128, num_attention_heads=4, num_key_value_heads=2, head_dim=12) | text,
        vision_config=dict(patch_size=4, spatial_merge_size=2, temporal_patch_size=2) | vision,
        image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END, video_token_id=VIDEO, tie_word_embeddings=tied,
        attn_implementation="eager")
    model = Qwen3VLForConditionalGeneration(config)
    # Other values than the initial ones, so that biases and normalisations matter.
    with torch.no_grad():
        for key, value in model.named_parameters():
            offset = 1.0 if "norm" in key and key.endswith("weight") else 0.0
            value.copy_(offset + 0.2 * torch.randn(value.shape, dtype=single))
    model = model.double().eval()
    rows, grids, counts = [], [], []
    for parts in sequences:
        row = []
        for part in parts:
            if isinstance(part, int):
                row += torch.randint(0, IMAGE, (part,)).tolist()
            else:
                grids.append(part)
                row += [START, *[IMAGE] * (part[0] * part[1] // 4), END]
        rows.append(row)
        counts.append(sum(not isinstance(part, int) for part in parts))
    lengths = [len(row) for row in rows]
    ids = torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
    mask = torch.tensor([[1] * n + [0] * (max(lengths) - n) for n in lengths])
    labels = ids.masked_fill((mask == 0) | (ids == IMAGE), -100)
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    patches = torch.randn(sum(r * c for r, c in grids), 3, 1, 16, dtype=single)
    frames = patches.expand(-1, -1, 2, -1).reshape(len(patches), -1).double()
    images = dict(pixel_values=frames, image_grid_thw=torch.tensor([[1, r, c] for r, c in grids])) if grids else {}
    kinds = (ids == IMAGE).int()
    logits = model(input_ids=ids, attention_mask=mask, mm_token_type_ids=kinds, **images).logits
    assert logits.dtype == torch.float64
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss.backward()
    kept = dict(ids=ids, lengths=torch.tensor(lengths), targets=targets, grids=torch.tensor(grids), images=torch.tensor(counts),
                patches=patches.reshape(len(patches), -1), logits=logits * mask[:, :, None], loss=loss.reshape(1))
    for key, value in kept.items():
        keep(f"{name}/{key}", value)
    for key, value in model.named_parameters():
        keep(f"{name}/value/{key}", value)
        keep(f"{name}/gradient/{key}", value.grad)
    configs[name] = json.loads(config.to_json_string(use_diff=False)) | {"architectures": [type(model).__name__]}


def rope(section):
    return dict(rope_type="default", rope_theta=5e6, mrope_section=section, mrope_interleaved=True)


# transformers computes angles, normalisations and the softmax in f32. Here it must not.
single = torch.float32
torch.float32 = torch.float = torch.float64
try:
    # Text between and around images of several shapes, one of them a single token; a sequence without an image.
    case("mixed", [[2, (4, 6), 3], [(2, 2), 1, (8, 2), 4], [7]],
         dict(hidden_size=20, intermediate_size=26, num_hidden_layers=3, rope_parameters=rope([3, 2, 1])),
         dict(depth=3, hidden_size=24, num_heads=2, intermediate_size=30, out_hidden_size=20, num_position_embeddings=25,
              deepstack_visual_indexes=[0, 1]), True)
    # A head of its own, and no features after layers.
    case("untied", [[1, (2, 8), 5]],
         dict(hidden_size=18, intermediate_size=22, num_hidden_layers=1, rope_parameters=rope([2, 2, 2])),
         dict(depth=1, hidden_size=16, num_heads=4, intermediate_size=20, out_hidden_size=18, num_position_embeddings=9,
              deepstack_visual_indexes=[]), False)
finally:
    torch.float32 = torch.float = single
save_file(tensors, "vision_language.safetensors")
os.chmod("vision_language.safetensors", 0o644)
with open("vision_language.json", "w") as file:
    json.dump(configs, file, indent=1)
    file.write("\n")
