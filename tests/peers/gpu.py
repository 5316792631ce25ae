#!/usr/bin/env python3
"""Times PyTorch on the rows of `opcheck --large --json`, read from stdin, for comparison with our kernels.

Each row that has a counterpart here is computed with its shapes and options, by the fastest implementation in
PyTorch: products by cuBLAS, normalization and cross entropy by PyTorch's own kernels, attention by each backend of
scaled_dot_product_attention that supports the case, convolution by cuDNN with channels last and its best algorithm,
AdamW fused. Data are random, and the same gradients are computed as by our ops.

Times are measured as by opcheck: the median of groups of 20 calls, by events on the stream; "forward" without
gradients, "both" forward and backward. Prints a JSON object per row and implementation, or why there is no time.
--device cpu is for trying out the script. Needs torch.
"""
import argparse
import json
import statistics
import sys
import time
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

CALLS = 20
ENOUGH_SECONDS = 0.2
LEAST_GROUPS = 5
ATTENTION = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
# The library that computes the other side.
PEERS = {"linear": "cublas", "conv": "cudnn", "adamw": "fused"}


def seconds_on_gpu(work):
    """Of one call, in a group of them."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / CALLS


def seconds_on_cpu(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median(work, once):
    """Median seconds of a call; the first two groups warm up and choose algorithms."""
    for _ in range(2):
        once(work)
    times, start = [], time.perf_counter()
    while len(times) < LEAST_GROUPS or time.perf_counter() - start < ENOUGH_SECONDS:
        times.append(once(work))
    return statistics.median(times)


def linear(x, activation):
    act = {"identity": lambda y: y, "gelu": F.gelu}[activation]
    return lambda: act(F.linear(*x))


def attention(x, heads, causal):
    # [B, T, heads·D] seen as [B, heads, T, D]: no copy.
    def run():
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in x)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2).flatten(2)

    return run


def conv(x):
    # [B, H, W, C] in memory is "channels last" of [B, C, H, W].
    image, filters = (t.permute(0, 3, 1, 2) for t in x[:2])
    margin = [taps // 2 for taps in filters.shape[2:]]
    return lambda: F.conv2d(image, filters, x[2], padding=margin)


def adamw(p):
    p.grad = torch.randn_like(p)
    return torch.optim.AdamW([p], lr=1e-6, weight_decay=0.01, fused=True).step


def inputs(row, element, device):
    """Leaves of the shapes of a row; the second of cross entropy are classes."""
    shapes = [[int(n) for n in shape.split("x")] for shape in row["inputs"].split()]
    leaf = partial(torch.randn, device=device, requires_grad=True)
    if row["name"] == "cross_entropy":
        classes = torch.randint(shapes[0][1], shapes[1], device=device)
        return [leaf(shapes[0], dtype=element), classes]
    return [leaf(shape, dtype=element) for shape in shapes]


def work_of(row, x):
    """A call of the forward pass, or None for a row without a counterpart."""
    match row["name"]:
        case "linear":
            return linear(x, row["activation"])
        case "layernorm":
            return lambda: F.layer_norm(x[0], x[1].shape, x[1], x[2], 1e-5)
        case "rmsnorm":
            return lambda: F.rms_norm(x[0], x[1].shape, x[1], 1e-6)
        case "cross_entropy":
            return lambda: F.cross_entropy(x[0], x[1], reduction="sum")
        case "attention":
            return attention(x, row["heads"], row["causal"])
        case "conv":
            return conv(x)
        case _:
            return None


def measure(row, element, device):
    """Microseconds of a row."""
    once = partial(median, once=seconds_on_gpu if device == "cuda" else seconds_on_cpu)
    if row["name"] == "adamw":
        p = torch.randn(int(row["inputs"]), device=device, requires_grad=True)
        return {"forward_us": 1e6 * once(adamw(p))}
    x = inputs(row, element, device)
    work = work_of(row, x)
    with torch.no_grad():
        given = torch.randn_like(work())
        forward = once(work)
    leaves = [t for t in x if t.requires_grad]
    both = once(lambda: torch.autograd.grad(work(), leaves, given))
    return {"forward_us": 1e6 * forward, "both_us": 1e6 * both}


def rows_of(row, element, device):
    """A result for each peer of a row, or why there is none."""
    known = {key: value for key, value in row.items() if not key.startswith(("forward_", "both_"))}
    attends = row["name"] == "attention"
    for peer in ATTENTION if attends else [PEERS.get(row["name"], "own")]:
        result = {**known, "peer": f"torch {torch.__version__}, {peer}"}
        try:
            if attends:
                with sdpa_kernel(ATTENTION[peer]):
                    result |= measure(row, element, device)
            else:
                result |= measure(row, element, device)
        except RuntimeError as why:  # out of memory is one too
            result["failed"] = str(why).splitlines()[0]
        yield result


def main():
    p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    p.add_argument("--element", choices=("f32", "tf32", "bf16", "f16"), default="f32", help="element type")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where")
    a = p.parse_args()
    torch.manual_seed(1)
    # Settings for cuBLAS and cuDNN: "tf32" rounds the operands of products.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.element == "tf32"
    torch.backends.cudnn.benchmark = True
    element = {"bf16": torch.bfloat16, "f16": torch.float16}.get(a.element, torch.float32)
    for line in sys.stdin:
        row = json.loads(line)
        if row.get("name") in ("linear", "layernorm", "rmsnorm", "cross_entropy", "attention", "conv", "adamw"):
            for result in rows_of(row, element, a.device):
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
