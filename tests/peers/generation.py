#!/usr/bin/env python3
"""Times generation with a Qwen3 in transformers, in alternation with lib/tasks/examples/generation.rs.

The model has random weights, which both programs read from the same folder. They are rounded to bf16 unless --weights says
otherwise, because published checkpoints are in bf16, and both programs compute with these values in f32: longhaul keeps matrices
that are exact in bf16 in 16 bits, which does not change a bit of its results. --dtype bfloat16 makes transformers compute in
bf16, which is another result. Requests are N new tokens for B prompts of equal length,
greedily and with a cache of keys and values: in transformers by model.generate(do_sample=False, use_cache=True) in inference
mode, with eager attention unless --attention says otherwise. Stop tokens are off, so that both programs generate as many
tokens. With --image ROWSxCOLUMNS the model is a small Qwen3-VL, and every prompt begins with an image of so many patches, which
--prompt counts. The ids must be the same, unless two logits are as good as equal; the number of prompts whose ids are the same is
printed.

Both programs stay in memory and answer one request at a time, in turns. Prints a JSON object: for each batch the medians of
both with their ranges over the pairs, how many times as fast longhaul is, and what is left for a token. Run it on an idle
machine. Needs torch and transformers.

    tests/peers/generation.py --pairs 10 --ours target/release/examples/generation
    tests/peers/generation.py --image 6x24 --prompt 56 --new 64
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import image_prefix

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
SIZES = [("hidden", 128), ("depth", 4), ("heads", 4), ("kv-heads", 2), ("head", 32), ("wide", 256), ("vocabulary", 512),
         ("prompt", 16), ("new", 128), ("threads", 2), ("pairs", 10)]
for name, default in SIZES:
    parser.add_argument(f"--{name}", type=int, default=default)
parser.add_argument("--image", type=image_prefix.grid, metavar="ROWSxCOLUMNS", help="patches of an image before each prompt")
parser.add_argument("--batches", default="1,8", help="numbers of prompts, separated by commas")
parser.add_argument("--attention", default="eager", help="attn_implementation of transformers")
parser.add_argument("--weights", choices=["bf16", "f32"], default="bf16", help="precision of the random weights")
parser.add_argument("--dtype", default="float32", help="in which transformers computes")
parser.add_argument("--amp", action="store_true", help="round the operands of our products to bf16")
parser.add_argument("--ours", default="target/release/examples/generation")


def processor():
    with open("/proc/cpuinfo") as lines:
        found = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {key.strip(): value.strip() for key, value in found.items()}
    return f"{fields['model name']}, family {fields['cpu family']}, model {fields['model']}"


def spread(values, digits=3):
    return {"median": round(statistics.median(values), digits), "range": [round(x, digits) for x in (min(values), max(values))]}


class Program:
    """A process that answers requests."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request):
        print(request, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline() or sys.exit(f"{self.process.args[0]} ended at {request}"))


def main(a):
    import torch
    import transformers
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    longest = max(4096, a.prompt + a.new)
    if a.image:
        config = image_prefix.tiny(a, initializer_range=0.2, max_position_embeddings=longest)
        model = image_prefix.model_class(a)._from_config(config, attn_implementation=a.attention).eval()
    else:
        config = Qwen3Config(
            vocab_size=a.vocabulary, hidden_size=a.hidden, intermediate_size=a.wide, num_hidden_layers=a.depth,
            num_attention_heads=a.heads, num_key_value_heads=a.kv_heads, head_dim=a.head, initializer_range=0.2,
            max_position_embeddings=longest, tie_word_embeddings=True, attn_implementation=a.attention)
        model = Qwen3ForCausalLM(config).eval()
    prefix = image_prefix.ImagePrefix(config, a.image)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0

    if a.weights == "bf16":
        for weight in model.parameters():
            weight.data = weight.data.bfloat16().float()

    def peer(batch):
        ids = torch.tensor([[(i * i * 31 + i * 7 + row * 13) % prefix.text for i in range(a.prompt)] for row in range(batch)])
        inputs = prefix.inputs(ids, 0)
        start = time.perf_counter()
        with torch.inference_mode():
            found = model.generate(**inputs, attention_mask=torch.ones_like(ids), do_sample=False, use_cache=True,
                                   max_new_tokens=a.new, min_new_tokens=a.new)
        return {"ms": 1e3 * (time.perf_counter() - start), "ids": found[:, a.prompt :].tolist()}

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        model = model.to(getattr(torch, a.dtype))
        image = ["--image", "{}x{}".format(*a.image)] if a.image else []
        ours = Program([a.ours, "--model", folder, "--threads", str(a.threads), *image, *["--amp"] * a.amp])
        result = {"processor": processor(), "torch": torch.__version__, "transformers": transformers.__version__,
                  "attention": a.attention, "weights": a.weights, "dtype": a.dtype, "amp": a.amp, "pairs": a.pairs, "prompt": a.prompt,
                  "new": a.new, **ours.ask("parameters")}
        for batch in map(int, a.batches.split(",")):
            request = f"generate {batch} {a.prompt} {a.new}"
            rows = {"ours": [], "peer": []}
            for number in range(a.pairs + 1):
                ask = {"ours": lambda: ours.ask(request), "peer": lambda: peer(batch)}
                order = ("ours", "peer") if number % 2 == 0 else ("peer", "ours")
                found = {which: ask[which]() for which in order}
                if number > 0:  # the first pair is not measured
                    for which in order:
                        rows[which].append(found[which]["ms"])
            products = ours.ask(request.replace("generate", "products"))
            same = sum(x == y for x, y in zip(found["ours"]["ids"], found["peer"]["ids"]))
            ratios = [y / x for x, y in zip(rows["ours"], rows["peer"])]
            result[f"batch {batch}"] = {
                "ours_ms": spread(rows["ours"]), "peer_ms": spread(rows["peer"]), "times as fast": spread(ratios),
                "ours_us_per_step": round(1e3 * statistics.median(rows["ours"]) / a.new, 1),
                "of it products": round(1e3 * products["products_ms"] / a.new, 1),
                "peer_us_per_step": round(1e3 * statistics.median(rows["peer"]) / a.new, 1),
                "same ids": f"{same} of {batch}"}
        result["load average"] = os.getloadavg()[0]
        ours.process.stdin.close()
        ours.process.wait()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main(image_prefix.parsed(parser))
