#!/usr/bin/env python3
"""Times an update of U-Net S in PyTorch, channels last, for comparison with lib/tasks/examples/unet_update.rs.

The model is that of lib/tasks/src/common/models/unet.rs with instance norm, ReLU and transposed convolutions: 4 frames of 5
channels on 64 x 64 points, batch 8, in f32 or, with --precision bf16, under autocast. One update is zero_grad, forward, mean squared error, backward, clipping, AdamW
(fused). Each convolution is also timed alone, forward and backward. malloc keeps freed memory, as in operator_update.py.

With --pairs N, both programs run N times in alternation and medians with their ranges are printed, as one JSON object:

    tests/peers/unet_update.py --pairs 20 --ours target/release/examples/unet_update

Run it on an idle machine. Needs torch.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

# Otherwise glibc returns large blocks to the system and faults them in again on every update.
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
INPUT, OUTPUT, HIDDEN, LEVELS = 20, 5, 32, 3

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--grid", type=int, default=64)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
parser.add_argument("--pairs", type=int, default=0)
parser.add_argument("--ours", default="target/release/examples/unet_update")


def measure(arguments):
    import torch
    from torch import nn

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)

    def double(a, b):
        def layer(a):
            return [nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b), nn.ReLU(inplace=True)]

        return nn.Sequential(*layer(a), *layer(b))

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            width = lambda level: HIDDEN << level
            self.input = nn.Conv2d(INPUT, HIDDEN, 3, padding=1)
            self.down = nn.ModuleList(double(width(i), width(i + 1)) for i in range(LEVELS))
            self.bottom = double(width(LEVELS), width(LEVELS + 1))
            self.finer = nn.ModuleList(
                nn.ConvTranspose2d(width(i + 2), width(i + 1), 2, stride=2) for i in range(LEVELS)
            )
            self.up = nn.ModuleList(double(2 * width(i + 1), width(i + 1)) for i in range(LEVELS))
            self.output = nn.Conv2d(width(1), OUTPUT, 1)

        def forward(self, x):
            x, skips = self.input(x), []
            for level in self.down:
                skips.append(level(x))
                x = nn.functional.max_pool2d(skips[-1], 2)
            x = self.bottom(x)
            for i in reversed(range(LEVELS)):
                x = self.up[i](torch.cat([self.finer[i](x), skips[i]], 1))
            return self.output(x)

    def times(call):
        found = []
        for _ in range(arguments.repeats + 2):
            start = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - start))
        return sorted(found[2:])

    last = lambda t: t.to(memory_format=torch.channels_last)
    grid, batch = arguments.grid, arguments.batch
    precision = lambda: torch.autocast("cpu", torch.bfloat16, enabled=arguments.precision == "bf16")
    model = last(UNet())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    x, target = last(torch.randn(batch, INPUT, grid, grid)), last(torch.randn(batch, OUTPUT, grid, grid))

    def update():
        optimizer.zero_grad()
        with precision():
            loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    updates = times(update)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    sizes = {"input": (model.input, grid)}
    for i, level in enumerate(model.down):
        sizes |= {f"down.{i}.{k}": (level[3 * k], grid >> i) for k in range(2)}
    sizes |= {f"bottom.{k}": (model.bottom[3 * k], grid >> LEVELS) for k in range(2)}
    for i in reversed(range(LEVELS)):
        sizes |= {f"up.{i}.{k}": (model.up[i][3 * k], grid >> i) for k in range(2)}
        sizes[f"up.{i}.transposed"] = (model.finer[i], grid >> (i + 1))
    layers = {}
    for name, (layer, side) in sizes.items():
        channels = layer.in_channels
        x = last(torch.randn(batch, channels, side, side)).requires_grad_()
        with precision():
            dy = torch.randn_like(layer(x))

        def alone():
            x.grad = layer.weight.grad = layer.bias.grad = None
            with precision():
                y = layer(x)
            y.backward(dy)

        found = times(alone)
        layers[name] = round(found[len(found) // 2], 2)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "median_ms": updates[len(updates) // 2],
        "minimum_ms": updates[0],
        "convolutions_ms": sum(layers.values()),
        "peak_rss_bytes": peak,
        "layers": layers,
        "torch": torch.__version__,
    }


def compare(arguments, words):
    """Runs both programs in alternation; prints medians and ranges over the pairs."""
    found = {"ours": [], "torch": []}
    for number in range(arguments.pairs):
        theirs = [sys.executable, __file__, *words]
        for name, command in [("ours", [arguments.ours, *words]), ("torch", theirs)]:
            found[name].append(json.loads(subprocess.check_output(command)))
        last = {name: round(runs[-1]["median_ms"]) for name, runs in found.items()}
        print(f"pair {number + 1}: {last}", file=sys.stderr, flush=True)

    def spread(values):
        return {"median": round(statistics.median(values), 1), "range": [round(min(values), 1), round(max(values), 1)]}

    def all_of(run):
        return {
            "update_ms": run["median_ms"],
            "convolutions_ms": run["convolutions_ms"],
            "rest_ms": run["median_ms"] - run["convolutions_ms"],
            "peak_mb": run["peak_rss_bytes"] / 1e6,
            **run["layers"],
        }

    rows = {name: [all_of(run) for run in runs] for name, runs in found.items()}
    table = {
        quantity: {name: spread([run[quantity] for run in runs]) for name, runs in rows.items()}
        | {"torch / ours": spread([b[quantity] / a[quantity] for a, b in zip(rows["ours"], rows["torch"])])}
        for quantity in rows["ours"][0]
    }
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    arguments = parser.parse_args()
    words = [f"--{name}={getattr(arguments, name)}" for name in ("grid", "batch", "threads", "repeats", "precision")]
    if arguments.pairs:
        compare(arguments, [part for word in words for part in word.split("=")])
    else:
        if os.environ.get("GLIBC_TUNABLES") != MALLOC:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
        print(json.dumps(measure(arguments)))
