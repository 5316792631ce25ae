#!/usr/bin/env python3
"""Makes backbones.safetensors: PyTorch's results for convolutional backbones.

Run it in this folder; needs torch and safetensors. lib/tasks/tests/models/golden.rs reads the result.

Everything is drawn as f32 and computed in f64. A case NAME has NAME/x, NAME/features, NAME/out, NAME/dout
(the gradient of its output), NAME/dx, and for each parameter its value NAME/value/<parameter> and gradient
NAME/gradient/<parameter>. Parameters have our names and layouts: channels last in filters.
"""
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

random = torch.Generator().manual_seed(12)
tensors = {}
CONV = {2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {2: F.conv_transpose2d, 3: F.conv_transpose3d}
POOL = {2: F.max_pool2d, 3: F.max_pool3d}
LINEAR = {2: "bilinear", 3: "trilinear"}


def normal(*shape, scale=1.0, offset=0.0):
    return offset + scale * torch.randn(shape, generator=random)


def first(x):
    """Channels before the axes of the grid."""
    return x.movedim(-1, 1)


class Parameters:
    """Draws a parameter when it is first used."""

    def __init__(self):
        self.values = {}

    def get(self, name, *shape, scale=1.0, offset=0.0):
        value = normal(*shape, scale=scale, offset=offset).double().requires_grad_()
        assert name not in self.values, name
        self.values[name] = value
        return value

    def linear(self, name, x, outputs):
        w = self.get(f"{name}.weight", outputs, x.shape[-1], scale=x.shape[-1] ** -0.5)
        return F.linear(x, w, self.get(f"{name}.bias", outputs))

    def conv(self, name, x, outputs, filter, mode, stride=1):
        inputs = x.shape[1]
        w = self.get(f"{name}.weight", outputs, *filter, inputs, scale=(inputs * prod(filter)) ** -0.5)
        sides = [side // 2 for side in reversed(filter) for _ in range(2)]
        bias = self.get(f"{name}.bias", outputs)
        return CONV[len(filter)](F.pad(x, sides, mode=mode), first(w), bias, stride)

    def transposed(self, name, x, outputs, stride):
        w = self.get(f"{name}.weight", x.shape[1], *stride, outputs, scale=x.shape[1] ** -0.5)
        bias = self.get(f"{name}.bias", outputs)
        return TRANSPOSED[len(stride)](x, first(w), bias, stride=stride)

    def embed(self, features, width):
        x = F.silu(self.linear("condition.0", features, width))
        return F.silu(self.linear("condition.1", x, width))

    def conditioned(self, x, condition):
        """Adds a vector to every point of a sample."""
        vector = self.linear("backbone.condition", condition, x.shape[1])
        return x + vector.reshape(*vector.shape, *[1] * (x.dim() - 2))


def filters(grid, n):
    """n taps along each axis; on a line there is one row."""
    return tuple(1 if grid[0] == 1 and i == 0 else n for i in range(len(grid)))


def layer(p, name, i, x, width, filter, mode, norm, activation):
    """Convolution, normalisation, activation."""
    x = p.conv(f"{name}.conv.{i}", x, width, filter, mode)
    if norm == "instance":
        x = F.instance_norm(x)
    elif norm:
        w = p.get(f"{name}.norm.{i}.weight", width, offset=1, scale=0.3)
        x = F.group_norm(x, norm, w, p.get(f"{name}.norm.{i}.bias", width))
    return activation(x)


def unet(p, x, features, grid, output, hidden, levels, side, mode, norm, activation, upsample, condition):
    axes, filter, halves = len(grid), filters(grid, side), filters(grid, 2)
    condition = p.embed(features, condition)
    x = p.conditioned(p.conv("backbone.input", x, hidden, filter, mode), condition)

    def double(name, x, width):
        for i in range(2):
            x = layer(p, name, i, x, width, filter, mode, norm, activation)
        return x

    skips = []
    for level in range(levels):
        skips.append(double(f"backbone.down.{level}", x, hidden * 2 ** (level + 1)))
        x = POOL[axes](skips[-1], halves)
    x = double("backbone.bottom", x, hidden * 2 ** (levels + 1))
    for level in reversed(range(levels)):
        name, width = f"backbone.up.{level}", x.shape[1] // 2
        if upsample == "transposed":
            x = p.transposed(f"{name}.upsample", x, width, halves)
        else:
            x = F.interpolate(x, skips[level].shape[2:], mode=LINEAR[axes])
            x = p.conv(f"{name}.upsample", x, width, filter, mode)
        x = double(name, torch.cat((x, skips[level]), 1), width)
    return p.linear("backbone.output", x.movedim(1, -1), output)


def resnet(p, x, features, grid, output, hidden, blocks, side, mode, norm, activation, condition):
    filter = filters(grid, side)
    condition = p.embed(features, condition)
    x = p.conditioned(p.conv("backbone.input", x, hidden, filter, mode), condition)
    for i in range(blocks):
        name = f"backbone.blocks.{i}"
        change = layer(p, name, 0, x, hidden, filter, mode, norm, activation)
        change = layer(p, name, 1, change, hidden, filter, mode, norm, lambda x: x)
        x = activation(x + change)
    return p.linear("backbone.output", x.movedim(1, -1), output)


def autoencoder(p, x, features, grid, output, layers, latent_dim, mode, activation, final, condition):
    filter, halves, grids = filters(grid, 3), filters(grid, 2), []
    condition = p.embed(features, condition)
    for i, width in enumerate([*layers, latent_dim]):
        grids.append(x.shape[2:])
        x = p.conv(f"backbone.encoder.{i}", x, width, filter, mode, halves)
        x = activation(x) if i < len(layers) else x
    x = p.conditioned(x, condition)
    for i, width in enumerate([*reversed(layers), output]):
        x = F.interpolate(x, grids[-1 - i], mode=LINEAR[len(grid)])
        x = p.conv(f"backbone.decoder.{i}", x, width, filter, mode)
        x = activation(x) if i < len(layers) else final(x)
    return x.movedim(1, -1)


def case(name, grid, model=unet, dim=3, **options):
    x = normal(2, prod(grid), dim).double().requires_grad_()
    features, p = normal(2, 2).double(), Parameters()
    out = model(p, first(x.reshape(2, *grid, dim)), features, grid, **options).reshape(2, prod(grid), -1)
    dout = normal(*out.shape)
    out.backward(dout.double())
    found = {"x": x, "features": features, "out": out, "dout": dout, "dx": x.grad}
    found |= {f"value/{key}": value for key, value in p.values.items()}
    found |= {f"gradient/{key}": value.grad for key, value in p.values.items()}
    for key, value in found.items():
        tensors[f"{name}/{key}"] = value.detach().float().contiguous().clone()


line = {"hidden": 3, "levels": 2, "side": 3, "mode": "constant", "norm": "instance", "activation": F.relu}
case("line", (1, 12), **line, upsample="transposed", output=2, condition=3)
plane = {"hidden": 3, "levels": 1, "side": 5, "mode": "circular", "norm": 3, "activation": F.gelu}
case("plane", (4, 6), **plane, upsample="interpolate", output=5, condition=2)
deep = {"hidden": 1, "levels": 2, "side": 3, "mode": "circular", "norm": "instance", "activation": F.leaky_relu}
case("deep_plane", (8, 12), **deep, upsample="transposed", output=3, condition=1)
volume = {"hidden": 2, "levels": 1, "side": 3, "mode": "circular", "norm": "instance", "activation": F.silu}
case("volume", (4, 2, 6), **volume, upsample="transposed", output=3, condition=2)
soft = {"hidden": 2, "levels": 1, "side": 3, "mode": "constant", "norm": 2, "activation": torch.tanh}
case("volume_interpolated", (2, 4, 6), **soft, upsample="interpolate", output=1, condition=1)
line = {"hidden": 4, "blocks": 2, "side": 5, "mode": "circular", "norm": "instance", "activation": F.gelu}
case("resnet_line", (1, 7), resnet, **line, output=2, condition=2)
plane = {"hidden": 4, "blocks": 1, "side": 3, "mode": "constant", "norm": 2, "activation": F.silu}
case("resnet_plane", (3, 5), resnet, **plane, output=3, condition=1)
volume = {"hidden": 3, "blocks": 2, "side": 3, "mode": "constant", "norm": None, "activation": torch.sigmoid}
case("resnet_volume", (3, 2, 5), resnet, **volume, output=1, condition=1)
smooth = {"mode": "constant", "activation": F.gelu, "final": lambda x: x}
case("autoencoder_line", (1, 13), autoencoder, layers=[4, 3], latent_dim=2, **smooth, output=2, condition=2)
bounded = {"mode": "circular", "activation": F.leaky_relu, "final": torch.tanh}
case("autoencoder_plane", (8, 4), autoencoder, layers=[3], latent_dim=4, **bounded, output=3, condition=1)
share = {"mode": "constant", "activation": torch.tanh, "final": torch.sigmoid}
case("autoencoder_volume", (3, 5, 4), autoencoder, layers=[2], latent_dim=3, **share, output=2, condition=1)
path = Path(__file__).with_name("backbones.safetensors")
save_file(tensors, path, metadata={"torch": torch.__version__})
path.chmod(0o644)
print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")
