#!/usr/bin/env python3
"""Makes losses.json: the losses of regression and their gradients, with PyTorch in double precision.

Run it in this folder; needs PyTorch. A unit test of lib/tasks/src/regression/loss.rs reads the result. Each loss is the sum
over samples of the value per sample; p and t are [samples, rows, columns, channels].
"""
import json

import torch

torch.set_default_dtype(torch.float64)
SHAPE = (3, 5, 4, 2)
count = torch.arange(120.0)
t = (1.5 * torch.sin(0.7 * count + 0.1) + 0.4).reshape(SHAPE)
p = (t.flatten() + 0.3 * torch.cos(1.3 * count)).reshape(SHAPE)
EPSILON = 1e-6


def h1(u):
    n, m = u.shape[1:3]
    along = [u[:, 1:] - u[:, :-1], u[:, :, 1:] - u[:, :, :-1]]
    return sum((x * scale).square().sum(dim=(1, 2, 3)) for x, scale in zip([u] + along, [1, n, m])).sqrt()


def losses(dims):
    mse = lambda p: (p - t).square().mean(dim=dims)
    power, variance = t.square().mean(dim=dims), t.var(dim=dims, unbiased=True)
    return {
        "mse": mse,
        "rmse": lambda p: mse(p).sqrt(),
        "nmse": lambda p: mse(p) / (power + EPSILON),
        "nrmse": lambda p: (mse(p) / (power + EPSILON)).sqrt(),
        "vmse": lambda p: mse(p) / (variance + EPSILON),
        "vrmse": lambda p: (mse(p) / (variance + EPSILON)).sqrt(),
        "relative_l2": lambda p: (mse(p) / power).sqrt(),
    }


all_dims, space = losses((1, 2, 3)), losses((1, 2))
all_dims["mae"] = lambda p: (p - t).abs().mean(dim=(1, 2, 3))
all_dims["relative_h1"] = lambda p: h1(p - t) / h1(t)
result = {"shape": SHAPE, "p": p.flatten().tolist(), "t": t.flatten().tolist(), "losses": []}
for dims, kinds in [("all", all_dims), ("space", space)]:
    for kind, loss in kinds.items():
        x = p.clone().requires_grad_()
        value = loss(x)
        # Of several channels, the loss of a sample is their mean.
        value = (value.mean(dim=1) if value.dim() == 2 else value).sum()
        value.backward()
        gradient = x.grad.flatten().tolist()
        result["losses"].append({"kind": kind, "dims": dims, "value": value.item(), "gradient": gradient})
with open("losses.json", "w") as file:
    json.dump(result, file)
    file.write("\n")
