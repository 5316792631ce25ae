"""The machine: GPU, driver, NVRTC, the cache of compiled kernels, and the rates of the card."""
import ctypes
import datetime
import functools
import glob
import json
import os
import re
import shutil
import subprocess
import sys

from steps import DEVICE, OUT, PACK, REHEARSAL, WORK, check, environment, output, problem, run, say

# The oldest NVRTC that compiles the kernels.
OLDEST = (12, 4)
# What is written to CARD-DATE.json.
results = {"rows": []}
# Names of GPUs that opcheck has a model of.
MODELS = {"A100": "a100", "H100": "h100", "H200": "h200"}


def machine(part):
    """Prints and records what the checks run on."""
    find_driver()
    fields = "name,driver_version,memory.total,clocks.sm,clocks.mem,temperature.gpu,power.draw,mig.mode.current"
    shown = output(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).splitlines()[:1]
    say(f"GPU: {shown[0] if shown else 'none'}; {os.cpu_count()} processors, {os.confstr('CS_GNU_LIBC_VERSION')}")
    if not shown and not REHEARSAL:
        sys.exit("run.sh: no GPU: nvidia-smi finds none; DEVICE=emu or DEVICE=cpu rehearses a part")
    packed = json.loads((PACK / "about.json").read_text())
    name, driver = shown[0].split(", ")[:2] if shown else (DEVICE, "none")
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    results.update({"part": part, "card": name, "driver": driver, "commit": packed["commit"], "date": now})


def find_driver():
    """Lets programs find the driver where the loader does not look by default."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        for place in ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib64/nvidia", "/usr/local/cuda/compat"):
            if os.path.exists(place + "/libcuda.so.1"):
                environment["LD_LIBRARY_PATH"] = place + ":" + environment.get("LD_LIBRARY_PATH", "")
                say(f"the driver is in {place}")
                return


def model():
    """Options of opcheck for the times that a model of this card computes."""
    name = next((model for word, model in MODELS.items() if word in results["card"]), None)
    return ["--model", name] if name else []


def architecture():
    """What kernels are compiled for here, or None."""
    shown = output(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]).splitlines()[:1]
    number = shown[0].replace(".", "") if shown else ""
    return f"sm_{number}{'a' if number == '90' else ''}" if number.isdigit() else None


def driver_version():
    """The CUDA version of the driver as (major, minor), or None."""
    place = environment.get("LD_LIBRARY_PATH", "").split(":")[0]
    path = place + "/libcuda.so.1"
    try:
        version = ctypes.c_int()
        ctypes.CDLL(path if os.path.exists(path) else "libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        return (version.value // 1000, version.value % 1000 // 10)
    except OSError:
        return None


def nvrtc():
    """The NVRTC of this machine that fits the driver best: its version or the next older one."""
    given = os.environ.get("LONGHAUL_NVRTC")
    if given:
        return given
    places = [place for base in sys.path if base for place in glob.glob(base + "/nvidia/*/lib")]
    places += glob.glob("/usr/local/cuda*/lib64") + glob.glob("/usr/local/cuda*/targets/*/lib")
    places += [place for place in environment.get("LD_LIBRARY_PATH", "").split(":") if place]
    places += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    found = {}
    for place in places:
        for path in glob.glob(place + "/libnvrtc.so.1[23]"):
            try:
                major, minor = ctypes.c_int(), ctypes.c_int()
                ctypes.CDLL(path).nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
                found.setdefault((major.value, minor.value), path)
            except OSError:
                pass
    driver = driver_version()
    said = f"supports CUDA {driver[0]}.{driver[1]}" if driver else "is unknown"
    say(f"NVRTC: {', '.join(f'{a}.{b}' for a, b in sorted(found)) or 'none'}; the driver {said}")
    usable = [version for version in found if version >= OLDEST and (not driver or version <= driver)]
    return found[max(usable)] if usable else None


def kernels():
    """Compiles all kernels for this GPU; without NVRTC, uses those of the archive."""
    if REHEARSAL:
        return
    cache = WORK / "kernels"
    if "LONGHAUL_KERNEL_CACHE" not in os.environ:
        cache.mkdir(mode=0o700, exist_ok=True)
        for path in (PACK / "kernels").iterdir():
            if not (cache / path.name).exists():
                shutil.copy2(path, cache)
        environment["LONGHAUL_KERNEL_CACHE"] = str(cache)
    library, name = nvrtc(), architecture()
    if not library or not name:
        # Whatever version compiled it, what is in the cache is used.
        environment["LONGHAUL_NVRTC"] = "/nonexistent"
        return say("kernels: those of the archive")
    environment["LONGHAUL_NVRTC"] = library
    warm = check(run("kernels", ["train-stage", "--warm-kernels", name, "--json"], 150, quiet=True))
    for line in warm.text.splitlines():
        if "LONGHAUL_KERNEL_SOURCES" in line:
            say(line)
    say(f"kernels for {name}: {warm.json[-1] if warm.json else problem(warm.text)} in {warm.seconds:.1f} s by {library}")


@functools.cache
def has_torch():
    """Whether python3 has PyTorch that runs on this device."""
    test = "import sys, torch; sys.exit(not torch.cuda.is_available())" if not REHEARSAL else "import torch"
    return subprocess.run(["python3", "-c", test], capture_output=True).returncode == 0


def ceilings():
    """Rates of this card through PyTorch, measured once: what the rows of longhaul are compared with."""
    if not has_torch():
        return say("ceilings: not measured: python3 has no torch" + ("" if REHEARSAL else " with CUDA"))
    known = WORK / ("ceilings-" + re.sub(r"\W+", "-", results["card"]) + ".json")
    if not known.exists():
        device = "cpu" if REHEARSAL else "cuda"
        found = run("ceilings", ["python3", PACK / "python/peers.py", "ceilings", "--device", device], 90, quiet=True)
        if not found.json:
            return say("ceilings: not measured: " + problem(found.text)[:150])
        known.write_text(json.dumps(found.json[-1]))
    results["ceilings"] = json.loads(known.read_text())
    return say("ceilings: " + ", ".join(f"{k} {v}" for k, v in results["ceilings"].items()))


@functools.cache
def results_path():
    """CARD-DATE.json in OUT; a second one on the same day is CARD-DATE-2."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", results["card"]).strip("-") + f"-{results['date'][:10]}"
    path, number = OUT / f"{name}.json", 2
    while path.exists():
        path, number = OUT / f"{name}-{number}.json", number + 1
    return path


def save_results():
    """Writes what there is so far."""
    head = {key: value for key, value in results.items() if key != "rows"}
    rows = ",\n".join(json.dumps(row) for row in results["rows"])
    results_path().write_text(json.dumps(head)[:-1] + ', "rows": [\n' + rows + "\n]}\n")
    return results_path()
