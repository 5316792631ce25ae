"""Steps of a part: processes with a time limit, what failed, and what is left of the time.

Every step is a process of its own, so that neither a kernel that hangs nor an error that stays in a CUDA context affects the
others. A step ends after its limit, or when it has written nothing for a while.
"""
import concurrent.futures
import dataclasses
import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

DEVICE = os.environ.get("DEVICE", "cuda")
# A rehearsal without a GPU: small sizes, and nothing of PyTorch on CUDA.
REHEARSAL = DEVICE != "cuda"
PACK = Path(__file__).resolve().parent.parent
BIN = PACK / "bin"
PEERS = PACK / "peers"
OUT = Path(os.environ["OUT"])
WORK = Path(os.environ["WORK"])
LOGS = OUT / "logs"

start = time.monotonic()
environment = dict(os.environ)
failed = []
_lines = threading.Lock()
_stuck = threading.Event()
_deadline = start


def set_limit(seconds):
    global _deadline
    _deadline = start + seconds


def left():
    """Seconds until the end of the part; 0 if a process cannot be killed."""
    return 0.0 if _stuck.is_set() else max(0.0, _deadline - time.monotonic())


def say(text):
    with _lines:
        print(f"{time.monotonic() - start:6.1f} s  {text}", flush=True)


@dataclasses.dataclass
class Result:
    name: str
    status: str  # ok, FAILED (status), timeout, silent, skipped
    seconds: float = 0.0
    text: str = ""
    json: list = dataclasses.field(default_factory=list)

    @property
    def ok(self):
        return self.status == "ok"

    @property
    def hung(self):
        return self.status.startswith(("timeout", "silent"))


def run(name, words, limit, more=None, cwd=None, quiet=False, stdin=None, silence=None):
    """Runs a command with its output in a log; kills it and its children after `limit` seconds, or after `silence` seconds
    without output."""
    if left() < 3:
        return Result(name, "skipped")
    log = LOGS / (re.sub(r"[^A-Za-z0-9_.-]+", "-", name) + ".log")
    began = time.monotonic()
    with open(log, "w") as file, open(stdin or os.devnull) as given:
        file.write("$ " + " ".join(map(str, words)) + "\n")
        file.flush()
        try:
            process = subprocess.Popen(
                list(map(str, words)), stdin=given, stdout=file, stderr=subprocess.STDOUT, cwd=cwd or WORK,
                env={**environment, **(more or {})}, start_new_session=True)
        except OSError as why:
            return Result(name, "FAILED (not started)", text=f"{words[0]}: {why.strerror}")
        status = _wait(process, log, min(limit, left()), silence)
    text = log.read_text(errors="replace")
    found = Result(name, status, time.monotonic() - began, text, rows_in(text))
    if not quiet or not found.ok:
        say(f"{found.seconds:6.1f} s  {status:<8}  {name}" + ("" if found.ok else "  " + problem(text)[:150]))
    return found


def _wait(process, log, limit, silence):
    """The status of a process at its end; kills it when its time is over."""
    began = heard = time.monotonic()
    size, status = 0, None
    while status is None:
        try:
            code = process.wait(0.2)
            return "ok" if code == 0 else f"FAILED ({code})"
        except subprocess.TimeoutExpired:
            now = time.monotonic()
            if log.stat().st_size != size:
                size, heard = log.stat().st_size, now
            if now - began > limit:
                status = "timeout"
            elif silence and now - heard > silence:
                status = "silent"
    os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        # A process that SIGKILL does not end waits inside the driver.
        _stuck.set()
        status += ", and it cannot be killed: reset or reboot the machine"
    return status


def rows_in(text):
    """The JSON objects among the lines of an output."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def problem(text):
    """What a failed step says: the message of a panic, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for i, line in enumerate(lines):
        if " panicked at " in line:
            return " | ".join(lines[i + 1 : i + 4])
    noise = ("stack backtrace", "note:", "test result", "failures:", "error: test failed", "rows that failed")
    useful = [line for line in lines[1:] if not line.startswith(noise)]
    return useful[-1] if useful else ""


def fail(name, why):
    failed.append((name, why))


def check(result):
    """Records a result that is not ok; a step for which no time was left is no failure."""
    if not result.ok and result.status != "skipped":
        fail(result.name, f"{result.status}  {problem(result.text)}")
    return result


def together(calls, workers):
    """Runs the calls, some at a time, and returns their results in order."""
    with concurrent.futures.ThreadPoolExecutor(max(1, workers)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def output(words, limit=30):
    try:
        found = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=limit)
        return found.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def shown(number, width=7, digits=None):
    if number is None:
        return "-".rjust(width)
    return f"{number:{width}.{digits if digits is not None else 2 if number < 10 else 1 if number < 1000 else 0}f}"
