#!/usr/bin/env python3
"""Makes tensor.safetensors: PyTorch's results for every op and update of lib/tensor.

Run it in this folder; needs torch and safetensors. lib/tensor/tests/ops/golden/ reads the result.

Inputs are drawn as f32; everything after that is computed in f64, gradients by autograd, and only
then rounded to f32. So a value in the file is exact up to half a unit in the last place of f32.
An op NAME has NAME/<input>, NAME/out, NAME/dout (the gradient of its output) and NAME/d<input>.
Constants of an op or update are stored as f64 scalars, so that they are only defined here.
"""
import inspect
from pathlib import Path

import torch
import torch.nn.functional as F
from op_cases import constants, keep, normal, op, random, tensors
from safetensors.torch import save_file


def dense_layers():
    activations = {
        "identity": lambda z: z,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "silu": F.silu,
    }
    w, b = normal(13, 19, scale=19**-0.5), normal(13)
    for name, f in activations.items():
        dense = lambda x, w, b, f=f: f(F.linear(x, w, b))
        op(f"linear_{name}", dense, x=normal(3, 5, 19), w=w, b=b)
        # From far in one tail to far in the other.
        op(f"activation_{name}", f, x=torch.linspace(-9, 9, 181))
    op("linear_unbiased", lambda x, w: F.linear(x, w), x=normal(7, 19), w=w)


def normalisations():
    epsilon = constants("layernorm", epsilon=1e-5)["epsilon"]
    norm = lambda x, w=None, b=None: F.layer_norm(x, x.shape[-1:], w, b, eps=epsilon)
    op("layernorm", norm, x=normal(2, 5, 37, offset=3), w=normal(37), b=normal(37))
    # Rows with a tiny deviation, for which ε matters.
    small = constants("rmsnorm", epsilon=1e-6)["epsilon"]
    x = normal(9, 21) * torch.logspace(-4, 1, 9)[:, None]
    op("rmsnorm", lambda x, w: F.rms_norm(x, x.shape[-1:], w, eps=small), x=x, w=normal(21))

    def adaln(x, m):
        shift, scale = m.chunk(6, -1)[3], m.chunk(6, -1)[4]
        return norm(x) * (1 + scale[:, None]) + shift[:, None]

    op("adaln", adaln, x=normal(3, 4, 11), m=normal(3, 66, scale=0.5))


def attentions():
    batch, tokens, heads, dim = 2, 17, 3, 6
    epsilon = constants("attention", heads=heads, epsilon=1e-6)["epsilon"]

    def attend(q, k, v, wq=None, wk=None):
        split = lambda x: x.reshape(batch, tokens, heads, dim).transpose(1, 2)
        q, k, v = split(q), split(k), split(v)
        if wq is not None:
            q, k = F.rms_norm(q, (dim,), wq, eps=epsilon), F.rms_norm(k, (dim,), wk, eps=epsilon)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    packed = lambda qkv, *w: attend(*qkv.chunk(3, -1), *w)
    width = heads * dim
    weights = lambda: {"wq": normal(dim, offset=1), "wk": normal(dim, offset=1)}
    op("attention_packed", packed, qkv=normal(batch, tokens, 3 * width))
    op("attention_packed_norm", packed, qkv=normal(batch, tokens, 3 * width), **weights())
    qkv = {key: normal(batch, tokens, width) for key in "qkv"}
    op("attention", attend, **qkv)
    op("attention_norm", attend, **qkv, **weights())


def convolutions():
    """Filters are stored as we hold them: taps first, then channels; tokens before channels."""

    def convolve(x, w, bias, grid, taps, mode):
        channels = x.shape[-1]
        image = x.transpose(1, 2).reshape(-1, channels, *grid)
        sides = [p // 2 for p in reversed(taps) for _ in range(2)]
        image = F.pad(image, sides, mode=mode)
        kernel = w.T.reshape(channels, 1, *taps)
        return F.conv2d(image, kernel, bias, groups=channels).flatten(2).transpose(1, 2)

    def circular(x, w, bias):
        channels, taps = x.shape[-1], w.shape[0]
        conv = torch.nn.Conv1d(
            channels, channels, taps, padding=taps // 2, padding_mode="circular", groups=channels
        )
        arguments = {"weight": w.T[:, None], "bias": bias}
        return torch.func.functional_call(conv, arguments, x.transpose(1, 2)).transpose(1, 2)

    op("conv_line", circular, x=normal(2, 13, 5), w=normal(7, 5), bias=normal(5))
    for mode, name in (("circular", "periodic"), ("constant", "zero")):
        f = lambda x, w, bias, mode=mode: convolve(x, w, bias, (5, 7), (3, 5), mode)
        op(f"conv_{name}", f, x=normal(2, 35, 4), w=normal(15, 4), bias=normal(4))


# From [batch, grid.., channels] to [batch, channels, grid..], filters likewise, and back.
first, last = lambda x: x.movedim(-1, 1), lambda x: x.movedim(1, -1)


def conv(name, x, w, margin=None, mode="constant", bias=True, **options):
    """A convolution of two or three axes; a margin for each axis."""
    sides = [m for m in reversed(margin or ()) for _ in range(2)]
    convolve = F.conv2d if len(x) == 4 else F.conv3d
    image = lambda x: F.pad(first(x), sides, mode=mode) if sides else first(x)
    f = lambda x, w, bias=None: last(convolve(image(x), first(w), bias, **options))
    inputs = {"bias": normal(w[0])} if bias else {}
    op(name, f, x=normal(*x), w=normal(*w, scale=0.3), **inputs)


def transposed(name, x, w, bias=True, **options):
    """A transposed convolution; filters are [in, grid.., out]."""
    convolve = F.conv_transpose2d if len(x) == 4 else F.conv_transpose3d
    f = lambda x, w, bias=None: last(convolve(first(x), first(w), bias, **options))
    inputs = {"bias": normal(w[-1])} if bias else {}
    op(name, f, x=normal(*x), w=normal(*w, scale=0.3), **inputs)


def grids():
    conv("dense_conv", (2, 5, 7, 3), (4, 3, 5, 3), (1, 2))
    conv("dense_conv_line", (2, 1, 13, 3), (4, 1, 5, 3), (0, 2), "circular")
    conv("dense_conv_periodic", (2, 6, 5, 3), (4, 3, 3, 3), (1, 1), "circular", stride=(2, 1))
    conv("dense_conv_strided", (2, 8, 9, 4), (6, 3, 3, 4), (1, 1), stride=2)
    conv("dense_conv_dilated", (2, 9, 8, 4), (6, 3, 2, 4), (2, 1), dilation=(2, 3))
    conv("dense_conv_patches", (2, 8, 12, 3), (7, 4, 4, 3), bias=False, stride=4)
    for name, pool in (("mean", F.avg_pool2d), ("max", F.max_pool2d)):
        f = lambda x, pool=pool: last(pool(first(x), (3, 2), (2, 1)))
        op(f"pool_{name}", f, x=normal(2, 7, 6, 5))
    for name, grid in (("finer", (9, 12)), ("coarser", (3, 2)), ("mixed", (2, 11))):
        nearest = lambda x, grid=grid: last(F.interpolate(first(x), grid, mode="nearest"))
        op(f"interpolate_nearest_{name}", nearest, x=normal(2, 5, 4, 3))
        straight = lambda x, grid=grid: last(F.interpolate(first(x), grid, mode="bilinear"))
        op(f"interpolate_linear_{name}", straight, x=normal(2, 5, 4, 3))


def below(n, *shape):
    return torch.randint(n, shape, generator=random)


def tokens():
    op("embedding", lambda table, index: F.embedding(index, table), table=normal(11, 7), index=below(9, 3, 8))
    gate, up = normal(4, 3, 14, scale=2).chunk(2, -1)
    op("swiglu", lambda a, b: F.silu(a) * b, a=gate, b=up)
    target = below(13, 9)
    entropy = lambda x, target, **o: F.cross_entropy(x, target, reduction="sum", **o).reshape(1)
    op("cross_entropy", entropy, x=normal(9, 13, scale=3), target=target)
    smoothing = constants("cross_entropy_smoothed", smoothing=0.1)["smoothing"]
    ignored = torch.where(below(3, 9) == 0, -100, target)
    smoothed = lambda x, target: entropy(x, target, label_smoothing=smoothing)
    op("cross_entropy_smoothed", smoothed, x=normal(9, 13, scale=3), target=ignored)
    rows = lambda x, target: F.cross_entropy(x, target, reduction="none")
    weighted = lambda x, target, w: (w * rows(x, target)).sum().reshape(1)
    logits, w = normal(9, 13, scale=3), normal(9).abs()
    op("cross_entropy_weighted", weighted, constant=("w",), x=logits, target=ignored, w=w)


def joints():
    x, y = normal(4, 3, 7), normal(4, 3, 7)
    op("residual_plain", lambda x, y: x + y, x=x, y=y)
    op("residual_scaled", lambda x, y, s: x + s * y, x=x, y=y, s=normal(7))
    op("matmul", lambda m, x: m @ x, m=normal(9, 5), x=normal(3, 5, 7))
    op("matmul_constant", lambda m, x: m @ x, constant=("m",), m=normal(4, 8), x=normal(3, 8, 5))


def arithmetic():
    for name, f in (("tanh", torch.tanh), ("sigmoid", torch.sigmoid)):
        dense = lambda x, w, b, f=f: f(F.linear(x, w, b))
        op(f"linear_{name}", dense, x=normal(4, 9), w=normal(5, 9, scale=1 / 3), b=normal(5))
        op(f"activation_{name}", f, x=torch.linspace(-9, 9, 181))
    shapes = {"same": ((4, 7), (4, 7)), "bias": ((2, 5, 8), (8,)), "gate": ((2, 5, 8), (2, 1, 8)),
              "column": ((3, 40), (3, 1)), "both": ((4, 1, 3), (1, 5, 1)), "scalar": ((1,), (3, 7))}
    for name, (a, b) in shapes.items():
        op(f"add_{name}", torch.add, a=normal(*a), b=normal(*b))
        op(f"multiply_{name}", torch.mul, a=normal(*a), b=normal(*b))
    for axis, shape in enumerate(((9, 5, 8), (2, 70, 8), (3, 4, 90))):
        op(f"sum_{axis}", lambda x, axis=axis: x.sum(axis, keepdim=True), x=normal(*shape))
        op(f"mean_{axis}", lambda x, axis=axis: x.mean(axis, keepdim=True), x=normal(*shape))


def rearrangements():
    op("permute", lambda x: x.permute(2, 0, 3, 1), x=normal(2, 3, 4, 5))
    op("permute_heads", lambda x: x.permute(0, 2, 1, 3), x=normal(2, 3, 4, 8))
    op("narrow", lambda x: x.narrow(1, 2, 4), x=normal(3, 7, 8))
    op("narrow_last", lambda x: x.narrow(2, 3, 2), x=normal(3, 2, 8))
    join = lambda axis: lambda a, b, c: torch.cat((a, b, c), axis)
    op("concat", join(1), a=normal(3, 2, 8), b=normal(3, 4, 8), c=normal(3, 1, 8))
    op("concat_last", join(2), a=normal(3, 2, 8), b=normal(3, 2, 4), c=normal(3, 2, 3))
    # Row 5 receives no values.
    scatter = lambda x, index: torch.zeros(6, 7).double().index_add(0, index, x)
    op("scatter_add", scatter, x=normal(20, 7), index=below(5, 20))


def losses():
    epsilon = constants("relative_error", epsilon=1e-8)["epsilon"]
    p, t = normal(3, 8, 5), normal(3, 8, 5)

    def relative(p, t):
        q = ((p - t) ** 2).sum((1, 2)) / ((t**2).sum((1, 2)) + epsilon)
        return q.sqrt().mean().reshape(1)

    op("relative_error", relative, constant=("t",), p=p, t=t)
    weighted = lambda p, t, w, v: (w * (v * (p - t) ** 2).mean((1, 2))).sum().reshape(1)
    mean = lambda p, t, w, v: F.mse_loss(p, t).reshape(1)
    even = {"w": torch.full((2,), 1 / 2), "v": torch.ones(5)}
    weights = {"w": normal(3).abs(), "v": normal(5).abs()}
    op("squared_error", weighted, constant=("w", "v"), p=p, t=t, **weights)
    op("mean_squared_error", mean, constant=("w", "v"), p=p[:2], t=t[:2], **even)
    floor = constants("vector_norm", epsilon=1e-2)["epsilon"]
    op("vector_norm", lambda x: (x.square().sum(-1) + floor**2).sqrt(), x=normal(4, 3, 5))
    op("vector_norm_squared", lambda x: x.square().sum(-1), x=normal(3, 37))
    c = constants("weighted_sum", wa=1.0, wb=-0.5)
    op("weighted_sum", lambda a, b: c["wa"] * a + c["wb"] * b, a=normal(1), b=normal(1))


def steps(name, optimiser, n=10, shape=(33,), max_norm=None, **options):
    """`n` steps of an optimiser: parameters before (p0) and after each (p), the gradients (g)."""
    parameter = torch.nn.Parameter(normal(*shape).double())
    keep(f"{name}/p0", parameter)
    update = optimiser([parameter], **options)
    g, p = normal(n, *shape), []
    for gradient in g:
        parameter.grad = gradient.double()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_([parameter], max_norm)
        update.step()
        p.append(parameter.detach().clone())
    keep(f"{name}/g", g)
    keep(f"{name}/p", torch.stack(p))
    return tensors[f"{name}/p"].double()


def updates():
    adamw = torch.optim.AdamW
    c = constants("adamw", lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0)
    make = lambda p, lr, beta1, beta2, eps, weight_decay: adamw(
        p, lr=lr, betas=(beta1, beta2), eps=eps, weight_decay=weight_decay, foreach=False
    )
    steps("adamw", make, **c)
    # The norm of 33 standard normal values is about 5.7: clipped at some steps, unchanged at others.
    c = constants("adamw_clipped", lr=0.03, beta1=0.8, beta2=0.97, eps=1e-3, weight_decay=0.1)
    constants("adamw_clipped", max_norm=5.7)
    steps("adamw_clipped", make, max_norm=5.7, **c)
    c = constants("sgd", lr=0.05, momentum=0.9, weight_decay=0.01)
    trajectory = steps("sgd", torch.optim.SGD, **c)

    decay = constants("ema", decay=0.95)["decay"]
    model = torch.nn.ParameterList([trajectory[0].clone()])
    average_of = torch.optim.swa_utils.get_ema_multi_avg_fn(decay)
    ema, averages = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average_of), []
    for values in trajectory:
        model[0].data.copy_(values)
        ema.update_parameters(model)
        averages.append(ema.module[0].detach().clone())
    keep("ema/p", trajectory)
    keep("ema/average", torch.stack(averages))

    for name, max_norm in (("clip", 1.0), ("clip_nothing", 1e3)):
        constants(name, max_norm=max_norm)
        parameters = [torch.nn.Parameter(torch.zeros(shape).double()) for shape in ((7, 5), (3,), ())]
        for i, parameter in enumerate(parameters):
            parameter.grad = normal(*parameter.shape).double()
            keep(f"{name}/g{i}", parameter.grad)
        constants(name, norm=torch.nn.utils.clip_grad_norm_(parameters, max_norm))
        for i, parameter in enumerate(parameters):
            keep(f"{name}/clipped{i}", parameter.grad)


def spectral_convolutions():
    """neuralop's formula: rfft, a matrix for each of the lowest modes, irfft."""

    def convolution(x, w, grid, modes):
        (rows, columns), (batch, _, inputs), kept = grid, x.shape, min(modes, grid[0])
        m = (torch.arange(kept) - kept // 2) % rows
        k = torch.arange(min(modes, columns) // 2 + 1)
        z = torch.fft.rfft2(x.reshape(batch, rows, columns, inputs), dim=(1, 2), norm="forward")
        w = torch.complex(w[:, 0], w[:, 1]).reshape(len(k), len(m), *w.shape[2:])
        y = torch.zeros(*z.shape[:3], w.shape[-1], dtype=z.dtype)
        y[:, m[:, None], k] = torch.einsum("bmki,kmio->bmko", z[:, m[:, None], k], w)
        y = torch.fft.irfft2(y, s=grid, dim=(1, 2), norm="forward")
        return y.reshape(batch, rows * columns, -1)

    for name, grid, modes, width in (
        ("line", (1, 9), 4, 3),
        ("all_of_a_line", (1, 8), 8, 2),
        ("plane", (6, 10), 5, 4),
        ("all_of_a_plane", (4, 6), 12, 2),
    ):
        count = min(modes, grid[0]) * (min(modes, grid[1]) // 2 + 1)
        w = normal(count, 2, width, width)
        f = lambda x, w, grid=grid, modes=modes: convolution(x, w, grid, modes)
        op(f"spectral_conv_{name}", f, x=normal(2, grid[0] * grid[1], width), w=w)


def muon():
    """PyTorch's Muon, whose Newton-Schulz iteration in bf16 is computed in double instead."""
    module = torch.optim._muon
    source = inspect.getsource(module._zeropower_via_newtonschulz)
    assert "torch.bfloat16" in source
    exec(source.replace("torch.bfloat16", "torch.double"), module.__dict__)
    c = constants("muon", lr=0.02, momentum=0.9, weight_decay=0.1)
    make = lambda p, **c: torch.optim.Muon(p, nesterov=True, **c)
    for name, shape in (("wide", (6, 13)), ("tall", (11, 5)), ("square", (7, 7))):
        steps(f"muon_{name}", make, shape=shape, **c)


def rectifiers():
    # Zero is among the inputs: the derivative there is that of negative numbers.
    for name, f in (("relu", F.relu), ("leaky_relu", F.leaky_relu)):
        op(f"activation_{name}", f, x=torch.linspace(-9, 9, 181))


def group_norms():
    epsilon = constants("group_norm", epsilon=1e-5)["epsilon"]
    group = lambda x, w, b: last(F.silu(F.group_norm(first(x), 3, w, b, eps=epsilon)))
    op("group_norm", group, x=normal(2, 5, 4, 12, offset=3), w=normal(12), b=normal(12))
    instance = lambda x: last(F.instance_norm(first(x), eps=epsilon))
    op("instance_norm", instance, x=normal(3, 4, 7, 5, offset=-2))


def transposed_convolutions():
    odd = {"stride": (2, 3), "dilation": (2, 1), "padding": (1, 2), "output_padding": (1, 2)}
    transposed("conv_transpose", (2, 4, 3, 3), (3, 3, 4, 5), **odd)
    transposed("conv_transpose_patches", (2, 3, 4, 4), (4, 2, 2, 3), bias=False, stride=2)


def volumes():
    conv("volume_conv", (2, 3, 4, 5, 2), (3, 3, 1, 5, 2), (1, 0, 2))
    conv("volume_conv_periodic", (1, 4, 3, 6, 3), (2, 3, 3, 3, 3), (1, 1, 1), "circular", stride=(2, 1, 3))
    conv("volume_conv_dilated", (1, 5, 4, 7, 2), (3, 2, 2, 3, 2), (1, 0, 1), bias=False, dilation=(3, 1, 2))
    odd = {"stride": (2, 1, 3), "dilation": (1, 2, 1), "padding": (1, 0, 2), "output_padding": (1, 0, 1)}
    transposed("volume_conv_transpose", (1, 3, 2, 4, 3), (3, 3, 2, 4, 2), **odd)
    transposed("volume_conv_transpose_patches", (2, 2, 3, 1, 3), (3, 2, 2, 2, 2), bias=False, stride=2)
    for name, pool in (("mean", F.avg_pool3d), ("max", F.max_pool3d)):
        f = lambda x, pool=pool: last(pool(first(x), (2, 3, 2), (1, 2, 2)))
        op(f"volume_pool_{name}", f, x=normal(2, 3, 7, 5, 2))
    for name, grid in (("finer", (4, 9, 5)), ("mixed", (5, 2, 4))):
        for mode in ("nearest", "trilinear"):
            f = lambda x, grid=grid, mode=mode: last(F.interpolate(first(x), grid, mode=mode))
            op(f"volume_interpolate_{mode}_{name}", f, x=normal(2, 2, 5, 4, 2))


for make in (
    dense_layers, normalisations, attentions, convolutions, joints, losses, updates, grids, tokens, arithmetic,
    rearrangements, muon, spectral_convolutions, rectifiers, group_norms, transposed_convolutions, volumes,
):
    make()
# The focal loss (Lin et al. 2017, equation 5), with alpha as weights of the rows.
g, target = constants("cross_entropy_focal", gamma=1.5)["gamma"], torch.randint(0, 3, (9,), generator=random)
focal = lambda p, w: -(w * (1 - p) ** g * p.log()).sum().reshape(1)
rows = lambda x, t, w: focal(x.softmax(1).gather(1, t[:, None])[:, 0], w)
op("cross_entropy_focal", rows, constant=("w",), x=normal(9, 3, scale=3), target=target, w=normal(9).abs())
gated = lambda x, y, m: x + (1 + m[:, None, 7:14]) * y
op("residual_gated", gated, x=normal(4, 3, 7), y=normal(4, 3, 7), m=normal(4, 21))
scale = constants("low_rank", scale=2.5)["scale"]
update = lambda y, x, a, b: y + scale * F.linear(F.linear(x, a), b)
op("low_rank", update, y=normal(3, 5, 13), x=normal(3, 5, 19), a=normal(4, 19), b=normal(13, 4))


def rotary():
    """The rotation of transformers' models of language, whose cosines and sines repeat for the second half of a head."""
    heads, dim = 3, 10
    epsilon = constants("rotary", heads=heads, epsilon=1e-6)["epsilon"]

    def rotate(x, table, w=None):
        x = x.unflatten(-1, (heads, dim))
        x = x if w is None else F.rms_norm(x, (dim,), w, eps=epsilon)
        cos, sin = (half.repeat(1, 2)[:, None] for half in table.chunk(2, -1))
        half = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), -1)
        return (x * cos + half * sin).flatten(-2)

    angles = torch.tensor([0, 1, 2, 9, 300, 4000, 131071])[:, None] * 1e4 ** (-torch.arange(dim // 2) / (dim // 2))
    table = torch.cat((angles.cos(), angles.sin()), -1)
    op("rotary", rotate, constant=("table",), x=normal(2, 7, heads * dim), table=table)
    weight = normal(dim, offset=1)
    op("rotary_normalized", rotate, constant=("table",), x=normal(2, 7, heads * dim), table=table, w=weight)


rotary()
path = Path(__file__).with_name("tensor.safetensors")
save_file(tensors, path, metadata={"torch": torch.__version__})
path.chmod(0o644)
print(f"{path.name}: {len(tensors)} tensors, {path.stat().st_size} bytes")
