#!/usr/bin/env python3
"""Times updates and predictions of BERT in transformers, for comparison with lib/tasks/examples/text_update.rs.

The model is BertForSequenceClassification with random weights and two labels, in the shapes of bert-base unless options say
otherwise, with PyTorch's fused attention (sdpa). One update is zero_grad, forward, cross entropy, backward, clipping, AdamW
(fused); dropout is 0.1 everywhere. The products of matrices of the linear layers are also timed alone, forward and
backward, as often as they occur in an update. With --lengths varied the texts of a batch have various lengths, the same in both
programs; --pad max pads them to the longest length of all texts, --pad batch to the longest of the batch. malloc keeps freed
memory, as in operator_update.py.

With --pairs N, both programs run N times in alternation and medians with their ranges are printed, as one JSON object:

    tests/peers/text_update.py --pairs 20 --repeats 1 --ours target/release/examples/text_update

Run it on an idle machine. Needs torch and transformers.
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

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
for name, default in [("hidden", 768), ("depth", 12), ("heads", 12), ("wide", 3072), ("vocabulary", 30522),
                      ("batch", 16), ("tokens", 128), ("threads", 2), ("repeats", 3)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--lengths", choices=["equal", "varied"], default="equal")
parser.add_argument("--pad", choices=["max", "batch"], default="max")
parser.add_argument("--pairs", type=int, default=0)
parser.add_argument("--ours", default="target/release/examples/text_update")


def lengths(arguments):
    """Lengths of the texts of a batch: all equal, or from a sixth to all of the tokens, with a mean of 0.4."""
    if arguments.lengths == "equal":
        return [arguments.tokens] * arguments.batch
    # Squares of evenly spaced numbers: many short texts and few long ones, as in most corpora.
    shares = [(i + 0.5) / arguments.batch for i in range(arguments.batch)]
    return [max(8, round(arguments.tokens * (0.15 + 0.7 * share**2))) for share in shares]


def measure(arguments):
    import torch
    from torch import nn
    from transformers import BertConfig, BertForSequenceClassification

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=arguments.vocabulary, hidden_size=arguments.hidden, num_hidden_layers=arguments.depth,
        num_attention_heads=arguments.heads, intermediate_size=arguments.wide, num_labels=2, attn_implementation="sdpa")
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    own = lengths(arguments)
    width = arguments.tokens if arguments.pad == "max" else max(own)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in own])
    ids = torch.randint(5, arguments.vocabulary, (arguments.batch, width)) * mask
    labels = torch.arange(arguments.batch) % 2
    inputs = {"input_ids": ids}
    if arguments.lengths != "equal":
        inputs["attention_mask"] = mask

    def update():
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    def predict():
        with torch.inference_mode():
            model(**inputs)

    def times(call):
        found = []
        for _ in range(arguments.repeats + 2):
            start = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - start))
        return sorted(found[2:])

    model.train()
    updates = times(update)
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model.eval()
    predictions = times(predict)
    products = 0.0
    for (inputs_of, outputs), count in [((arguments.hidden, arguments.hidden), 4), ((arguments.hidden, arguments.wide), 1),
                                        ((arguments.wide, arguments.hidden), 1)]:
        layer = nn.Linear(inputs_of, outputs)
        x = torch.randn(arguments.batch * width, inputs_of).requires_grad_()
        dy = torch.randn(arguments.batch * width, outputs)

        def alone():
            x.grad = layer.weight.grad = layer.bias.grad = None
            layer(x).backward(dy)

        found = times(alone)
        products += arguments.depth * count * found[len(found) // 2]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "update_ms": updates[len(updates) // 2],
        "prediction_ms": predictions[len(predictions) // 2],
        "products_ms": products,
        "peak_rss_bytes": peak,
        "torch": torch.__version__,
    }


def compare(arguments, words):
    """Runs both programs in alternation; prints medians and ranges over the pairs."""
    found = {"ours": [], "torch": []}
    for number in range(arguments.pairs):
        theirs = [sys.executable, __file__, *words]
        for name, command in [("ours", [arguments.ours, *words]), ("torch", theirs)]:
            found[name].append(json.loads(subprocess.check_output(command)))
        last = {name: [round(runs[-1][key]) for key in ("update_ms", "prediction_ms")] for name, runs in found.items()}
        print(f"pair {number + 1}: {last}", file=sys.stderr, flush=True)

    def spread(values):
        return {"median": round(statistics.median(values), 2), "range": [round(min(values), 2), round(max(values), 2)]}

    def all_of(run):
        return {
            "update_ms": run["update_ms"],
            "products_ms": run["products_ms"],
            "rest_ms": run["update_ms"] - run["products_ms"],
            "prediction_ms": run["prediction_ms"],
            "peak_mb": run["peak_rss_bytes"] / 1e6,
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
    names = [name for name in vars(arguments) if name not in ("pairs", "ours")]
    words = [part for name in names for part in (f"--{name}", str(getattr(arguments, name)))]
    if arguments.pairs:
        compare(arguments, words)
    else:
        if os.environ.get("GLIBC_TUNABLES") != MALLOC:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
        print(json.dumps(measure(arguments)))
