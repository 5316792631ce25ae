#!/usr/bin/env python3
"""Times updates of a decoder in transformers and PEFT, in alternation with lib/tasks/examples/decoder_update.rs.

The model is a small Qwen3 with random weights unless options give another size, or --folder names a folder of transformers.
It is trained as a whole (update), with LoRA on all linear layers (lora), and with LoRA on weights in NF4 (qlora). One update is
zero_grad, forward, cross entropy of the next token at every position, backward, clipping, AdamW (fused); attention is sdpa
(or --attention), without a mask. With --image ROWSxCOLUMNS it is a small Qwen3-VL, or that of --folder: every sequence begins with
an image of so many patches, only the text after it has a loss, and LoRA is on the layers of attention and feed-forward networks of
tower and decoder, but not on the mergers. On a GPU --precision bf16 computes in bf16: the whole model and adapters are in f32 under autocast, as in the
Trainer with bf16; frozen weights are in bf16 or in 4 bits of bitsandbytes with double quantisation. Without bitsandbytes, qlora
of the peer has dequantised weights, which the result says. malloc keeps freed memory, as in operator_update.py, unless
--malloc default.

Both programs start from the same folder, rounded to bf16, and the same adapter, and read the same tokens; the losses of their
first updates must agree. Each mode has two processes of its own, which stay in memory and answer one request at a time, in
turns. Prints a JSON object: for each mode the losses, the medians of both programs with their ranges over the pairs, how many
times as fast longhaul is, as the median over the pairs with its range, the mean processor time of an update, and peaks of
resident memory (that of the peer with half a gigabyte of imports) and of the device. Run it on an idle machine. Needs torch,
transformers and peft.

    tests/peers/decoder_update.py --pairs 20 --ours target/release/examples/decoder_update
    tests/peers/decoder_update.py --folder FOLDER --modes lora,qlora --batch 2 --tokens 2048 --device cuda --precision bf16 \\
      --optimizer adamw8bit --mem-budget 0
    tests/peers/decoder_update.py --batch 8 --tokens 112 --image 6x24 --attention eager
"""
import argparse
import json
import os
import resource
import sys
import tempfile
import time

import image_prefix
from text_update import MALLOC, Program, processor, spread

# The greatest relative difference of the losses of the first updates: rounding, which AdamW's first steps enlarge, because
# they are as long for a small gradient as for a large one.
TOLERANCE = {"f32": 1e-4, "bf16": 1e-2}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
SHAPE = [("hidden", 128), ("depth", 4), ("heads", 4), ("kv-heads", 2), ("head", 32), ("wide", 384), ("vocabulary", 512)]
for name, default in SHAPE:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--untied", action="store_true", help="the head has a matrix of its own")
SIZES = [("batch", 32), ("tokens", 64), ("threads", 2)]
for name, default in SIZES:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--image", type=image_prefix.grid, metavar="ROWSxCOLUMNS", help="patches of an image before each text")
parser.add_argument("--attention", default="sdpa", help="attn_implementation of transformers")
parser.add_argument("--malloc", choices=["tuned", "default"], default="tuned",
                    help="of the peer: tuned, it keeps memory instead of returning it to the system, which is faster")
parser.add_argument("--rank", type=int, default=16, help="r of LoRA; alpha is twice as large")
parser.add_argument("--device", default="cpu")
parser.add_argument("--precision", choices=["f32", "bf16"], default="f32")
parser.add_argument("--optimizer", choices=["adamw", "adamw8bit"], default="adamw")
parser.add_argument("--mem-budget", type=float, default=1.0, help="of longhaul; below 1, the peer checkpoints all layers")
parser.add_argument("--folder", help="a folder of transformers, instead of a model with random weights")
parser.add_argument("--modes", default="update,lora,qlora")
parser.add_argument("--pairs", type=int, default=20)
parser.add_argument("--first", type=int, default=5, help="updates whose losses are compared")
parser.add_argument("--products", action="store_true", help="also time our matrix products, and list the peer's operations")
parser.add_argument("--ours", default="target/release/examples/decoder_update")
parser.add_argument("--serve", metavar="MODE", help="answer requests on standard input with transformers")
parser.add_argument("--adapter", help="folder of the adapter's initial values")


def prepare(a, folder):
    """Writes the model, unless there is one, and an adapter; returns both folders."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen3Config

    torch.manual_seed(1)
    if a.folder:
        model = image_prefix.model_class(a).from_pretrained(a.folder, dtype=torch.bfloat16)
    elif a.image:
        config = image_prefix.tiny(a, not a.untied, max_position_embeddings=a.tokens)
        model = image_prefix.model_class(a)(config).to(torch.bfloat16)
    else:
        config = Qwen3Config(
            vocab_size=a.vocabulary, hidden_size=a.hidden, num_hidden_layers=a.depth, num_attention_heads=a.heads,
            num_key_value_heads=a.kv_heads, head_dim=a.head, intermediate_size=a.wide, tie_word_embeddings=not a.untied,
            max_position_embeddings=a.tokens)
        model = image_prefix.model_class(a).from_config(config, dtype=torch.bfloat16)
    if not a.folder:
        model.save_pretrained(f"{folder}/model")
    targets = image_prefix.ADAPTED if a.image else "all-linear"
    lora = LoraConfig(task_type="CAUSAL_LM", r=a.rank, lora_alpha=2 * a.rank, target_modules=targets)
    get_peft_model(model, lora).save_pretrained(f"{folder}/adapter")
    return a.folder or f"{folder}/model", f"{folder}/adapter"


def has_bitsandbytes():
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        return False
    return True


class Peer:
    """The model in transformers."""

    def __init__(self, a):
        import torch
        from peft import PeftModel
        from transformers import BitsAndBytesConfig

        torch.set_num_threads(a.threads)
        torch.manual_seed(1)
        self.torch, self.a, self.updates = torch, a, 0
        compute = torch.bfloat16 if a.precision == "bf16" else torch.float32
        # The whole model is trained in f32.
        options = {"dtype": torch.float32 if a.serve == "update" else compute, "attn_implementation": a.attention}
        if a.serve == "qlora" and has_bitsandbytes():
            options["quantization_config"] = BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=compute)
        self.model = image_prefix.model_class(a).from_pretrained(a.folder, device_map=a.device, **options)
        self.model.config.get_text_config().use_cache = False
        if a.mem_budget < 1:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        if a.serve != "update":
            self.model = PeftModel.from_pretrained(self.model, a.adapter, is_trainable=True)
        self.model.train()
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        if a.optimizer == "adamw8bit":
            from bitsandbytes.optim import AdamW8bit

            self.optimizer = AdamW8bit(self.trained, lr=1e-3, weight_decay=0.01)
        else:
            self.optimizer = torch.optim.AdamW(self.trained, lr=1e-3, weight_decay=0.01, fused=True)
        self.prefix = image_prefix.ImagePrefix(self.model.config, a.image)

    def inputs(self):
        """Pseudorandom tokens and images, the same in both programs, and labels."""
        import numpy

        a, prefix = self.a, self.prefix
        count = a.batch * a.tokens
        ids = image_prefix.mixed(self.updates * count, count) % numpy.uint64(prefix.text)
        ids = self.torch.from_numpy(ids.astype(numpy.int64).reshape(a.batch, a.tokens))
        inputs = prefix.inputs(ids, self.updates * a.batch)
        labels = ids.clone()
        labels[:, : len(prefix.tokens)] = -100
        return {**inputs, "labels": labels}

    def update(self):
        torch, a = self.torch, self.a
        inputs = self.inputs()
        self.updates += 1
        start = time.perf_counter()
        inputs = {name: value.to(a.device) for name, value in inputs.items()}
        self.optimizer.zero_grad()
        with torch.autocast(a.device.split(":")[0], torch.bfloat16, enabled=a.precision == "bf16"):
            loss = self.model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        if a.device != "cpu":
            torch.cuda.synchronize()
        return {"ms": 1e3 * (time.perf_counter() - start), "loss": loss.item()}

    def answer(self, request):
        if request == "update":
            return self.update()
        if request == "products":
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                answer = self.update()
            times = {e.key: round(e.self_cpu_time_total / 1e3, 1) for e in profiler.key_averages()}
            return {**answer, "largest": dict(sorted(times.items(), key=lambda item: -item[1])[:14])}
        if request == "parameters":
            count = sum(p.numel() for p in self.model.parameters())
            return {"trained": sum(p.numel() for p in self.trained), "parameters": count}
        if request == "peak":
            device = 0 if self.a.device == "cpu" else self.torch.cuda.max_memory_allocated()
            rss = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return {"peak_rss_bytes": rss, "peak_device_bytes": device}
        raise SystemExit(f"{request} is not a request")


def processor_seconds(program):
    """What a program has taken of all processors, which other load on the machine changes little."""
    with open(f"/proc/{program.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compare(a, mode, ours, peer):
    """Measures a mode with two programs."""
    known = [program.ask("parameters") for program in (ours, peer)]
    assert known[0]["trained"] == known[1]["trained"], known
    result = {"trained parameters": known[0]["trained"], "parameters": known[0]["parameters"]}
    own_weights = mode != "qlora" or has_bitsandbytes()
    if not own_weights:
        result["note"] = "there is no bitsandbytes: the peer has dequantised weights, and losses are not compared"
    losses = [[program.ask("update")["loss"] for _ in range(a.first)] for program in (ours, peer)]
    difference = max((abs(x / y - 1) for x, y in zip(*losses)), default=0)
    result["losses"] = {"ours": losses[0], "peer": losses[1], "relative difference": difference}
    if own_weights and difference > TOLERANCE[a.precision]:
        sys.exit(f"{mode}: the losses differ: {losses}")
    rows = {ours: [], peer: []}
    before = {program: processor_seconds(program) for program in rows}
    for number in range(a.pairs):
        for program in (ours, peer) if number % 2 == 0 else (peer, ours):
            rows[program].append(program.ask("update")["ms"])
        print(mode, number + 1, *(round(rows[p][-1], 1) for p in (ours, peer)), file=sys.stderr, flush=True)
    result["ours, ms"], result["peer, ms"] = spread(rows[ours]), spread(rows[peer])
    result["times as fast"] = spread([y / x for x, y in zip(rows[ours], rows[peer])])
    taken = [round(1e3 * (processor_seconds(program) - before[program]) / max(a.pairs, 1), 1) for program in rows]
    result["processor time, ms"] = {"ours": taken[0], "peer": taken[1], "ratio": round(taken[1] / max(taken[0], 0.1), 3)}
    peaks = [program.ask("peak") for program in (ours, peer)]
    for key in ("peak_rss_bytes", "peak_device_bytes"):
        one, other = (own[key] / 1e6 for own in peaks)
        if other:
            result[key.replace("bytes", "mb")] = {"ours": round(one), "peer": round(other), "ratio": round(one / other, 3)}
    if a.products:
        found = [program.ask("products") for program in (ours, peer)]
        result["products"] = {"ours": found[0], "peer": found[1]}
    return result


def main(a):
    import peft
    import torch
    import transformers

    device = torch.cuda.get_device_name() if a.device != "cpu" else processor()
    result = {"device": device, "torch": torch.__version__, "transformers": transformers.__version__, "peft": peft.__version__,
              "pairs": a.pairs, "threads": a.threads, "attention": a.attention, "malloc": a.malloc, "precision": a.precision, "load average before": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as temporary:
        folder, adapter = prepare(a, temporary)
        for mode in a.modes.split(","):
            words = ["--device", a.device, "--precision", a.precision, "--optimizer", a.optimizer]
            words += ["--mem-budget", str(a.mem_budget)]
            words += [part for name, _ in SIZES for part in (f"--{name}", str(getattr(a, name)))]
            words += ["--image", "{}x{}".format(*a.image)] if a.image else []
            own = [] if mode == "update" else ["--lora", str(a.rank), "--adapter", f"{adapter}/adapter_model.safetensors"]
            own += ["--storage", "nf4"] if mode == "qlora" else []
            ours = Program([a.ours, folder, *words, *own])
            theirs = ["--attention", a.attention, "--malloc", a.malloc]
            peer = Program([sys.executable, __file__, "--serve", mode, "--folder", folder, "--adapter", adapter, *words, *theirs])
            result[mode] = compare(a, mode, ours, peer)
            for program in (ours, peer):
                program.close()
    result["load average"] = os.getloadavg()[0]
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    arguments = image_prefix.parsed(parser)
    if arguments.serve:
        if arguments.malloc == "tuned" and os.environ.get("GLIBC_TUNABLES") != MALLOC:
            os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": MALLOC})
        served = Peer(arguments)
        for line in sys.stdin:
            print(json.dumps(served.answer(line.strip())), flush=True)
    else:
        main(arguments)
