#!/usr/bin/env python3
"""Fine-tunes a decoder of two billion parameters with LoRA on NF4 weights, on the CPU, as far as time and memory tell.

In a folder below TMPDIR, which is removed: random weights in the shape of Qwen3-1.7B with a head of its own
(tests/peers/random_decoder.py, 4.1 GB), synthetic dialogues, `train-stage sft --check`, one update of 1 x 128 tokens, and
`evaluate predict` of 8 new tokens. With --vision: the shape of Qwen3-VL-2B (4.3 GB), and pages of `ds-prep gen headers`, whose
image and text fit into --tokens. Prints the seconds and the peak of resident memory of each program, and fails if one ends with
an error or needs more than --limit. Arguments after -- go to random_decoder.py, for other sizes. Needs numpy.

    tests/large.py [--vision] target/release [-- --layers 2]
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("programs", type=pathlib.Path, help="folder of the programs")
parser.add_argument("--limit", type=float, default=20.0, help="GB of resident memory that a program may need")
parser.add_argument("--tokens", type=int, default=128, help="tokens of the conversation of an update")
parser.add_argument("--vision", action="store_true", help="fine-tune a Qwen3-VL on images")
parser.add_argument("model", nargs="*", help="options of random_decoder.py")

CONFIG = """\
data: {tokens: tokens}
init: {storage: nf4}
model:
  lora: {r: 16, alpha: 32, targets: all-linear}
training: {updates: 1, batch_size: 1, validate_every: 1, validation_samples: 1, log_every: 1}
optimizer: {method: {kind: adamw8bit}, learning_rate: 2.0e-4}
loss: {}
checkpoint: {every: 1}
"""


class Steps:
    """Runs programs in a folder and keeps their times and peaks."""

    def __init__(self, folder, limit):
        self.folder, self.limit, self.failed = folder, limit, False

    def __call__(self, what, *words):
        start = time.monotonic()
        process = subprocess.Popen([str(word) for word in words], cwd=self.folder, stdout=subprocess.PIPE, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds, peak = time.monotonic() - start, usage.ru_maxrss * 1024 / 1e9
        print(f"{what:<12} {seconds:7.1f} s {usage.ru_utime + usage.ru_stime:7.1f} s of processors {peak:7.2f} GB", flush=True)
        if process.returncode:
            sys.exit(f"{what}: ended with {process.returncode}")
        if peak > self.limit:
            self.failed = True
            print(f"{what}: needs more than {self.limit} GB", file=sys.stderr)
        return output


def conversations(folder, tokens):
    """Joins dialogues to conversations that are longer than an update reads."""
    rows = [json.loads(line) for line in open(folder / "asked/dialogues.jsonl", encoding="utf-8")]
    turns = max(tokens // 16, 1)
    with open(folder / "asked/dialogues.jsonl", "w", encoding="utf-8") as file:
        for start in range(0, len(rows) - turns + 1, turns):
            joined = [message for row in rows[start:start + turns] for message in row["messages"]]
            file.write(json.dumps({**rows[start], "messages": joined}) + "\n")


def main(a):
    programs = a.programs.resolve()
    peers = pathlib.Path(__file__).resolve().parent / "peers"
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        step = Steps(folder, a.limit)
        prepare = programs / "ds-prep"
        if a.vision:
            step("gen", prepare, "gen", "headers", "--samples", 40, "--rows", "1..2", "-o", "asked")
            records, of_images = "asked/pages.jsonl", ["--patch-size", 16]
        else:
            step("gen", prepare, "gen", "dialogues", "--samples", 10 * max(a.tokens // 16, 1), "-o", "asked")
            conversations(folder, a.tokens)
            records, of_images = "asked/dialogues.jsonl", []
        step("import", prepare, "import", records, "--columns", "asked/columns.yaml", "-o", "store")
        step("split", prepare, "split", "store", "-o", "split.json")
        step("vocabulary", prepare, "vocabulary", "split.json", "--size", 512, *of_images, "-o", "tokenizer")
        words = ["--tokenizer", "tokenizer", "--max-length", a.tokens, "-o", "tokens"]
        step("tokenize", prepare, "tokenize", "split.json", *words)
        words = ["--tokenizer", "tokenizer", *(["--vision"] if a.vision else []), *a.model]
        print(step("model", sys.executable, peers / "random_decoder.py", "model", *words), end="")
        (folder / "base.yaml").write_text(step("config", programs / "ckpt", "config", "model"))
        (folder / "sft.yaml").write_text(CONFIG)
        train = [programs / "train-stage", "sft", "-c", "sft.yaml", "-c", "base.yaml", "--run", "run", "--device", "cpu"]
        step("check", *train, "--check")
        step("update", *train)
        if a.vision:
            inputs = min((folder / "asked/images").rglob("*.png"))
        else:
            question = {"id": "one", "messages": [{"role": "user", "content": "What is 12 + 30?"}]}
            inputs = "prompts.jsonl"
            (folder / inputs).write_text(json.dumps(question) + "\n")
        words = ["--inputs", inputs, "--max-new-tokens", 8, "--device", "cpu", "-o", "-"]
        print(step("predict", programs / "evaluate", "predict", "run", *words), end="")
    return int(step.failed)


if __name__ == "__main__":
    sys.exit(main(parser.parse_args()))
