"""Part `bench`: rows and updates beside PyTorch."""
import dataclasses
import json
import re

from machine import ceilings, has_torch, results, save_results
from rows import opcheck, ratio
from steps import BIN, DEVICE, PACK, PEERS, REHEARSAL, WORK, Result, check, environment, problem, run, say, shown, together
from train import AMP, fresh_data, log_of, milliseconds, train_words

ELEMENTS = ("f32", "tf32", "bf16")
PYTHON = PACK / "python"
LARGE = "--hidden 256 --depth 8 --heads 8 --tokens 128 --dim 128 --batch 64"
SMALL = "--hidden 128 --depth 4 --heads 0 --tokens 32 --dim 8 --batch 16 --horizon 4"


def peer(name, words, limit, stdin=None):
    if not has_torch():
        return Result(name, "skipped")
    return run(name, ["python3", *words, "--device", "cpu" if REHEARSAL else "cuda"], limit, stdin=stdin)


def bench_ops(elements, turn):
    """Rows of ops: ours, PyTorch's own kernels, torch.compile; the fastest of PyTorch counts."""
    table = []
    for element in elements:
        ours = []
        for name in ("linear", "conv") if element == "tf32" else ("",):
            ours += opcheck(element, "--filter", name, limit=160, note={"turn": turn}, modelled=False)[1]
        ours = [row for row in ours if row["name"] in ("linear", "layernorm", "rmsnorm", "cross_entropy", "attention", "conv", "adamw")]
        if REHEARSAL:
            # Rows of the tests do not say which activation or how many heads.
            ours = [row for row in ours if "norm" in row["name"] or row["name"] == "adamw"]
        given = WORK / f"rows-{element}-{turn}.jsonl"
        given.write_text("".join(json.dumps(row) + "\n" for row in ours))
        theirs = peer(f"torch {element} turn {turn}", [PEERS / "gpu.py", "--element", element], 150, given).json
        theirs += peer(f"torch.compile {element} turn {turn}", [PYTHON / "peers.py", "rows", "--element", element], 120, given).json
        results["rows"] += [{"part": "large", "element": element, "turn": turn, **row} for row in theirs]
        for row in ours:
            same = [r for r in theirs if all(r.get(k) == row.get(k) for k in ("name", "inputs", "activation", "heads", "causal", "case"))]
            best = lambda key: min(((r[key], r["peer"].split(", ")[-1]) for r in same if r.get(key)), default=(None, ""))
            table.append((element, row, best("forward_us"), best("both_us")))
    print(f"\n{'dtype':5} {'op':10} {'inputs':30} {'fwd us':>7} {'torch':>7} {'x':>5} {'':8}| {'both us':>7} {'torch':>7} {'x':>5}   (x: torch / ours, above 1 longhaul is faster)")
    for element, row, (f, kind), (b, kind_both) in table:
        extra = (" gelu" if row.get("activation") == "gelu" else "") + (" causal" if row.get("causal") else "")
        print(f"{element:5} {row['name'][:10]:10} {(row['inputs'][:24] + extra)[:30]:30} {shown(row['forward_us'])} {shown(f)} "
              f"{shown(ratio(f, row['forward_us']), 5, 2)} {kind[:8]:8}| {shown(row.get('both_us'))} {shown(b)} {shown(ratio(b, row.get('both_us')), 5, 2)} {kind_both[:8]}")


def ours_in_training(name, folder, task, config, more, updates):
    """Milliseconds of an update of train-stage, with CUDA graphs: what a user gets."""
    run_name = re.sub(r"\W+", "-", name)
    words = train_words(task, config, run_name, "-s", f"training.updates={updates}", "-s", f"training.log_every={max(1, updates // 10)}",
                        "-s", f"training.validate_every={updates}", "-s", f"checkpoint.every={updates}", *more)
    result = check(run(name, words, 100, cwd=folder))
    ms = milliseconds(log_of(folder, run_name), whole=True) if result.ok else None
    memory = [record.get("gpu_memory_bytes") for record in log_of(folder, run_name) if record.get("kind") == "system"]
    return {"median_ms": ms, "gpu_memory_bytes": max((m for m in memory if m), default=None)}


def made(folder, size):
    """Fields, a codec that is hardly trained, and latents with as many tokens and features as PyTorch's operator has."""
    grid = {"large": 16384, "small": 1024}[size] if not REHEARSAL else 1024
    steps = [
        f"ds-prep gen burgers --parameter 0.01 --samples 12 --grid {grid} --frames 21 --end 0.1 --seed 1 -o raw",
        "ds-prep split raw/1D_Burgers_Sols_Nu0.01.hdf5 -o split.json", "ds-prep stats split.json",
        f"train-stage codec -c codec.yaml --run codec --device {DEVICE}",
        f"latent-cache make codec --data split.json -o latents --device {DEVICE}",
    ]
    return all(check(run(f"{size}: {step[:30]}", step.split(), 90, cwd=folder, quiet=True)).ok for step in steps)


def records(folder, small):
    """Random records of 20 and 5 channels on 64 x 64 points."""
    if not check(peer("arrays", [PYTHON / "peers.py", "arrays", "--folder", folder, *small], 60)).ok:
        return False
    steps = ["ds-prep import x.npy --axes nxyc --target y.npy --target-axes nxyc -o pairs", "ds-prep split pairs -o split.json",
             "ds-prep stats split.json"]
    return all(check(run(step[:14], step.split(), 60, cwd=folder, quiet=True)).ok for step in steps)


@dataclasses.dataclass
class Update:
    """An update of a model, and PyTorch's ways to make the same."""
    part: str
    sizes: str
    precision: str
    # Makes the data that the archive lacks; returns whether it could.
    prepare: object
    # Folder, task, configuration, overrides and updates of train-stage.
    run: tuple
    # Words of each way of PyTorch.
    peers: dict
    # Words of an example that launches kernels one by one, if there is one.
    example: list = None


def updates_of(precision, only):
    """Models in training. PyTorch runs them as they are, and compiled into graphs: its fastest way."""
    data, small = WORK / "data" / "bench", ["--small"] if REHEARSAL else []
    amp = AMP.split() if precision == "bf16" else []
    updates, repeats = (4, "2") if REHEARSAL else (200, "30")
    found = []
    for size, sizes in (("large", LARGE.split()), ("small", SMALL.split())):
        if REHEARSAL and size == "large":
            continue
        folder, common = data / size, ["--precision", precision, *sizes]
        script = [PEERS / "operator_update.py", "--local", "--warmup", "1" if REHEARSAL else "10", "--updates", repeats, *common]
        peers = {"eager": [*script, "--no-plain"], "torch.compile, graphs": [*script, "--plain", "--compile", "--compile-mode", "reduce-overhead"]}
        example = [BIN / "operator_update", "--device", DEVICE, "--filter", "7", "--repeats", repeats, *common]
        found.append(Update("operator_update", size, precision, lambda f=folder, s=size: (f / "latents").exists() or made(f, s),
                            (folder, "operator", "operator.yaml", amp, updates), peers, example))

    def model(part, folder, task, config, script, prepare):
        shrink = ["-s", "training.batch_size=2"] if REHEARSAL else []
        words = [PYTHON / "peers.py", script, "--precision", precision, *small]
        peers = {"eager": words, "torch.compile, graphs": [*words, "--compile", "--graphs"]}
        found.append(Update(part, "", precision, prepare, (folder, task, config, [*amp, *shrink], updates // 2), peers))

    model("unet_update", data / "unet", "regression", "unet.yaml", "unet", lambda: (data / "unet/pairs").exists() or records(data / "unet", small))
    if not REHEARSAL:
        model("text_update", data / "bert", "classify", "bert.yaml", "bert", lambda: True)
    return [update for update in found if not only or update.part.split("_")[0] in only]


def bench_updates(precisions, only):
    """Every update twice, beside PyTorch in turns, after what PyTorch compiles has been compiled at the same time."""
    table = []
    every = [update for precision in precisions for update in updates_of(precision, only) if update.prepare()]
    if REHEARSAL:
        for update in every:
            update.peers.pop("torch.compile, graphs")
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(WORK / "inductor"))
    compiled = [(update, kind) for update in every for kind in update.peers if "compile" in kind]
    name = lambda update, kind: f"{kind}, {update.part} {update.sizes} {update.precision}".replace("  ", " ")
    together([lambda u=u, k=k: peer("compiling " + name(u, k), u.peers[k], 180) for u, k in compiled], 8)

    def add(update, turn, kind, found):
        who = {"peer": f"torch, {kind}"} if kind in update.peers else {"ours": kind}
        results["rows"].append({"part": update.part, "sizes": update.sizes, "element": update.precision, "turn": turn, **who, **found})
        save_results()
        if found.get("median_ms"):
            table.append((update, kind, turn, found["median_ms"]))

    def numbers_of(result):
        return result.json[-1] if result.ok and result.json else {"failed": f"{result.status} {problem(result.text)[:120]}"}

    for turn in (1, 2):
        for update in every:
            add(update, turn, "train-stage", ours_in_training(f"{name(update, 'train-stage')} turn {turn}", *update.run))
            if update.example and turn == 1:
                add(update, turn, "launch by launch", numbers_of(check(run(name(update, "example"), update.example, 60))))
            for kind, words in update.peers.items():
                if "compile" in kind or turn == 1:
                    add(update, turn, kind, numbers_of(peer(f"{name(update, kind)} turn {turn}", words, 75)))
    print(f"\n{'update':16} {'size':6} {'dtype':5} {'':24} {'ms':>9} {'again':>9}   (x: times as long as train-stage)")
    for update in every:
        times = {kind: [ms for u, k, _, ms in table if u is update and k == kind] for kind in ("train-stage", "launch by launch", *update.peers)}
        base = min(times["train-stage"], default=None)
        for kind, found in times.items():
            if found:
                print(f"{update.part:16} {update.sizes:6} {update.precision:5} {kind:24} {shown(found[0], 9, 3)} "
                      f"{shown(found[1] if len(found) > 1 else None, 9, 3)}   {shown(ratio(min(found), base), 5, 2)}")


def bench(only):
    """Rows and updates in bf16, or in the dtypes named; PyTorch's updates have no tf32."""
    ceilings()
    if not has_torch():
        say("python3 has no torch with CUDA: nothing is compared with PyTorch")
    fresh_data()
    elements = [word for word in only if word in ELEMENTS] or (["f32"] if REHEARSAL else ["bf16"])
    parts = [word for word in only if word not in ELEMENTS]
    if not parts or "ops" in parts:
        bench_ops(elements, 1)
    if not parts or parts != ["ops"]:
        bench_updates([element for element in elements if element != "tf32"], parts)


