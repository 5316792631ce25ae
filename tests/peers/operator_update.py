#!/usr/bin/env python3
"""Times an update of the operator stage in PyTorch, for comparison with ours.

The model is that of lib/tasks (pde/models/operator.rs, common/models/pdet_stack.rs) and lib/learn (nn/block.rs), layer by
layer and with the same parameter names, so that each line has its counterpart there:

    c = SiLU(Linear(SiLU(Linear(features))))
    x = Linear(z)
    each block:  x += s1 * attention(adaln(x, c))
                 x += s2 * Linear(gelu(Linear(adaln(conv(x), c))))
    z + scale * Linear(layernorm(x))

PyTorch runs at its fastest: malloc keeps freed memory, the faster of its AdamW implementations, fused attention,
fused multiply-adds, a depthwise convolution in the layout that the tokens already have. With --plain the model is
written as most people would: Conv1d(padding_mode="circular"), x * (1 + scale) + shift, the default AdamW; attention
and malloc stay at their fastest. One update is zero_grad, forward over the horizon, mean squared error, backward,
clipping, AdamW; in f32, or with --precision bf16 under autocast. --device cuda measures a GPU (`make gpu-bench`),
where an update ends when the GPU has finished it; --compile applies torch.compile to the rollout with its loss.

Run it by hand or with `make bench`, on an idle machine: if other processes use its processors, PyTorch's threads wait
for each other and an update takes many times as long. Prints one JSON object; if `cpu_ms` is far below threads times
`median_ms`, or the load is above the number of threads, the machine was not idle. Needs torch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# Otherwise glibc returns large blocks to the system and faults them in again on every update.
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
if os.environ.get("GLIBC_TUNABLES") != MALLOC:
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})

import torch
import torch.nn.functional as F
from torch import nn


class AdaLn(nn.Linear):
    """Layer normalisation with shift and scale from the condition; neutral at the start."""

    def __init__(self, hidden, condition, plain):
        super().__init__(condition, 2 * hidden)
        self.plain = plain
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x, condition):
        shift, scale = super().forward(condition)[:, None].chunk(2, -1)
        n = F.layer_norm(x, x.shape[-1:])
        return n * (1 + scale) + shift if self.plain else torch.addcmul(shift, n, 1 + scale)


class RmsNorm(nn.RMSNorm):
    """Its kernel wants the weight in the type of the features, which autocast leaves as it is."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, hidden, heads, qk_norm):
        super().__init__()
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.heads = heads
        norm = lambda: RmsNorm(hidden // heads, eps=1e-6) if qk_norm else nn.Identity()
        self.q_norm, self.k_norm = norm(), norm()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Conv(nn.Module):
    """Depthwise and periodic over tokens. As an image of one row with the channels last nothing is
    transposed; several times faster than Conv1d(padding_mode="circular") and than shifted sums."""

    def __init__(self, hidden, taps):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, 1, 1, taps) * taps**-0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.side = taps // 2

    def forward(self, x):
        around = torch.cat([x[:, -self.side :], x, x[:, : self.side]], 1)
        image = around[:, None].permute(0, 3, 1, 2)
        image = F.conv2d(image, self.weight, self.bias, groups=x.shape[-1])
        return image.permute(0, 2, 3, 1)[:, 0]


class PlainConv(nn.Conv1d):
    """The same by PyTorch's own layer."""

    def __init__(self, hidden, taps):
        super().__init__(hidden, hidden, taps, padding=taps // 2, padding_mode="circular", groups=hidden)

    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, a, attends):
        super().__init__()
        scale = lambda: nn.Parameter(torch.full((a.hidden,), 0.1))
        self.attends, self.plain = attends, a.plain
        if attends:
            self.attention_norm = AdaLn(a.hidden, a.condition, a.plain)
            self.attention = Attention(a.hidden, a.heads, a.qk_norm)
            self.attention_scale = scale()
        conv = PlainConv if a.plain else Conv
        self.conv = conv(a.hidden, 7) if a.local else nn.Identity()
        self.mlp_norm = AdaLn(a.hidden, a.condition, a.plain)
        self.mlp_up = nn.Linear(a.hidden, 4 * a.hidden)
        self.mlp_down = nn.Linear(4 * a.hidden, a.hidden)
        self.mlp_scale = scale()

    def add(self, x, branch, scale):
        return x + branch * scale if self.plain else torch.addcmul(x, branch, scale)

    def forward(self, x, condition):
        if self.attends:
            x = self.add(x, self.attention(self.attention_norm(x, condition)), self.attention_scale)
        h = self.mlp_norm(self.conv(x), condition)
        return self.add(x, self.mlp_down(F.gelu(self.mlp_up(h))), self.mlp_scale)


class Stack(nn.Module):
    def __init__(self, a):
        super().__init__()
        self.input = nn.Linear(a.dim, a.hidden)
        attends = lambda i: a.heads > 0 and (a.depth - 1 - i) % a.attention_every == 0
        self.blocks = nn.ModuleList(Block(a, attends(i)) for i in range(a.depth))
        self.norm = nn.LayerNorm(a.hidden)
        self.output = nn.Linear(a.hidden, a.dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)

    def forward(self, z, condition):
        x = self.input(z)
        for block in self.blocks:
            x = block(x, condition)
        return self.output(self.norm(x))


class Operator(nn.Module):
    def __init__(self, a):
        super().__init__()
        widths = [(a.features, a.condition), (a.condition, a.condition)]
        self.condition = nn.ModuleList(nn.Linear(*w) for w in widths)
        self.core = Stack(a)
        self.scale = nn.Parameter(torch.ones(a.dim))

    def forward(self, z, features):
        condition = F.silu(self.condition[1](F.silu(self.condition[0](features))))
        return torch.addcmul(z, self.core(z, condition), self.scale)


def memory(key):
    """Bytes of this process as the kernel counts them: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def faster_optimiser():
    """Milliseconds of a step of either AdamW, each in a process of its own, for the sake of the peak."""
    times = {}
    for name in ("fused", "foreach"):
        words = [sys.executable, *sys.argv, "--optimizer", name, "--updates", "5"]
        result = subprocess.run(words, stdout=subprocess.PIPE, check=True)
        times[name] = json.loads(result.stdout)["optimizer_ms"]
    return min(times, key=times.get), times


def measure(a, optimiser):
    torch.manual_seed(1)
    torch.set_num_threads(a.threads)
    before = memory("VmRSS")
    cuda = a.device == "cuda"
    model = Operator(a).to(a.device)
    parameters = sum(p.numel() for p in model.parameters())
    kind = {} if optimiser == "default" else {optimiser: True}
    update = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.03, **kind)
    states = torch.randn(a.horizon + 1, a.batch, a.tokens, a.dim, device=a.device)
    features = torch.randn(a.batch, a.features, device=a.device)

    def rollout_loss():
        z, loss = states[0], 0.0
        for target in states[1:]:
            z = model(z, features)
            loss = loss + F.mse_loss(z, target) / a.horizon
        return loss

    objective = torch.compile(rollout_loss, mode=a.compile_mode) if a.compile else rollout_loss
    precision = lambda: torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16")
    times, optimiser_times, cpu_times = [], [], []
    for _ in range(a.warmup + a.updates):
        start, cpu = time.perf_counter(), time.process_time()
        update.zero_grad()
        with precision():
            loss = objective()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepping = time.perf_counter()
        update.step()
        if cuda:
            torch.cuda.synchronize()
        end = time.perf_counter()
        times.append((end - start) * 1e3)
        optimiser_times.append((end - stepping) * 1e3)
        cpu_times.append((time.process_time() - cpu) * 1e3)
    times = times[a.warmup :]
    return {
        "peer": "torch " + torch.__version__,
        "parameters": parameters,
        "median_ms": statistics.median(times),
        "min_ms": min(times),
        "cpu_ms": statistics.median(cpu_times[a.warmup :]),
        "load_average": os.getloadavg()[0],
        "optimizer": optimiser,
        # On a GPU only the end of an update is synchronized.
        "optimizer_ms": None if cuda else statistics.median(optimiser_times[a.warmup :]),
        "peak_rss_bytes": memory("VmHWM"),
        "rss_before_model_bytes": before,
        "peak_device_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "last_loss": loss.item(),
    }


def arguments():
    p = argparse.ArgumentParser(
        description=__doc__.partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    flag = argparse.BooleanOptionalAction
    p.add_argument("--dim", type=int, default=128, help="features of a latent token")
    p.add_argument("--tokens", type=int, default=128, help="tokens of a state")
    p.add_argument("--hidden", type=int, default=256, help="features of a token inside the model")
    p.add_argument("--depth", type=int, default=8, help="blocks")
    p.add_argument("--heads", type=int, default=8, help="heads; 0 for no attention")
    p.add_argument("--attention-every", type=int, default=1, help="every n-th block attends")
    p.add_argument("--qk-norm", action=flag, default=True, help="normalise queries and keys")
    p.add_argument("--local", action=flag, default=False, help="depthwise filter of 7 tokens")
    p.add_argument("--condition", type=int, default=64, help="features of the condition")
    p.add_argument("--features", type=int, default=2, help="numbers the condition is made of")
    p.add_argument("--batch", type=int, default=64, help="samples of an update")
    p.add_argument("--horizon", type=int, default=1, help="steps of the rollout trained through")
    p.add_argument("--updates", type=int, default=20, help="updates timed")
    p.add_argument("--warmup", type=int, default=3, help="updates before them")
    p.add_argument("--threads", type=int, default=os.cpu_count(), help="threads")
    p.add_argument("--optimizer", choices=("auto", "fused", "foreach", "default"), default="auto", help="AdamW")
    p.add_argument("--plain", action=flag, default=False, help="as most people would write it")
    p.add_argument("--compile", action=flag, default=False, help="torch.compile the rollout")
    modes = ("default", "reduce-overhead", "max-autotune")
    p.add_argument("--compile-mode", choices=modes, default="default", help="its mode; the second records CUDA graphs")
    p.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where")
    p.add_argument("--precision", choices=("f32", "bf16"), default="f32", help="bf16 is autocast")
    return p.parse_args()


if __name__ == "__main__":
    args = arguments()
    optimiser, compared = args.optimizer, {}
    if optimiser == "auto" and args.plain:
        optimiser = "default"
    elif optimiser == "auto" and args.device == "cuda":
        optimiser = "fused"
    elif optimiser == "auto":
        optimiser, compared = faster_optimiser()
    result = measure(args, optimiser)
    print(json.dumps({**result, "optimizers_ms": compared, "arguments": vars(args)}))
