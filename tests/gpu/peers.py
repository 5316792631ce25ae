"""PyTorch on a GPU: the rates of the card, torch.compile on the rows of opcheck, updates of bert-base (transformers) and of
U-Net S with the shapes of the configurations in data.sh. tests/peers has the other comparisons.

An update is zero_grad, forward, loss, backward, clipping to 1, AdamW (fused); bf16 is autocast; f32 is without TF32. Updates
are timed in groups, by events on the stream, as they follow one another in training. Prints JSON lines.
"""
import argparse
import importlib.util
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("what", choices=("ceilings", "rows", "bert", "unet", "arrays"))
parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
parser.add_argument("--element", choices=("f32", "tf32", "bf16", "f16"), default="f32")
parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--graphs", action="store_true", help="mode reduce-overhead")
parser.add_argument("--small", action="store_true", help="sizes for a rehearsal on the CPU")
parser.add_argument("--folder", type=Path, help="for arrays")
a = parser.parse_args()
CUDA = a.device == "cuda"

import torch  # noqa: E402 (after the arguments: it takes seconds)
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


def seconds(work, calls=20, groups=7, warm=2):
    """Median seconds of a call, in groups of calls."""
    found = []
    for group in range(groups + warm):
        if CUDA:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        if CUDA:
            last.record()
            last.synchronize()
        took = first.elapsed_time(last) / 1e3 if CUDA else time.perf_counter() - start
        if group >= warm:
            found.append(took / calls)
    return statistics.median(found)


def ceilings():
    n, side = (1 << 29, 8192) if CUDA else (1 << 22, 256)
    x = torch.randn(n, device=a.device)
    y = torch.empty_like(x)
    result = {"copy_gb_s": round(2 * x.nbytes / seconds(lambda: y.copy_(x), 10) / 1e9)}
    del x, y
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16), ("tf32", torch.float32), ("f32", torch.float32)):
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        p, q = (torch.randn(side, side, device=a.device, dtype=dtype) for _ in range(2))
        took = seconds(lambda: p @ q, 10 if name != "f32" else 3, 5)
        result[f"{name}_gflop_s"] = round(2 * side**3 / took / 1e9)
    if CUDA:
        properties = torch.cuda.get_device_properties(0)
        result |= {"multiprocessors": properties.multi_processor_count, "l2_bytes": properties.L2_cache_size}
    print(json.dumps({**result, "torch": torch.__version__}))


def rows():
    """torch.compile on the rows that it can fuse, timed as tests/peers/gpu.py does."""
    path = Path(__file__).resolve().parent.parent / "peers/gpu.py"
    spec = importlib.util.spec_from_file_location("gpu", path)
    gpu = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu)
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = a.element == "tf32"
    element = {"bf16": torch.bfloat16, "f16": torch.float16}.get(a.element, torch.float32)
    once = partial(gpu.median, once=gpu.seconds_on_gpu if CUDA else gpu.seconds_on_cpu)
    for line in sys.stdin:
        row = json.loads(line)
        fused = row.get("name") in ("layernorm", "rmsnorm", "cross_entropy") or row.get("activation") == "gelu"
        if not fused:
            continue
        known = {key: value for key, value in row.items() if not key.startswith(("forward_", "both_", "backward_"))}
        result = {**known, "peer": f"torch {torch.__version__}, compile"}
        try:
            torch.compiler.reset()
            x = gpu.inputs(row, element, a.device)
            work = torch.compile(gpu.work_of(row, x))
            with torch.no_grad():
                given = torch.randn_like(work())
                result["forward_us"] = 1e6 * once(work)
            leaves = [t for t in x if t.requires_grad]
            result["both_us"] = 1e6 * once(lambda: torch.autograd.grad(work(), leaves, given))
        except Exception as why:  # a failure of the compiler is a result
            result["failed"] = (str(why).splitlines() or [type(why).__name__])[0]
        print(json.dumps(result), flush=True)


def update_of(model, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    objective = torch.compile(loss_of, mode="reduce-overhead" if a.graphs else "default") if a.compile else loss_of

    def update():
        optimizer.zero_grad()
        with torch.autocast(a.device, torch.bfloat16, enabled=a.precision == "bf16"):
            loss = objective()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return update


def report(model, update, samples):
    calls, groups = (10, 5) if CUDA else (1, 2)
    took = seconds(update, calls, groups, warm=2 if CUDA else 1)
    memory = torch.cuda.max_memory_allocated() if CUDA else 0
    # As train-stage logs it: with the context, and with what the allocator holds.
    free, total = torch.cuda.mem_get_info() if CUDA else (0, 0)
    print(json.dumps({
        "peer": "torch " + torch.__version__, "parameters": sum(p.numel() for p in model.parameters()),
        "median_ms": 1e3 * took, "samples_per_second": samples / took, "peak_device_bytes": memory, "gpu_memory_bytes": total - free}))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    batch, tokens, vocabulary = (64, 128, 30522) if not a.small else (2, 16, 100)
    sizes = {} if not a.small else {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=vocabulary, num_labels=2, attn_implementation="sdpa", **sizes)
    model = BertForSequenceClassification(config).to(a.device).train()
    ids = torch.randint(5, vocabulary, (batch, tokens), device=a.device)
    labels = torch.arange(batch, device=a.device) % 2
    report(model, update_of(model, lambda: model(input_ids=ids, labels=labels).loss), batch)


INPUT, OUTPUT, HIDDEN, LEVELS = 20, 5, 32, 3


class UNet(nn.Module):
    """U-Net S, as in tests/peers/unet_update.py."""

    def __init__(self):
        super().__init__()
        width = lambda level: HIDDEN << level

        def double(a, b):
            def layer(a):
                return [nn.Conv2d(a, b, 3, padding=1), nn.InstanceNorm2d(b), nn.ReLU(inplace=True)]

            return nn.Sequential(*layer(a), *layer(b))

        self.input = nn.Conv2d(INPUT, HIDDEN, 3, padding=1)
        self.down = nn.ModuleList(double(width(i), width(i + 1)) for i in range(LEVELS))
        self.bottom = double(width(LEVELS), width(LEVELS + 1))
        self.finer = nn.ModuleList(nn.ConvTranspose2d(width(i + 2), width(i + 1), 2, stride=2) for i in range(LEVELS))
        self.up = nn.ModuleList(double(2 * width(i + 1), width(i + 1)) for i in range(LEVELS))
        self.output = nn.Conv2d(width(1), OUTPUT, 1)

    def forward(self, x):
        x, skips = self.input(x), []
        for level in self.down:
            skips.append(level(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for i in reversed(range(LEVELS)):
            x = self.up[i](torch.cat([self.finer[i](x), skips[i]], 1))
        return self.output(x)


def unet():
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    batch, grid = (32, 64) if not a.small else (2, 16)
    last = lambda t: t.to(a.device, memory_format=torch.channels_last)
    model = last(UNet()).train()
    x, target = last(torch.randn(batch, INPUT, grid, grid)), last(torch.randn(batch, OUTPUT, grid, grid))
    report(model, update_of(model, lambda: F.mse_loss(model(x), target)), batch)


def arrays():
    """Random records for train-stage regression."""
    import numpy

    count, grid = (160, 64) if not a.small else (24, 16)
    a.folder.mkdir(parents=True, exist_ok=True)
    draw = numpy.random.default_rng(1)
    for name, channels in (("x", INPUT), ("y", OUTPUT)):
        numpy.save(a.folder / f"{name}.npy", draw.standard_normal((count, grid, grid, channels), dtype=numpy.float32))
    print(json.dumps({"records": count}))


# Otherwise f32 products of PyTorch are in f32, unless a caller changes that.
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
{"ceilings": ceilings, "rows": rows, "bert": bert, "unet": unet, "arrays": arrays}[a.what]()
