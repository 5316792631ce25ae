#!/usr/bin/env python3
"""Times products of bf16 on the CPU (training.amp with precision bf16) beside f32 and beside PyTorch with and without autocast.

First the peaks of this processor's instructions, on one thread, and products y = x Wᵀ of f32 activations in the sizes of
bert-base (16 x 128 tokens) and of the large operator, by lib/tensor/examples/product_rate.rs and torch.nn.functional.linear.
PyTorch's weights were cast beforehand; longhaul rounds and packs both operands in the time that is measured. Then updates of
U-Net S and of the large operator, as unet_update.py and operator_update.py define them. (text_update.py --precision bf16 has
bert-base.) In every round each of the four variants is measured once: of products, the median of three after a first one,
in five times as many rounds as --rounds.

Prints a JSON object: medians with their ranges over the rounds; GFLOP/s for products, milliseconds for updates; and how many
times as fast longhaul is, in bf16, as each other variant and as the faster one of PyTorch's, as the median over the rounds
with its range. Run it on an idle machine. Needs torch.

    tests/peers/bf16.py --rounds 10 --ours target/release/examples
"""
import argparse
import json
import os
import subprocess
import sys
import time
from statistics import median

from text_update import MALLOC, Program, processor, spread

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--only", default="products,unet,operator", help="what is measured")
parser.add_argument("--ours", default="target/release/examples", help="folder of the example programs")

HERE = os.path.dirname(os.path.abspath(__file__))
SIZES = [(2048, 768, 768), (2048, 3072, 768), (2048, 768, 3072), (8192, 256, 256), (8192, 1024, 256), (8192, 256, 1024)]
LARGE = "--hidden 256 --depth 8 --heads 8 --tokens 128 --dim 128 --batch 64"
VARIANTS = [("longhaul", "f32"), ("longhaul", "bf16"), ("torch", "f32"), ("torch", "bf16")]
SELF = ("longhaul", "bf16")


def table(rounds, rate):
    """rounds: a dictionary of milliseconds by variant for each; rate: what is shown for so many milliseconds."""
    shown = {" ".join(v): spread([rate(one[v]) for one in rounds]) for v in VARIANTS}
    others = {" ".join(v): lambda one, v=v: one[v] for v in VARIANTS if v != SELF}
    others["the faster torch"] = lambda one: min(one["torch", "f32"], one["torch", "bf16"])
    times = {name: spread([of(one) / one[SELF] for one in rounds]) for name, of in others.items()}
    return shown | {"longhaul bf16, times as fast as": times}


def products(a, result):
    import torch

    torch.set_num_threads(a.threads)
    ours = Program([f"{a.ours}/product_rate", f"--threads={a.threads}"])
    result["instructions, GFLOP/s on one thread"] = ours.ask("peaks")
    for m, n, k in SIZES:
        x, w = torch.randn(m, k), torch.randn(n, k)
        half = w.bfloat16()

        def peer(precision):
            start = time.perf_counter()
            with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                torch.nn.functional.linear(x, half if precision == "bf16" else w)
            return 1e3 * (time.perf_counter() - start)

        def of(program, precision):
            return peer(precision) if program == "torch" else ours.ask(f"{m} {n} {k} {precision}")["ms"]

        def one():
            found = {}
            for variant in VARIANTS:
                # Threads of the other program may still be waiting actively during the first, and its data be in the cache.
                found[variant] = median([of(*variant) for _ in range(4)][1:])
            return found

        one(), one()
        rounds = [one() for _ in range(5 * a.rounds)]
        result["products, GFLOP/s"][f"{m} x {k} by {k} x {n}"] = table(rounds, lambda ms: 2e-6 * m * n * k / ms)
    ours.close()


def updates(a, result, name, words, own, peer):
    words = [*words.split(), "--threads", str(a.threads)]
    programs = {
        "longhaul": [f"{a.ours}/{name}_update", *own.split()],
        "torch": [sys.executable, f"{HERE}/{name}_update.py", *peer.split()],
    }
    rounds = []
    for number in range(a.rounds):
        found = {}
        for program, precision in VARIANTS:
            command = [*programs[program], *words, "--precision", precision]
            found[program, precision] = json.loads(subprocess.check_output(command))["median_ms"]
        rounds.append(found)
        print(name, number + 1, *map(round, found.values()), file=sys.stderr, flush=True)
    result["updates, ms"][name] = table(rounds, lambda ms: ms)


if __name__ == "__main__":
    arguments = parser.parse_args()
    if os.environ.get("GLIBC_TUNABLES") != MALLOC:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
    found = {"processor": processor(), "threads": arguments.threads, "rounds": arguments.rounds,
             "products, GFLOP/s": {}, "updates, ms": {}}
    only = arguments.only.split(",")
    if "products" in only:
        products(arguments, found)
    if "unet" in only:
        updates(arguments, found, "unet", "--repeats 3", "", "")
    if "operator" in only:
        updates(arguments, found, "operator", LARGE, "--filter 7 --repeats 5", "--local --updates 5 --warmup 2")
    found["load average"] = os.getloadavg()[0]
    print(json.dumps(found, indent=1))
