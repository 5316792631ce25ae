#!/usr/bin/env python3
"""Makes mmdit.safetensors: results of small MMDiTs with text and one latent per sample, built around the package mmdit,
and of single hyper-connections; and mmdit.pt, a checkpoint of a still smaller one.

Run it in this folder, once with mmdit 0.3.0, whose hyper-connections are manifold-constrained, and once with mmdit
0.2.2, whose are plain: each run replaces the values of its own form. Needs torch and safetensors (written with torch
2.15, hyper-connections 0.4.11, x-transformers 2.31.10). lib/tensor/tests/ops/golden/hyper_connection.rs,
lib/tasks/tests/cycle_vae.rs and tests/sentences.rs read the results.

Everything is drawn as f32 and computed in f64. FORM is `manifold` or `plain`, S the number of residual streams.
- A model FORM/S (S = 1: without hyper-connections, in the run with 0.3.0 only, as residual/1) has tokens [2, 5],
  latents [2, 1, 3], text_t and latent_t [2], logits [2, 5, 11], latent [2, 1, 3], the gradients of these two dlogits
  and dlatent, the gradients of the inputs dlatents, dtext_t and dlatent_t, and for each parameter its value
  value/<parameter> and gradient gradient/<parameter>. Parameters have the names of checkpoints.
- A connection connection/FORM/S has streams [2, 3, S, 6], branch [2, 3, 6] (the output of the branch), input [2, 3, 6]
  (that of the branch), out [2, 3, S, 6], the gradients dinput and dout, dstreams and dbranch, and value/ and
  gradient/<parameter>.
The metadata have the number of parameters of the model with 892M parameters in each form.

mmdit.pt has what the original's trainer saves: the state_dict, with a table of 128 tokens, states of an optimizer and
of random numbers, the step and the configuration. The run with 0.3.0 writes it.
"""
import json
import random
import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path

# The package has the name of this file.
sys.path.pop(0)

import torch
from mmdit import mmdit_generalized_pytorch as package
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

MANIFOLD = hasattr(package, "ManifoldConstrainedHyperConnections")
FORM = "manifold" if MANIFOLD else "plain"
Connections = package.ManifoldConstrainedHyperConnections if MANIFOLD else package.HyperConnections
tensors = {}


class TextEncoder(nn.Module):
    def __init__(self, hidden, vocabulary, longest):
        super().__init__()
        self.token_embed = nn.Embedding(vocabulary, hidden)
        self.position_embed = nn.Parameter(0.02 * torch.randn(longest, hidden))

    def forward(self, tokens):
        return self.token_embed(tokens) + self.position_embed[: tokens.shape[1]]


class LatentEncoder(nn.Module):
    def __init__(self, hidden, dim):
        super().__init__()
        wide = 2 * hidden
        self.projection = nn.Sequential(nn.Linear(dim, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, hidden))
        self.position_embed = nn.Parameter(0.02 * torch.randn(1, hidden))

    def forward(self, latents):
        return self.projection(latents) + self.position_embed


class Time(nn.Module):
    """Cosines and sines of t in [0, 1] itself, and an MLP."""

    def __init__(self, cond):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, cond), nn.SiLU(), nn.Linear(cond, cond))

    def forward(self, t):
        angles = t[:, None] * 10000 ** (-torch.arange(128, dtype=t.dtype) / 128)
        return nn.functional.silu(self.mlp(torch.cat((angles.cos(), angles.sin()), 1)))


class Conditioning(nn.Module):
    def __init__(self, cond):
        super().__init__()
        self.text_sigma_map, self.latent_sigma_map = Time(cond), Time(cond)
        self.combine = nn.Sequential(nn.Linear(2 * cond, 4 * cond), nn.SiLU(), nn.Linear(4 * cond, cond))

    def forward(self, text_t, latent_t):
        return self.combine(torch.cat((self.text_sigma_map(text_t), self.latent_sigma_map(latent_t)), 1))


class Model(nn.Module):
    def __init__(self, hidden, cond, vocabulary, dim, longest, depth, streams, **heads):
        super().__init__()
        self.text_encoder = TextEncoder(hidden, vocabulary, longest)
        self.latent_encoder = LatentEncoder(hidden, dim)
        self.conditioning = Conditioning(cond)
        self.mmdit = package.MMDiT(depth=depth, dim_modalities=(hidden, hidden), dim_cond=cond,
                                   num_residual_streams=streams, **heads)
        self.text_head = nn.Linear(hidden, vocabulary)
        wide = 2 * hidden
        self.latent_head = nn.Sequential(nn.Linear(hidden, wide), nn.GELU(), nn.Dropout(0.1), nn.Linear(wide, dim))

    def forward(self, tokens, latents, text_t, latent_t):
        inputs = (self.text_encoder(tokens), self.latent_encoder(latents))
        text, latent = self.mmdit(modality_tokens=inputs, time_cond=self.conditioning(text_t, latent_t))
        return self.text_head(text), self.latent_head(latent)


def randomise(module, deviation=0.4):
    """Other values than the initial ones, many of which are zero."""
    with torch.no_grad():
        for value in module.parameters():
            value.add_(deviation * torch.randn(value.shape))
    for part in module.modules():
        if hasattr(part, "attn_fn"):
            part.attn_fn = partial(part.attn_fn, dtype=torch.double)
    return module.double().eval()


def seed(number):
    torch.manual_seed(number)
    random.seed(number)


def drawn(*shape):
    return torch.randn(shape).double().requires_grad_()


def keep(name, **values):
    for key, value in values.items():
        dtype = torch.float if value.is_floating_point() else torch.int
        tensors[f"{name}/{key}"] = value.detach().to(dtype).contiguous().clone()


def keep_parameters(name, module):
    for key, value in module.named_parameters():
        keep(name, **{f"value/{key}": value, f"gradient/{key}": value.grad})


def model(name, streams):
    seed(40 + streams)
    # With a deviation of 0.4, gradients through four plain streams multiply a rounding of f32 by some thousand.
    module = randomise(Model(6, 4, 11, 3, 7, depth=2, streams=streams, heads=2, dim_head=4), 0.1)
    tokens = torch.randint(0, 11, (2, 5))
    latents = drawn(2, 1, 3)
    text_t, latent_t = (torch.rand(2).double().requires_grad_() for _ in range(2))
    logits, latent = module(tokens, latents, text_t, latent_t)
    dlogits, dlatent = torch.randn(logits.shape), torch.randn(latent.shape)
    ((logits * dlogits).sum() + (latent * dlatent).sum()).backward()
    keep(name, tokens=tokens, latents=latents, text_t=text_t, latent_t=latent_t, logits=logits,
         latent=latent, dlogits=dlogits, dlatent=dlatent, dlatents=latents.grad, dtext_t=text_t.grad,
         dlatent_t=latent_t.grad)
    keep_parameters(name, module)


def connection(streams):
    seed(50 + streams)
    module = randomise(Connections(streams, dim=6))
    x, branch = drawn(2, 3, streams, 6), drawn(2, 3, 6)
    # Plain streams are stored along the axis of the samples.
    flat = lambda x: x if MANIFOLD else x.movedim(2, 1).flatten(0, 1)
    deep = lambda x: x if MANIFOLD else x.unflatten(0, (2, streams)).movedim(1, 2)
    input, rest, options = module.width_connection(flat(x))
    out = deep(module.depth_connection(branch, rest, **options))
    dinput, dout = torch.randn(input.shape), torch.randn(out.shape)
    ((input * dinput).sum() + (out * dout).sum()).backward()
    name = f"connection/{FORM}/{streams}"
    keep(name, streams=x, branch=branch, input=input, out=out, dinput=dinput, dout=dout, dstreams=x.grad,
         dbranch=branch.grad)
    keep_parameters(name, module)


def checkpoint(path):
    seed(60)
    module = randomise(Model(6, 4, 128, 3, 7, depth=1, streams=2, heads=2, dim_head=4)).float()
    optimizer = torch.optim.AdamW(module.latent_head.parameters())
    sum(value.sum() for value in module.latent_head.parameters()).backward()
    optimizer.step()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": 7,
                "config": {"model": {"latent_dim": 3, "dropout": 0.1}, "logging": {"run_name": None}},
                "rng_state": torch.get_rng_state(), "cuda_rng_state": []}, path)
    path.chmod(0o644)


# The package converts to f32 at some places, also in softmax.
torch.Tensor.float = torch.Tensor.double
if MANIFOLD:
    model("residual/1", 1)
    checkpoint(Path(__file__).with_name("mmdit.pt"))
for streams in (2, 4):
    model(f"{FORM}/{streams}", streams)
for streams in (1, 2, 3, 4):
    connection(streams)
with torch.device("meta"):
    large = Model(1024, 1024, 30522, 32, 4096, depth=24, streams=2)
count = sum(value.numel() for value in large.parameters())

path = Path(__file__).with_name("mmdit.safetensors")
metadata = {}
if path.exists():
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        for key in file.keys():
            if key not in tensors and FORM not in key.split("/"):
                tensors[key] = file.get_tensor(key)
metadata |= {FORM: json.dumps({"mmdit": version("mmdit"), "parameters": count})}
save_file(tensors, path, metadata=dict(sorted(metadata.items())))
path.chmod(0o644)
print(f"{path.name}: {FORM}, {len(tensors)} tensors, {path.stat().st_size} bytes; 892M: {count} parameters")
