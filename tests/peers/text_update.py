#!/usr/bin/env python3
"""Times updates and predictions of BERT in transformers, in alternation with lib/tasks/examples/text_update.rs.

The model is BertForSequenceClassification with random weights and two labels, in the shapes of bert-base unless options say
otherwise, f32, with PyTorch's fused attention (sdpa), which PyTorch itself only uses where nothing is dropped. One update is
zero_grad, forward, cross entropy, backward, clipping, AdamW (fused); dropout is 0.1 everywhere. malloc keeps freed memory, as
in operator_update.py.

Both programs stay in memory and answer one request at a time, in turns. An update of N texts of the full length is measured
first, with the peak of resident memory; then the matrix products inside updates, which PyTorch's profiler counts in the one
and a clock around every product in the other program (the mean over threads); then predictions; and last, updates of
texts whose lengths have a lognormal distribution, cut off at the full length. Each of these texts is read once per program
and kind of padding:

    max      as many texts, all padded to the full length
    dynamic  transformers' DataCollatorWithPadding: padded to the longest text of a random batch
    grouped  the same with group_by_length
    buckets  batches of train-stage: texts of similar length, padded to a multiple of 8

Prints a JSON object: for each quantity the medians of both programs with their ranges over the pairs, and how many times
as fast longhaul is, as the median over the pairs with its range; for texts of various lengths the sums over all texts.
Run it on an idle machine. Needs torch and transformers.

    tests/peers/text_update.py --pairs 20 --ours target/release/examples/text_update
"""
import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time

# Otherwise glibc returns large blocks to the system and faults them in again on every update.
MALLOC = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592"
# The operations in which PyTorch multiplies matrices; all are below an operation of another name, and none below another.
PRODUCTS = {"aten::addmm", "aten::mm", "aten::bmm", "aten::baddbmm"}
# Fused attention, whose products cannot be told from the rest.
FUSED = {"aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
SIZES = [("hidden", 768), ("depth", 12), ("heads", 12), ("wide", 3072), ("vocabulary", 30522), ("batch", 16), ("tokens", 128)]
for name, default in [*SIZES, ("threads", 2)]:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--pairs", type=int, default=20, help="pairs of every quantity, and batches of texts of various lengths")
parser.add_argument("--only", default="update,products,predict,varied", help="what is measured")
parser.add_argument("--lengths", default="", help="lengths of the texts of various lengths; by default drawn")
parser.add_argument("--ours", default="target/release/examples/text_update")
parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
parser.add_argument("--serve", action="store_true", help="answer requests on standard input with transformers")


def draw(arguments):
    """Lengths with a lognormal distribution of median 40 tokens of 128, at least 4; 13 of 1000 are cut off at 128."""
    source = random.Random(1)
    one = lambda: round(source.lognormvariate(0, 0.52) * arguments.tokens * 40 / 128)
    return [min(max(one(), 4), arguments.tokens) for _ in range(arguments.pairs * arguments.batch)]


class Peer:
    """The model in transformers."""

    def __init__(self, a):
        import torch
        from transformers import BertConfig, BertForSequenceClassification

        torch.set_num_threads(a.threads)
        torch.manual_seed(1)
        config = BertConfig(
            vocab_size=a.vocabulary, hidden_size=a.hidden, num_hidden_layers=a.depth, num_attention_heads=a.heads,
            intermediate_size=a.wide, num_labels=2, attn_implementation="sdpa")
        self.torch, self.a = torch, a
        self.model = BertForSequenceClassification(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
        lengths = [int(length) for length in a.lengths.split(",") if length]
        groups = [lengths[i : i + a.batch] for i in range(0, len(lengths), a.batch)]
        self.batches = {"max": iter(groups), "dynamic": iter(groups)}
        by_length = sorted(lengths)
        groups = [by_length[i : i + a.batch] for i in range(0, len(lengths), a.batch)]
        random.Random(2).shuffle(groups)
        self.batches["grouped"] = iter(groups)

    def autocast(self):
        return self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.a.precision == "bf16")

    def update(self, inputs, labels):
        self.model.train()
        self.optimizer.zero_grad()
        with self.autocast():
            loss = self.model(**inputs, labels=labels).loss
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def predict(self, inputs, _):
        self.model.eval()
        with self.torch.inference_mode(), self.autocast():
            self.model(**inputs)

    def timed(self, work, lengths, width):
        torch = self.torch
        mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
        inputs = {"input_ids": torch.randint(5, self.a.vocabulary, mask.shape) * mask}
        if min(lengths) < width:
            inputs["attention_mask"] = mask
        labels = torch.arange(len(lengths)) % 2
        start = time.perf_counter()
        work(inputs, labels)
        return {"ms": 1e3 * (time.perf_counter() - start), "tokens": width * len(lengths)}

    def answer(self, request):
        a = self.a
        full = [a.tokens] * a.batch
        if request in ("products", "predict-products"):
            from torch.profiler import ProfilerActivity, profile

            work = self.update if request == "products" else self.predict
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                answer = self.timed(work, full, a.tokens)
            total = lambda names: sum(e.self_cpu_time_total for e in profiler.key_averages() if e.key in names) / 1e3
            rest = {e.key: round(e.self_cpu_time_total / 1e3, 1) for e in profiler.key_averages()}
            largest = dict(sorted(rest.items(), key=lambda item: -item[1])[:12])
            return {"ms": answer["ms"], "products_ms": total(PRODUCTS), "fused_ms": total(FUSED), "largest": largest}
        if request == "update":
            return self.timed(self.update, full, a.tokens)
        if request == "predict":
            return self.timed(self.predict, full, a.tokens)
        if request in self.batches:
            lengths = next(self.batches[request])
            return self.timed(self.update, lengths, a.tokens if request == "max" else max(lengths))
        if request == "parameters":
            return {"parameters": sum(p.numel() for p in self.model.parameters())}
        if request == "peak":
            return {"peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
        raise SystemExit(f"{request} is not a request")


class Program:
    """A process that answers requests."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request):
        print(request, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline() or sys.exit(f"{self.process.args[0]} ended at {request}"))

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def processor():
    with open("/proc/cpuinfo") as lines:
        found = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in found.items()}
    flags = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if flag in fields["flags"].split()]
    return f"{fields['model name']}, family {fields['cpu family']}, model {fields['model']}, {' '.join(flags)}"


def spread(values):
    return {"median": round(statistics.median(values), 3), "range": [round(min(values), 3), round(max(values), 3)]}


def compare(a, words):
    import torch
    import transformers

    ours, peer = Program([a.ours, *words]), Program([sys.executable, __file__, "--serve", *words])
    only, found = a.only.split(","), {}
    result = {"processor": processor(), "torch": torch.__version__, "transformers": transformers.__version__,
              "pairs": a.pairs, "threads": a.threads, "precision": a.precision, "ours": {}, "peer": {}, "times as fast": {}}
    parameters = [program.ask("parameters") for program in (ours, peer)]
    assert parameters[0] == parameters[1], parameters

    def pairs(request, key="ms"):
        """In alternation; which program begins changes from pair to pair."""
        for program in (ours, peer) * 2:
            program.ask(request)
        rows = {ours: [], peer: []}
        for number in range(a.pairs):
            for program in (ours, peer) if number % 2 == 0 else (peer, ours):
                rows[program].append(program.ask(request))
            print(request, number + 1, *(round(rows[p][-1]["ms"]) for p in (ours, peer)), file=sys.stderr, flush=True)
        return rows[ours], rows[peer]

    def note(name, one, other):
        result["ours"][name], result["peer"][name] = spread(one), spread(other)
        result["times as fast"][name] = spread([y / x for x, y in zip(one, other)])

    values = lambda rows, key: [row[key] for row in rows]
    if "update" in only:
        rows = pairs("update")
        note("update_ms", *(values(r, "ms") for r in rows))
        peaks = [program.ask("peak")["peak_rss_bytes"] / 1e6 for program in (ours, peer)]
        result["peak_mb"] = {"ours": round(peaks[0]), "peer": round(peaks[1]), "ratio": round(peaks[0] / peaks[1], 3)}
    for request in ("products", "predict-products"):
        if "products" in only:
            rows = pairs(request)
            note(f"{request}_ms", *(values(r, "products_ms") for r in rows))
            note(f"outside {request}_ms", *([row["ms"] - row["products_ms"] for row in r] for r in rows))
            result["peer"][f"largest of {request}"] = rows[1][-1]["largest"]
    if "predict" in only:
        note("predict_ms", *(values(r, "ms") for r in pairs("predict")))
    if "varied" in only:
        kinds = [(ours, "max"), (peer, "max"), (peer, "dynamic"), (peer, "grouped"), (ours, "buckets")]
        rows = {kind: [] for kind in kinds}
        for number in range(a.pairs):
            for kind in kinds:
                rows[kind].append(kind[0].ask(kind[1]))
            print("varied", number + 1, *(round(r[-1]["ms"]) for r in rows.values()), file=sys.stderr, flush=True)
        sums = {kind: sum(values(r, "ms")) for kind, r in rows.items()}
        for (program, padding), sum_of in sums.items():
            side = "ours" if program is ours else "peer"
            result[side][f"{padding}, s for all texts"] = round(sum_of / 1e3, 2)
            result[side][f"{padding}, tokens"] = sum(values(rows[program, padding], "tokens"))
            result["times as fast"][f"buckets over {padding} of {side}"] = round(sum_of / sums[ours, "buckets"], 3)
    result["load average"] = os.getloadavg()[0]
    for program in (ours, peer):
        program.close()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    arguments = parser.parse_args()
    if arguments.serve:
        if os.environ.get("GLIBC_TUNABLES") != MALLOC:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
        peer = Peer(arguments)
        for line in sys.stdin:
            print(json.dumps(peer.answer(line.strip())), flush=True)
    else:
        arguments.lengths = arguments.lengths or ",".join(map(str, draw(arguments)))
        names = [name for name, _ in SIZES] + ["threads", "lengths", "precision"]
        compare(arguments, [part for name in names for part in (f"--{name}", str(getattr(arguments, name)))])
