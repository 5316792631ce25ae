#!/usr/bin/env python3
"""Times an update of the MMDiT of task cycle-vae in PyTorch, for comparison with lib/tasks/examples/cycle_update.rs.

The model is that of lib/tasks/src/multimodal: separate weights for texts and latents, joint attention by
scaled_dot_product_attention with normalised queries and keys, adaptive normalisation with gains, a latent in the
condition, a tied table; f32. One update is zero_grad, forward, cross entropy of the masked tokens and squared error of
the latents, backward, clipping, AdamW (fused). malloc keeps freed memory, as in operator_update.py. With --compile, the
model goes through torch.compile.

With --pairs N, both programs run N times in alternation and medians with their ranges are printed, as one JSON object:

    tests/peers/cycle_update.py --pairs 20 --ours target/release/examples/cycle_update

Run it on an idle machine. Needs torch.
"""
import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time

# Otherwise glibc returns large blocks to the system and faults them in again on every update.
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
SIZES = {"hidden": 64, "depth": 2, "heads": 4, "tokens": 22, "vocabulary": 181, "vector": 32, "batch": 64,
         "repeats": 20, "threads": 2}
for name, default in SIZES.items():
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--pairs", type=int, default=0)
parser.add_argument("--ours", default="target/release/examples/cycle_update")


def measure(a):
    import torch
    from torch import nn
    from torch.nn import functional as F

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    hidden, heads, size = a.hidden, a.heads, a.hidden // a.heads

    class Stream(nn.Module):
        def __init__(self):
            super().__init__()
            self.modulation = nn.Linear(hidden, 6 * hidden)
            self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
            self.out = nn.Linear(hidden, hidden, bias=False)
            self.q_norm, self.k_norm = nn.RMSNorm(size, 1e-6), nn.RMSNorm(size, 1e-6)
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

        def normalised(self, x, shift, scale):
            return F.layer_norm(x, (hidden,)) * (1 + scale) + shift

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.streams = nn.ModuleList(Stream() for _ in range(2))

        def forward(self, tokens, condition):
            m = [own.modulation(condition).unsqueeze(1).chunk(6, 2) for own in self.streams]
            q, k, v = [], [], []
            for own, x, vectors in zip(self.streams, tokens, m):
                parts = own.qkv(own.normalised(x, vectors[0], vectors[1])).unflatten(2, (3, heads, size))
                one, two, three = parts.transpose(1, 3).unbind(2)
                q.append(own.q_norm(one))
                k.append(own.k_norm(two))
                v.append(three)
            mixed = F.scaled_dot_product_attention(*(torch.cat(x, 2) for x in (q, k, v)))
            mixed = mixed.transpose(1, 2).flatten(2).split([x.shape[1] for x in tokens], 1)
            found = []
            for own, x, vectors, own_mixed in zip(self.streams, tokens, m, mixed):
                x = x + (1 + vectors[2]) * own.out(own_mixed)
                y = own.down(F.gelu(own.up(own.normalised(x, vectors[3], vectors[4]))))
                found.append(x + (1 + vectors[5]) * y)
            return found

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(a.vocabulary, hidden)
            self.positions = nn.Parameter(0.02 * torch.randn(a.tokens, hidden))
            self.position = nn.Parameter(0.02 * torch.randn(1, hidden))
            wide = 2 * hidden
            self.latent_in = nn.Sequential(nn.Linear(a.vector, wide), nn.LayerNorm(wide), nn.GELU(), nn.Linear(wide, hidden))
            self.times = nn.Sequential(nn.Linear(64, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
            self.pooled = nn.Linear(a.vector, hidden, bias=False)
            self.blocks = nn.ModuleList(Block() for _ in range(a.depth))
            self.norms = nn.ModuleList(nn.RMSNorm(hidden, 1e-5) for _ in range(2))
            self.bias = nn.Parameter(torch.zeros(a.vocabulary))
            self.latent_head = nn.Sequential(nn.Linear(hidden, wide), nn.GELU(), nn.Linear(wide, a.vector))

        def forward(self, ids, latents, times):
            tokens = [self.table(ids) + self.positions, self.latent_in(latents).unsqueeze(1) + self.position]
            angles = math.pi * torch.arange(1, 17) * times[:, :, None]
            features = torch.cat([angles.cos(), angles.sin()], 2).flatten(1)
            clean = 1 - times[:, 1:]
            condition = F.silu(self.times(features) + F.silu(self.pooled(latents)) * clean)
            for block in self.blocks:
                tokens = block(tokens, condition)
            text, latent = (norm(x) for norm, x in zip(self.norms, tokens))
            return F.linear(text, self.table.weight, self.bias), self.latent_head(latent.squeeze(1))

    model = Network()
    parameters = sum(p.numel() for p in model.parameters())
    run = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    half = a.batch // 2
    targets = torch.randint(5, a.vocabulary, (a.batch, a.tokens))
    is_masked = torch.zeros(a.batch, a.tokens, dtype=torch.bool)
    is_masked[:half, ::2] = True
    ids = targets.masked_fill(is_masked, 4)
    latents = torch.randn(a.batch, a.vector)
    times = torch.tensor([[0.5, 0.0]] * half + [[0.0, 1.0]] * (a.batch - half))
    masked_targets = targets[is_masked]

    def update():
        optimizer.zero_grad()
        logits, found = run(ids, latents, times)
        loss = F.cross_entropy(logits[is_masked], masked_targets)
        loss = loss + 5 * F.mse_loss(found[half:], latents[half:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    found = []
    for _ in range(a.repeats + 2):
        start = time.perf_counter()
        loss = update()
        found.append(1e3 * (time.perf_counter() - start))
    found = sorted(found[2:])
    return {
        "parameters": parameters,
        "median_ms": found[len(found) // 2],
        "minimum_ms": found[0],
        "loss": loss.item(),
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "torch": torch.__version__,
    }


def compare(a, words):
    """Runs both programs in alternation; prints medians and ranges over the pairs."""
    theirs = [sys.executable, __file__, *words, *(["--compile"] if a.compile else [])]
    rows = {"ours": [], "torch": []}
    for number in range(a.pairs):
        for name, command in [("ours", [a.ours, *words]), ("torch", theirs)]:
            rows[name].append(json.loads(subprocess.check_output(command)))
        last = {name: round(runs[-1]["median_ms"], 1) for name, runs in rows.items()}
        print(f"pair {number + 1}: {last}", file=sys.stderr, flush=True)
    assert rows["ours"][0]["parameters"] == rows["torch"][0]["parameters"], rows

    def spread(values):
        return {"median": round(statistics.median(values), 2), "range": [round(min(values), 2), round(max(values), 2)]}

    of = lambda name, key: [run[key] for run in rows[name]]
    ratio = lambda key: [one[key] / other[key] for one, other in zip(rows["torch"], rows["ours"])]
    return {
        **{size: getattr(a, size) for size in SIZES},
        "pairs": a.pairs,
        "compile": a.compile,
        "torch": rows["torch"][0]["torch"],
        "parameters": rows["ours"][0]["parameters"],
        "update_ms": {name: spread(of(name, "median_ms")) for name in rows},
        "products_ms": {"ours": spread(of("ours", "products_ms"))},
        "peak_mb": {name: spread([x / 1e6 for x in of(name, "peak_rss_bytes")]) for name in rows},
        "times as fast": spread(ratio("median_ms")),
        "memory": spread([1 / x for x in ratio("peak_rss_bytes")]),
    }


if __name__ == "__main__":
    arguments = parser.parse_args()
    words = [part for name in SIZES for part in (f"--{name}", str(getattr(arguments, name)))]
    if arguments.pairs:
        print(json.dumps(compare(arguments, words), indent=1))
    else:
        if os.environ.get("GLIBC_TUNABLES") != MALLOC:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
        print(json.dumps(measure(arguments)))
