"""Part `train`: whether training follows the CPU, and whether graphs, recomputation and interruptions leave the bits alone."""
import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time

from first import one_test, tests_in
from steps import BIN, DEVICE, LOGS, PACK, REHEARSAL, WORK, check, environment, fail, left, problem, rows_in, run, shown, together

# Folder of the data, task, configuration. Losses of 20 updates on the CPU are packed with the data.
FAMILIES = {
    "codec": ("pde", "codec", "codec.yaml"),
    "operator": ("pde", "operator", "operator.yaml"),
    "unet": ("flow", "regression", "unet.yaml"),
    "classify": ("text", "classify", "classify.yaml"),
    "span": ("posts", "span", "span.yaml"),
}
AMP = "-s training.amp=true"
# Losses are means over the batch. In f32 both devices round each of some hundred steps; twenty updates amplify that. In
# bf16 the emulator differs from the CPU by as much: by 0.04 of the largest loss (codec), and by a quarter of the smallest.
TOLERANCE = {"f32": 1e-3, "bf16": 0.1}


def log_of(folder, run_name):
    path = folder / run_name / "log.jsonl"
    return rows_in(path.read_text()) if path.exists() else []


def losses(records):
    return [record["loss"] for record in records if record.get("kind") == "update"]


def train_words(task, config, run_name, *more):
    return ["train-stage", task, "-c", config, "--run", run_name, "--device", DEVICE, *more]


def families(only):
    def one(name, precision):
        data, task, config = FAMILIES[name]
        folder = WORK / "data" / data
        words = train_words(task, config, f"{name}-{precision}", "-s", "training.updates=20", "-s", "training.log_every=1", "-s", "schedule=[]",
                            *(AMP.split() if precision == "bf16" else []))
        result = check(run(f"{name} {precision}", words, 120, cwd=folder, quiet=True))
        expected = json.loads((folder / f"{name}-cpu.json").read_text())
        found = losses(log_of(folder, f"{name}-{precision}"))
        if result.ok:
            most = max(map(abs, expected))
            unit = {"f32": abs, "bf16": lambda _: most}[precision]
            pairs = zip(found, expected) if len(found) == len(expected) else [(float("nan"), 1.0)]
            distance = max(abs(a - b) / unit(b) for a, b in pairs)
            if not distance < TOLERANCE[precision]:
                fail(f"{name} {precision}", f"losses differ from the CPU's by {distance:.1e}")
            return f"{name} {precision}: {distance:.1e}"
        return f"{name} {precision}: {result.status}"

    picked = [name for name in FAMILIES if not only or name in only]
    found = together([lambda n=n, p=p: one(n, p) for n in picked for p in ("f32", "bf16")], 1 if REHEARSAL else 4)
    print("\nlargest difference of losses from those of the CPU, relative to each loss, in bf16 to the largest: " + "; ".join(found))


def state_of(folder, run_name, updates):
    last = folder / run_name / "ckpt" / f"step-{updates:08}"
    names = ["model", "ema", "optim-0-of-1"]
    return {name: hashlib.sha256((last / f"{name}.safetensors").read_bytes()).hexdigest()[:12]
            for name in names if (last / f"{name}.safetensors").exists()}


def milliseconds(records, whole=False):
    """Milliseconds of an update in the second half of a run: the median of those logged, or of all by the clock."""
    updates = [record for record in records if record.get("kind") == "update"]
    updates = updates[len(updates) // 2 :]
    if len(updates) < 2:
        return None
    if not whole:
        return 1e3 * statistics.median(record["seconds"] for record in updates)
    first, last = (datetime.datetime.fromisoformat(updates[i]["time"].replace("Z", "+00:00")).timestamp() for i in (0, -1))
    return 1e3 * (last - first) / (updates[-1]["update"] - updates[0]["update"])


def stopped_and_resumed(folder, run_name, words, updates):
    """SIGTERM after a third, SIGKILL after two thirds, resumed both times."""
    path = folder / run_name / "log.jsonl"

    def reached(update):
        records = log_of(folder, run_name)
        return max((r["update"] for r in records if r.get("kind") == "update"), default=0) >= update

    for number, (at, kind) in enumerate([(updates // 3, signal.SIGTERM), (2 * updates // 3, signal.SIGKILL)]):
        with open(LOGS / f"{run_name}-{number}.log", "w") as log:
            process = subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
            end = time.monotonic() + min(90, left())
            while process.poll() is None and time.monotonic() < end and not reached(at):
                time.sleep(0.01)
            if process.poll() is not None or time.monotonic() >= end:
                os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None
                return f"ended before update {at}: {problem((LOGS / f'{run_name}-{number}.log').read_text())}"
            process.send_signal(kind)
            try:
                code = process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return "does not stop within 60 s after SIGTERM"
            if kind == signal.SIGTERM and code != 75:
                return f"exit status {code} after SIGTERM, not 75"
    result = run(f"{run_name} resumed", words, 120, cwd=folder, quiet=True)
    attempts = sum(1 for record in rows_in(path.read_text()) if record.get("kind") == "start")
    return None if result.ok and attempts == 3 else f"{result.status}, {attempts} attempts: {problem(result.text)}"


def resumption():
    """Runs that are interrupted, and runs with and without CUDA graphs: the same bits."""
    folder = WORK / "data" / "pde"
    updates = 60 if REHEARSAL else 1500
    base = ["-s", f"training.updates={updates}", "-s", "checkpoint.every=" + str(updates // 15), "-s", "training.log_every=10"]
    ways = {
        "f32": [], "f32, no graphs": ["-s", "training.compile=false"],
        "bf16": AMP.split(), "bf16, no graphs": [*AMP.split(), "-s", "training.compile=false"],
        "bf16, recomputed": [*AMP.split(), "-s", "training.mem_budget=0.3"],
        "bf16, no wgmma": [*AMP.split(), "-s", "training.wgmma=false"],
        "tf32": ["-s", "training.tf32=true"],
        "f16": [*AMP.split(), "-s", "training.precision=f16"],
    }
    if REHEARSAL:
        ways = {name: ways[name] for name in ("f32", "bf16", "bf16, no graphs")}
    states, speed = {}, {}
    for name, more in ways.items():
        run_name = "whole-" + re.sub(r"\W+", "-", name)
        words = train_words("operator", "operator.yaml", run_name, *base, *more)
        if check(run(f"operator, {name}", words, 120, cwd=folder)).ok:
            states[name], speed[name] = state_of(folder, run_name, updates), milliseconds(log_of(folder, run_name))
    print("\nms an update: " + ", ".join(f"{name} {shown(ms, 0, 3)}" for name, ms in speed.items()))
    for name, other in (("f32", "f32, no graphs"), ("bf16", "bf16, no graphs"), ("bf16", "bf16, recomputed")):
        if name in states and other in states:
            same = states[name] == states[other]
            print(f"{other}: {'the same bits' if same else 'OTHER BITS'} as {name}")
            None if same else fail(other, f"other bits than {name}: {states[other]} {states[name]}")
    for name in ("f32", "bf16", "f16"):
        if name in states and left() > 20:
            run_name = "stopped-" + name
            words = [str(word) for word in train_words("operator", "operator.yaml", run_name, *base, *ways[name])]
            wrong = stopped_and_resumed(folder, run_name, words, updates)
            if not wrong and state_of(folder, run_name, updates) != states[name]:
                wrong = "other bits than the uninterrupted run"
            print(f"{name}, SIGTERM and SIGKILL, resumed: {wrong or 'the same bits as uninterrupted'}")
            fail(f"resumed {name}", wrong) if wrong else None
    words = ["train-stage", "operator", "-c", "operator.yaml", "--device", DEVICE, "-s", f"training.updates={updates}", *AMP.split()]
    check(run("three times the same bits", [*words, "--verify-determinism=3"], 100, cwd=folder))
    data = WORK / "data" / "pde"
    summary = {}
    for device in dict.fromkeys([DEVICE, "cpu"]):
        words = ["evaluate", "score", "whole-f32", "--data", "split.json", "--steps", "8", "--stride", "2", "--device", device,
                 "--with", "codec=codec", "-o", f"score-{device}", "--summary", f"score-{device}.json"]
        if check(run(f"evaluate on {device}", words, 100, cwd=data)).ok:
            summary[device] = numbers(json.loads((data / f"score-{device}.json").read_text()))
    if len(summary) == 2:
        pairs = [(summary[DEVICE].get(key), value) for key, value in summary["cpu"].items() if "second" not in key]
        worst = max(abs(a - b) / max(abs(b), 1e-6) for a, b in pairs if a is not None)
        print(f"evaluation: {len(pairs)} numbers, relative difference from the CPU's at most {worst:.1e}")


def numbers(value, path=""):
    """All numbers of a JSON value by their path."""
    if isinstance(value, dict):
        return {k: v for key, each in value.items() for k, v in numbers(each, f"{path}/{key}").items()}
    if isinstance(value, list):
        return {k: v for i, each in enumerate(value) for k, v in numbers(each, f"{path}/{i}").items()}
    return {path: value} if isinstance(value, (int, float)) and not isinstance(value, bool) else {}


def program_tests():
    """tests/device.rs of the project, with the programs beside it."""
    names = [name for name in tests_in("programs") if name.startswith("device::")]
    found = together([lambda n=n: one_test("programs", n, 140) for n in names], 1 if REHEARSAL else 5)
    for result in found:
        check(result)
    print(f"tests/device.rs: {sum(r.ok for r in found)} of {len(found)} passed")


def fresh_data():
    """The data of the archive, in which runs are made."""
    shutil.rmtree(WORK / "data", ignore_errors=True)
    shutil.copytree(PACK / "data", WORK / "data")


def train(only):
    fresh_data()
    families(only)
    if not only:
        resumption()
        if (BIN / "programs").exists():
            program_tests()
