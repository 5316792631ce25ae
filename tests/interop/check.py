"""Exports a real run in every format and opens the results with TensorBoard, W&B and an MLflow server (`make interop`).

The run is killed and resumed six times and exported after every kill, so that points which the next attempt supersedes
are in the exports before they are replaced. At the end every format must have one point per update.

    .deps/interop/bin/python tests/interop/check.py target/release
"""

import contextlib
import csv
import json
import math
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

import readers

BIN = pathlib.Path(sys.argv[1]).resolve()
UPDATES = 800
CONFIG = f"""seed: 3
data: {{split: split.json, stats: stats.json, random_shift: true}}
model: {{patch: 8, latent: 2, hidden: 8, encoder_depth: 1, decoder_depth: 1}}
loss: {{}}
training: {{updates: {UPDATES}, batch_size: 8, log_every: 1, validate_every: 11, validation_samples: 8,
  attempts_without_progress: 100}}
optimizer: {{method: {{kind: adamw}}, learning_rate: 1e-3}}
checkpoint: {{every: 50}}
"""
TRAIN = ["train-stage", "codec", "-c", "codec.yaml", "--run", "runs/killed"]
LABELS = ["--tags", "a,b", "--notes", "killed six times"]
SCORES = ["--evaluation", "scores", *LABELS]


def run(*words):
    done = subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def log_records():
    with contextlib.suppress(FileNotFoundError), open("runs/killed/log.jsonl") as file:
        return [json.loads(line) for line in file if line.endswith("}\n")]
    return []


def newest_update():
    """That of the last whole line of the log which has one."""
    with contextlib.suppress(FileNotFoundError), open("runs/killed/log.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
        lines = [line for line in file.read().split(b"\n")[1:-1] if b'"update"' in line]
        return json.loads(lines[-1])["update"] if lines else 0
    return 0


def export(form, *more, follow=False):
    to = ["--url", URL] if form == "mlflow" else ["-o", form]
    words = ["evaluate", "export", "--format", form, *to, "runs/killed", "--project", "interop", *more]
    if follow:
        return subprocess.Popen([str(BIN / words[0]), *words[1:], "--follow"])
    return run(*words)


def kill_six_times():
    """Kills the run at six updates that are not checkpoints; returns how many points were superseded."""
    for number in range(1, 7):
        with open("train.log", "w") as messages:
            child = subprocess.Popen([str(BIN / TRAIN[0]), *TRAIN[1:]], stderr=messages)
        while newest_update() < 120 * number - 15 and child.poll() is None:
            time.sleep(0.001)
        assert child.poll() is None, f"attempt {number} ended: {pathlib.Path('train.log').read_text()}"
        child.send_signal(signal.SIGKILL)
        child.wait()
        for form in ("tensorboard", "wandb", "csv", "mlflow"):
            export(form)
    return sum(record["kind"] == "update" for record in log_records())


def certificate():
    """A certificate for this machine, which MLflow's clients and ours trust through the same variable."""
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run([*new, *names], check=True, stderr=subprocess.DEVNULL)
    os.environ["MLFLOW_TRACKING_SERVER_CERT_PATH"] = str(pathlib.Path("cert.pem").resolve())
    return ["--uvicorn-opts", "--ssl-keyfile key.pem --ssl-certfile cert.pem"]


@contextlib.contextmanager
def server(ready, *words, scheme="http"):
    """A server on a free port of this machine, stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [str(readers.TOOLS / words[0]), *words[1:], "--host", "127.0.0.1", "--port", port]
    with open(f"{words[0]}.log", "w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    url = f"{scheme}://127.0.0.1:{port}"
    trusted = ssl.create_default_context(cafile="cert.pem")
    try:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(url + ready, timeout=1, context=trusted if scheme == "https" else None).status == 200:
                    break
            assert child.poll() is None, pathlib.Path(f"{words[0]}.log").read_text()
            time.sleep(0.2)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()


def expect_curve(what, found, curve, digits=1e-12):
    """The points of a metric must be those of the log, in order, each once."""
    assert [step for step, _ in found] == [step for step, _ in curve], f"{what}: {found}"
    wrong = [(a, b) for (_, a), (_, b) in zip(found, curve) if not math.isclose(a, b, rel_tol=digits)]
    assert not wrong, f"{what}: {wrong}"
    print(f"{what}: {len(found)} points, steps {found[0][0]} to {found[-1][0]}, none twice")


def expected():
    """Curves by the log itself: of every update, the last record."""
    loss, nrmse, resumed = {}, {}, 0
    for record in log_records():
        if record["kind"] == "start":
            loss = {update: value for update, value in loss.items() if update <= record["update"]}
            nrmse = {update: value for update, value in nrmse.items() if update <= record["update"]}
            resumed += 1
        if record["kind"] == "update":
            loss[record["update"]] = record["loss"]
        if record["kind"] == "validation":
            nrmse[record["update"]] = record["nrmse"]
    assert resumed == 7 and list(loss) == list(range(1, UPDATES + 1))
    return list(loss.items()), list(nrmse.items())


def check_tensorboard(loss, nrmse):
    scalars, texts, images, hparams = readers.events("tensorboard/killed")
    expect_curve("tensorboard train/loss", scalars["train/loss"], loss, 1e-6)
    expect_curve("tensorboard eval/nrmse", scalars["eval/nrmse"], nrmse, 1e-6)
    assert scalars["system/memory_bytes"] and {"evaluation/scores/table", "evaluation/scores/worst"} <= set(texts)
    assert {"evaluation/scores/summary.png", "evaluation/scores/worst-1.png"} <= set(images)
    assert "training.updates" in hparams["_hparams_/session_start_info"].session_start_info.hparams
    # What the browser gets.
    with server("/data/runs", "tensorboard", "--logdir", "tensorboard", "--load_fast", os.environ.get("LOAD_FAST", "auto")) as url:
        for _ in range(100):
            query = urllib.parse.urlencode({"run": "killed", "tag": "train/loss"})
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"{url}/data/plugin/scalars/scalars?{query}") as answer:
                    points = [(step, value) for _, step, value in json.load(answer)]
                if points:
                    break
            time.sleep(0.2)
        steps = [step for step, _ in points]
        # The server draws a sample of long curves.
        assert steps == sorted(set(steps)) and steps[-1] == UPDATES, steps
        body = {"experimentName": "", "allowedStatuses": ["STATUS_SUCCESS"], "sliceSize": 10, "startIndex": 0, "colParams": []}
        request = urllib.request.Request(
            f"{url}/data/plugin/hparams/session_groups", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            groups = json.load(answer)["sessionGroups"]
        assert groups[0]["hparams"]["training.updates"] == UPDATES, groups
    print(f"tensorboard server: {len(steps)} points of the loss, 1 session of the hparams plugin")


def check_wandb(loss, nrmse):
    file, records = readers.wandb_records("wandb")
    rows = readers.history(records)
    expect_curve("wandb train/loss", [(row["_step"], row["train/loss"]) for row in rows], loss)
    expect_curve("wandb eval/nrmse", [(row["_step"], row["eval/nrmse"]) for row in rows if "eval/nrmse" in row], nrmse)
    assert any(record["type"] == "stats" for record in records)
    (worst,) = (row["evaluation/scores/worst"] for row in rows if "evaluation/scores/worst" in row)
    table = json.loads((file.parent / "files" / worst["path"]).read_text())
    assert len(table["data"]) == worst["nrows"] and table["data"][0][table["columns"].index("picture")] == "worst-1.png"
    (picture,) = (row["evaluation/scores/worst-1"] for row in rows if "evaluation/scores/worst-1" in row)
    assert (file.parent / "files" / picture["path"]).stat().st_size == picture["size"]
    print(readers.tool("wandb", "sync", "--dry-run", file.parent), end="")
    print("\n".join(readers.tool("wandb", "leet", "inspect", "--summary", file).splitlines()[:6]))


def check_csv(loss, nrmse):
    with open("csv/killed/history.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    expect_curve("csv train/loss", [(int(row["update"]), float(row["train/loss"])) for row in rows], loss)
    found = [(int(row["update"]), float(row["eval/nrmse"])) for row in rows if row["eval/nrmse"]]
    expect_curve("csv eval/nrmse", found, nrmse)


def check_mlflow(loss, nrmse):
    import mlflow

    client = mlflow.MlflowClient(URL)
    experiment = client.get_experiment_by_name("interop")
    (found,) = client.search_runs([experiment.experiment_id])
    for name, curve in (("train/loss", loss), ("eval/nrmse", nrmse)):
        points = client.get_metric_history(found.info.run_id, name)
        expect_curve(f"mlflow {name}", [(point.step, point.value) for point in points], curve)
    assert found.info.status == "FINISHED" and found.data.params["training.updates"] == str(UPDATES)
    assert found.data.tags["a"] == "true" and found.data.tags["mlflow.note.content"] == "killed six times"
    assert "system/memory_bytes" in found.data.metrics
    stored = [file.path for file in client.list_artifacts(found.info.run_id, "evaluations/scores")]
    names = ("metrics.csv", "worst.html", "worst.jsonl", "summary.png", "worst-1.png")
    assert {f"evaluations/scores/{name}" for name in names} <= set(stored), stored
    local = pathlib.Path(client.download_artifacts(found.info.run_id, "evaluations/scores"))
    first = json.loads((local / "worst.jsonl").read_text().splitlines()[0])
    assert (local / first["picture"]).read_bytes().startswith(b"\x89PNG")
    print(f"mlflow run {found.info.run_name}: {len(found.data.metrics)} metrics, {len(found.data.params)} parameters")


def interop():
    global URL
    pathlib.Path("codec.yaml").write_text(CONFIG)
    run("ds-prep", "gen", "burgers", "--parameter", "0.01", "--samples", "10", "--grid", "64", "--frames", "11", "-o", "data")
    run("ds-prep", "split", *map(str, pathlib.Path("data").glob("*.hdf5")), "-o", "split.json")
    run("ds-prep", "stats", "split.json", "-o", "stats.json")
    store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "artifacts", "--workers", "1"]
    with server("/health", "mlflow", "server", *store, *certificate(), scheme="https") as URL:
        written = kill_six_times()
        # The last attempt is followed while it runs.
        followers = {form: export(form, *LABELS, follow=True) for form in ("tensorboard", "wandb", "csv", "mlflow")}
        run(*TRAIN)
        run("evaluate", "score", "runs/killed", "--data", "split.json", "--steps", "2", "--starts", "2", "-o", "scores")
        for form, follower in followers.items():
            assert follower.wait(timeout=120) == 0, form
            export(form, *SCORES)
            again = json.loads(export(form, *SCORES, "--json"))
            assert again["points"] == UPDATES and again.get("sent", 0) == 0, again
        loss, nrmse = expected()
        print(f"killed six times, {written} records of updates until then, {UPDATES} updates")
        check_mlflow(loss, nrmse)
    check_tensorboard(loss, nrmse)
    check_wandb(loss, nrmse)
    check_csv(loss, nrmse)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # Neither program may send anything elsewhere.
        os.environ.update(WANDB_MODE="offline", MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="1", NO_PROXY="127.0.0.1")
        interop()
        os.chdir("/")
