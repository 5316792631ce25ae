#!/usr/bin/env python3
"""Makes unet.safetensors: PyTorch's results for convolutional U-Nets.

Run it in this folder; needs torch and safetensors. lib/tasks/tests/models/unet.rs reads the result.

Everything is drawn as f32 and computed in f64. A case NAME has NAME/x, NAME/features, NAME/out, NAME/dout
(the gradient of its output), NAME/dx, and for each parameter its value NAME/value/<parameter> and gradient
NAME/gradient/<parameter>. Parameters have our names and layouts: channels last in filters.
"""
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

random = torch.Generator().manual_seed(12)
tensors = {}


def normal(*shape, scale=1.0, offset=0.0):
    return offset + scale * torch.randn(shape, generator=random)


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

    def conv(self, name, x, outputs, filter, mode):
        inputs = x.shape[1]
        w = self.get(f"{name}.weight", outputs, *filter, inputs, scale=(inputs * filter[0] * filter[1]) ** -0.5)
        sides = [side // 2 for side in reversed(filter) for _ in range(2)]
        return F.conv2d(F.pad(x, sides, mode=mode), w.permute(0, 3, 1, 2), self.get(f"{name}.bias", outputs))

    def transposed(self, name, x, outputs, stride):
        w = self.get(f"{name}.weight", x.shape[1], *stride, outputs, scale=x.shape[1] ** -0.5)
        bias = self.get(f"{name}.bias", outputs)
        return F.conv_transpose2d(x, w.permute(0, 3, 1, 2), bias, stride=stride)


def unet(p, x, features, grid, output, hidden, levels, side, mode, norm, activation, upsample, condition):
    along = lambda n: (1 if grid[0] == 1 else n, n)
    batch, tokens, dim = x.shape
    condition = F.silu(p.linear("condition.1", F.silu(p.linear("condition.0", features, condition)), condition))
    x = x.reshape(batch, *grid, dim).permute(0, 3, 1, 2)
    x = p.conv("backbone.input", x, hidden, along(side), mode)
    x = x + p.linear("backbone.condition", condition, hidden)[:, :, None, None]

    def double(name, x, width):
        for i in range(2):
            x = p.conv(f"{name}.conv.{i}", x, width, along(side), mode)
            if norm == "instance":
                x = F.instance_norm(x)
            else:
                w = p.get(f"{name}.norm.{i}.weight", width, offset=1, scale=0.3)
                x = F.group_norm(x, norm, w, p.get(f"{name}.norm.{i}.bias", width))
            x = activation(x)
        return x

    skips = []
    for level in range(levels):
        skips.append(double(f"backbone.down.{level}", x, hidden * 2 ** (level + 1)))
        x = F.max_pool2d(skips[-1], along(2))
    x = double("backbone.bottom", x, hidden * 2 ** (levels + 1))
    for level in reversed(range(levels)):
        name, width = f"backbone.up.{level}", x.shape[1] // 2
        if upsample == "transposed":
            x = p.transposed(f"{name}.upsample", x, width, along(2))
        else:
            x = F.interpolate(x, skips[level].shape[2:], mode="bilinear")
            x = p.conv(f"{name}.upsample", x, width, along(side), mode)
        x = double(name, torch.cat((x, skips[level]), 1), width)
    x = x.permute(0, 2, 3, 1).reshape(batch, tokens, 2 * hidden)
    return p.linear("backbone.output", x, output)


def case(name, grid, dim=3, **options):
    x = normal(2, grid[0] * grid[1], dim).double().requires_grad_()
    features, p = normal(2, 2).double(), Parameters()
    out = unet(p, x, features, grid, **options)
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
path = Path(__file__).with_name("unet.safetensors")
save_file(tensors, path, metadata={"torch": torch.__version__})
path.chmod(0o644)
print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")
