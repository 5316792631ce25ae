"""Makes tests/golden/export: a small run and an evaluation, and their exports, which are stored only if the tools that
they are for read what is in the log. Needs the virtual environment of `make interop`:

    .deps/interop/bin/python tests/golden/export.py target/debug/evaluate
"""

import csv
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "interop"))
import readers

FOLDER = HERE / "export"
WRITTEN = 1_767_225_720  # of the evaluation
LABELS = ["--project", "tests", "--tags", "small,golden", "--notes", "two attempts | and a rewind", "--name", "Small"]


def seal(record):
    """A line of log.jsonl with its checksum."""
    text = json.dumps(record, separators=(",", ":"))[:-1]
    return f'{text},"crc":"{zlib.crc32(text.encode()):08x}"}}\n'


def log():
    """Attempt 1 is killed after update 30; attempt 2 resumes at 20, rewinds from 40 to 30 and finishes."""
    lines, clock = [], iter(range(10**6))

    def add(attempt, kind, update, **fields):
        seconds = next(clock)
        time = f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}.{137 * seconds % 1000:03}Z"
        lines.append(seal({"time": time, "attempt": attempt, "kind": kind, "update": update, **fields}))

    def update(attempt, number, loss, **fields):
        rate = 0.001 / number
        add(attempt, "update", number, samples=4 * number, loss=loss, gradient_norm=None, learning_rate=rate, skipped=0, **fields)

    start = {"task": "codec", "updates": 50, "parameters": 1234, "device": "cpu", "threads": 2, "ranks": 1}
    add(1, "start", 0, **start)
    update(1, 10, 1.5)
    add(1, "system", 10, cpu_percent=150.5, memory_bytes=104857600)
    update(1, 20, 0.75, loss_terms={"mse": 0.5, "reencoding": 0.25})
    add(1, "validation", 20, best=True, seconds=0.25, nrmse=0.9)
    update(1, 30, 9.0)
    add(2, "start", 20, **start)
    update(2, 30, 0.3)
    add(2, "system", 30, cpu_percent=99.5, memory_bytes=209715200)
    update(2, 40, 99.0)
    add(2, "rewind", 30, rewinds=1)
    update(2, 40, 1e-30)
    add(2, "validation", 40, best=True, seconds=0.125, nrmse=0.1)
    add(2, "system", 40, cpu_percent=0.0, memory_bytes=209715200, gpu_memory_bytes=1073741824)
    update(2, 50, None)
    add(2, "stop", 50, state="finished", reason="all updates are done")
    return "".join(lines)


# What readers must find.
CURVE = {
    "train/loss": [(10, 1.5), (20, 0.75), (30, 0.3), (40, 1e-30)],
    "train/loss_terms/mse": [(20, 0.5)],
    "eval/nrmse": [(20, 0.9), (40, 0.1)],
    "system/cpu_percent": [(10, 150.5), (30, 99.5), (40, 0.0)],
}
STEPS = [10, 20, 30, 40, 50]


# The first has a picture.
MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Read it."}]}]
WORST = [
    {"item": 7, "loss": 2.5, "messages": MESSAGES, "text": "| a |\n|---|\n", "picture": "pictures/worst-1.png"},
    {"item": 3, "loss": 1.25, "text": "NaN"},
]


def png(width, height):
    """A white picture."""
    rows = b"".join(b"\0" + b"\xff" * width for _ in range(height))
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def inputs():
    run, scores = FOLDER / "small", FOLDER / "scores"
    for folder in (run, scores / "pictures"):
        folder.mkdir(parents=True)
    (run / "log.jsonl").write_text(log())
    (run / "config.yaml").write_text(
        "seed: 3\ndata: {split: split.json}\ntraining: {updates: 50, ema: 0.9, compile: false}\n"
        "schedule: [{kind: linear, updates: 5}]\nlimit: null\nkey: ${MY_KEY}\n"
    )
    (run / "env.json").write_text(json.dumps([{"attempt": 1, "version": "0.1.0", "commit": "0a1b2c3", "host": "node1", "cpu": "a CPU"}]))
    status = {"task": "codec", "state": "finished", "update": 50, "updates": 50, "best": None, "reason": None}
    (run / "status.json").write_text(json.dumps(status))
    error = {"value": 0.25, "direction": "minimize", "interval": [0.125, 0.5], "by_step": [0.2, 0.3]}
    methods = {"codec": {"nrmse": error}, "mean": {"nrmse": {"value": None, "direction": "minimize"}}}
    subject = {"task": "codec", "metric": "nrmse", "description": "two fields", "protocol": {"data_hash": "0a1b"}, "settings": {}}
    models = {"codec": {"checkpoint": "small/ckpt/step-00000040"}}
    metrics = {"format": "longhaul-evaluation", "version": 2, **subject, "models": models, "samples": 2, "methods": methods}
    (scores / "metrics.json").write_text(json.dumps(metrics))
    table = "group,method,metric,step,value,low,high\n,codec,nrmse,,0.25,0.125,0.5\n,codec,nrmse,0,0.2,,\n"
    (scores / "metrics.csv").write_text(table + '"a, b",mean,nrmse,,NaN,,\n')
    (scores / "pictures/summary.png").write_bytes(png(5, 3))
    (scores / "pictures/worst-1.png").write_bytes(png(4, 7))
    (scores / "worst.jsonl").write_text("".join(json.dumps(item) + "\n" for item in WORST))
    (scores / "worst.html").write_text("<!DOCTYPE html><title>Worst items</title>${MY_KEY}\n")


def export(program, to):
    for form in ("tensorboard", "wandb", "csv"):
        os.utime(FOLDER / "scores/metrics.json", (WRITTEN, WRITTEN))
        command = [program, "export", "--format", form, "-o", to, FOLDER / "small", "--evaluation", FOLDER / "scores", *LABELS]
        subprocess.run([*command, *(["--entity", "team"] if form == "wandb" else [])], check=True, stdout=subprocess.DEVNULL)


def close(found, expected):
    """Scalars of event files are f32."""
    return [s for s, _ in found] == [s for s, _ in expected] and all(
        abs(a - b) <= 1e-7 * abs(b) for (_, a), (_, b) in zip(found, expected)
    )


def finite(points):
    """Without those that are NaN, which Weights & Biases writes as a string."""
    return [(step, value) for step, value in points if not math.isnan(float(value))]


def check_tensorboard(to):
    scalars, texts, images, hparams = readers.events(to / "small")
    for tag, curve in CURVE.items():
        assert close(finite(scalars[tag]), curve), (tag, scalars[tag])
    assert scalars["evaluation/scores/codec/nrmse"] == [(40, 0.25)]
    assert scalars["evaluation/scores/codec/nrmse_low"] == [(40, 0.125)]
    assert [step for step, _ in scalars["train/samples"]] == STEPS and len(scalars["train/loss"]) == len(STEPS)
    assert len(scalars["train/gradient_norm"]) == len(STEPS) and not finite(scalars["train/gradient_norm"])
    assert "| config.training.updates | 50 |" in texts["run"] and "two attempts \\| and a rewind" in texts["run"]
    assert texts["evaluation/scores/table"].count("\n") == 4
    (picture,) = images["evaluation/scores/summary.png"]
    assert (picture.step, picture.width, picture.height) == (40, 5, 3)
    (picture,) = images["evaluation/scores/worst-1.png"]
    assert (picture.step, picture.width, picture.height) == (40, 4, 7)
    header, _, first, second = texts["evaluation/scores/worst"].splitlines()
    assert header == "| item | loss | messages | text | picture |" and "| \\| a \\| " in first and second.startswith("| 3 | 1.25 |")
    start = hparams["_hparams_/session_start_info"].session_start_info
    assert start.hparams["training.ema"].number_value == 0.9 and start.hparams["training.compile"].bool_value is False
    assert start.hparams["key"].string_value == "${MY_KEY}"
    assert hparams["_hparams_/session_end_info"].session_end_info.status == 1


def check_wandb(to):
    file, records = readers.wandb_records(to)
    assert file.parent.name == "offline-run-20260101_000000-small", file
    run = next(record["run"] for record in records if record["type"] == "run")
    assert run["project"] == "tests" and run["entity"] == "team" and run["display_name"] == "Small"
    assert run["tags"] == ["small", "golden"] and run["config"]["update"]["training"]["ema"] == 0.9
    rows = readers.history(records)
    assert [row["_step"] for row in rows] == STEPS
    for tag, curve in CURVE.items():
        if not tag.startswith("system/"):
            assert finite((row["_step"], row[tag]) for row in rows if tag in row) == curve, tag
    usage = [record["stats"]["item"] for record in records if record["type"] == "stats"]
    assert usage[0] == {"cpu": 75.25, "proc.memory.rssMB": 100} and usage[2]["gpu.0.memoryAllocatedBytes"] == 2**30
    for key, width in (("summary", 5), ("worst-1", 4), ("table", None), ("worst", None)):
        media = rows[3][f"evaluation/scores/{key}"]
        assert (file.parent / "files" / media["path"]).stat().st_size == media["size"] and media.get("width") == width
    listed = {own["path"] for record in records if record["type"] == "files" for own in record["files"]["files"]}
    assert listed == {str(path.relative_to(file.parent / "files")) for path in file.parent.glob("files/media/*/*")}, listed
    table = json.loads((file.parent / "files" / media["path"]).read_text())
    assert table["columns"] == ["item", "loss", "messages", "text", "picture"]
    assert [row[0] for row in table["data"]] == [7, 3] and table["data"][0][4] == "worst-1.png" and table["data"][1][3] == "NaN"
    assert records[-1]["type"] == "exit" and records[-1]["exit"].get("exit_code", 0) == 0
    assert "run-small.wandb" in readers.tool("wandb", "sync", "--dry-run", file.parent)


def check_csv(to):
    with open(to / "small/history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["update"]) for row in rows] == STEPS
    for tag, curve in CURVE.items():
        assert finite((int(row["update"]), float(row[tag])) for row in rows if row[tag]) == curve, tag
    with open(to / "small/scores/metrics.csv", newline="") as file:
        assert list(csv.reader(file))[3] == ["a, b", "mean", "nrmse", "", "NaN", "", ""]
    items = [json.loads(line) for line in (to / "small/scores/worst.jsonl").read_text().splitlines()]
    assert items == [WORST[0] | {"picture": "worst-1.png"}, WORST[1]]
    assert (to / "small/scores/worst-1.png").read_bytes() == png(4, 7)
    assert "Worst items" in (to / "small/scores/worst.html").read_text()


if __name__ == "__main__":
    shutil.rmtree(FOLDER, ignore_errors=True)
    inputs()
    with tempfile.TemporaryDirectory() as temporary:
        made = pathlib.Path(temporary)
        export(sys.argv[1], made)
        for check in (check_tensorboard, check_wandb, check_csv):
            check(made)
        shutil.copytree(made, FOLDER / "expected")
