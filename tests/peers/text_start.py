#!/usr/bin/env python3
"""Times the way from a safetensors file of bert-base to the first update, in train-stage and in transformers.

transformers writes a folder with random weights (440 MB). Then both programs are started N times in alternation: train-stage
with the configuration that `ckpt config` prints for the folder, until the record of the first update (`first_update`) is in
log.jsonl; and a script that loads the folder with from_pretrained and makes an update, until it says so. Both updates are of 4
texts padded to 32 tokens, with AdamW and clipping. The weights are in the page cache, and train-stage has read its texts
before. The time includes starting the programs, and the imports of the script.

    tests/peers/text_start.py target/release --pairs 20

Prints a JSON object: when the first update begins and ends, medians and ranges in seconds, and the ratio of the pairs. Needs
torch and transformers.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, TOKENS = 4, 32
PREPARE = f"""
ds-prep gen criteria -o data --samples 300 --seed 1
ds-prep import data/annotations.csv --columns data/columns.yaml -o store
ds-prep split store --seed 1 -o split.json
ds-prep vocabulary split.json -o tokenizer
ds-prep tokenize split.json --tokenizer tokenizer --max-length {TOKENS} -o tokens
train-stage classify --example > classify.yaml
ckpt config hf > encoder.yaml
"""
OURS = ["train-stage", "classify", "-c", "classify.yaml", "-c", "encoder.yaml", "-s", "schedule=[]", "-s", "training.updates=1",
        "-s", "training.log_every=1", "-s", f"training.batch_size={BATCH}", "-s", "training.validation_samples=1",
        "-s", "checkpoint.every=1000"]

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("programs", nargs="?", default="target/release", help="folder of train-stage, ds-prep and ckpt")
parser.add_argument("--pairs", type=int, default=20)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--update", metavar="FOLDER", help="load it with transformers, make an update and say so")


def update(arguments):
    import torch
    from transformers import BertForSequenceClassification

    torch.set_num_threads(arguments.threads)
    model = BertForSequenceClassification.from_pretrained(arguments.update, num_labels=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    model.train()
    ids, labels = torch.randint(5, 1000, (BATCH, TOKENS)), torch.arange(BATCH) % 2
    print("starts", flush=True)
    model(input_ids=ids, labels=labels).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("updated", flush=True)


def ours(folder, arguments):
    """Seconds until the first update of train-stage begins and ends."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    log = folder / "run" / "log.jsonl"
    words = [*OURS, "-s", f"training.threads={arguments.threads}", "--run", "run"]
    start = time.perf_counter()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not log.exists() or '"first_update"' not in log.read_text():
        if process.poll() is not None and not log.exists():
            sys.exit(process.stderr.read())
        time.sleep(0.002)
    took = time.perf_counter() - start
    process.kill()
    process.wait()
    records = [json.loads(line) for line in log.read_text().splitlines() if '"first_update"' in line]
    return took - records[0]["step"], took


def peer(folder, arguments):
    words = [sys.executable, __file__, "--update", str(folder / "hf"), "--threads", str(arguments.threads)]
    start = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = [(line.strip(), time.perf_counter() - start) for line in process.stdout]
    process.wait()
    times = dict(found)
    return (times["starts"], times["updated"]) if len(times) == 2 else sys.exit("the update in transformers failed")


def spread(values):
    return {"median": round(statistics.median(values), 3), "range": [round(min(values), 3), round(max(values), 3)]}


def compare(arguments):
    import torch
    import transformers

    os.environ["PATH"] = f"{pathlib.Path(arguments.programs).resolve()}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        config = transformers.BertConfig(num_labels=2)
        transformers.BertForSequenceClassification(config).save_pretrained(folder / "hf")
        bytes_of = (folder / "hf" / "model.safetensors").stat().st_size
        subprocess.run(["sh", "-e", "-c", PREPARE], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        ours(folder, arguments), peer(folder, arguments)
        rows = []
        for number in range(arguments.pairs):
            pair = ours(folder, arguments), peer(folder, arguments)
            rows.append(pair)
            print("pair", number + 1, *(round(seconds, 2) for both in pair for seconds in both), file=sys.stderr, flush=True)
        result = {"pairs": arguments.pairs, "threads": arguments.threads, "bytes": bytes_of, "torch": torch.__version__,
                  "transformers": transformers.__version__}
        for at, event in enumerate(["begins", "ends"]):
            ours_s, peer_s = [one[at] for one, _ in rows], [other[at] for _, other in rows]
            ratios = spread([one / other for one, other in zip(ours_s, peer_s)])
            result[event] = {"ours_s": spread(ours_s), "transformers_s": spread(peer_s), "ours / transformers": ratios}
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    arguments = parser.parse_args()
    update(arguments) if arguments.update else compare(arguments)
