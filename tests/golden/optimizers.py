#!/usr/bin/env python3
"""Makes optimizers.safetensors: ten steps of Adam, Lion, LAMB and Adafactor.

Run it in this folder; needs torch, transformers and safetensors. lib/tensor/tests/ops/golden/optimizers.rs reads the
result. Adam is torch.optim.Adam, Adafactor that of transformers; Lion and LAMB follow the algorithms of their papers
(Chen et al. 2023, algorithm 2; You et al. 2020, algorithm 2 with the identity for phi).

Initial parameters NAME/p0 and gradients NAME/g are drawn as f32; the steps are computed in f64, and the parameters
after each, NAME/p, rounded to f32.
"""
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.optimization import Adafactor

random = torch.Generator().manual_seed(21)
tensors = {}


def constants(name, **values):
    for key, value in values.items():
        tensors[f"{name}/{key}"] = torch.tensor(float(value), dtype=torch.float64)
    return values


def steps(name, shape, make, scale=1.0, n=10):
    p0 = torch.randn(shape, generator=random)
    g = scale * torch.randn((n, *shape), generator=random)
    parameter = torch.nn.Parameter(p0.double())
    step, p = make(parameter), []
    for gradient in g:
        parameter.grad = gradient.double()
        with torch.no_grad():
            step()
        p.append(parameter.detach().clone())
    tensors.update({f"{name}/p0": p0, f"{name}/g": g, f"{name}/p": torch.stack(p).float()})


def lion(p, lr, beta1, beta2, weight_decay):
    m = torch.zeros_like(p.data)

    def step():
        u = (beta1 * m + (1 - beta1) * p.grad).sign()
        p.mul_(1 - lr * weight_decay).sub_(lr * u)
        m.mul_(beta2).add_((1 - beta2) * p.grad)

    return step


def lamb(p, lr, beta1, beta2, eps, weight_decay):
    m, v, t = torch.zeros_like(p.data), torch.zeros_like(p.data), 0

    def step():
        nonlocal t
        t += 1
        m.mul_(beta1).add_((1 - beta1) * p.grad)
        v.mul_(beta2).add_((1 - beta2) * p.grad**2)
        r = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + eps)
        u = r + weight_decay * p
        ratio = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1.0
        p.sub_(lr * ratio * u)

    return step


c = constants("adam", lr=0.02, beta1=0.9, beta2=0.97, eps=1e-6, weight_decay=0.1)
steps("adam", (33,), lambda p: torch.optim.Adam(
    [p], lr=c["lr"], betas=(c["beta1"], c["beta2"]), eps=c["eps"], weight_decay=c["weight_decay"], foreach=False).step)
c = constants("lion", lr=0.02, beta1=0.9, beta2=0.99, weight_decay=0.1)
steps("lion", (33,), lambda p: lion(p, **c))
c = constants("lamb", lr=0.02, beta1=0.9, beta2=0.97, eps=1e-6, weight_decay=0.1)
steps("lamb", (5, 7), lambda p: lamb(p, **c))
c = constants("adafactor", lr=0.02, weight_decay=0.1, epsilon=1e-30, clip_threshold=0.9, beta2_decay=-0.7)
adafactor = lambda p: Adafactor(
    [p], lr=c["lr"], eps=(c["epsilon"], 1e-3), clip_threshold=c["clip_threshold"], decay_rate=c["beta2_decay"],
    weight_decay=c["weight_decay"], scale_parameter=False, relative_step=False).step
for name, shape in (("vector", (33,)), ("wide", (5, 13)), ("tall", (70, 3))):
    steps(f"adafactor_{name}", shape, adafactor, scale=0.1)
path = Path(__file__).with_name("optimizers.safetensors")
save_file(tensors, path, metadata={"torch": torch.__version__})
path.chmod(0o644)
print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")
