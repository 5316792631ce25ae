"""Part `profile`: Nsight Compute on one launch of every kernel and grid of the large rows; those that waste most time come
first."""
import csv
import re

from rows import BELOW
from steps import BIN, DEVICE, OUT, check, fail, output, run, shown

SECTIONS = ["SpeedOfLight", "Occupancy", "LaunchStats", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "WarpStateStats"]
# Microseconds of a unit of ncu.
UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
# Columns: metrics by the first pattern that matches any.
METRICS = {
    "took": [r"^gpu__time_duration"],
    "dram": [r"dram__throughput\.avg\.pct", r"gpu__dram_throughput\.avg\.pct"],
    "tensor": [r"pipe_tensor.*cycles_active\.avg\.pct", r"inst_executed_pipe_tensor.*\.avg\.pct"],
    "sm": [r"^sm__throughput\.avg\.pct"],
    "issue": [r"issue_active\.avg\.pct", r"inst_issued\.avg\.pct"],
    "warps": [r"^sm__warps_active\.avg\.pct"],
    "regs": [r"^launch__registers_per_thread$"]}


def profile(only):
    if not output(["ncu", "--version"]):
        return fail("ncu", "not found: load the module of Nsight Compute, or put its folder on the PATH")
    element = next((word for word in only if word in BELOW), "bf16")
    names = [word for word in only if word not in BELOW]
    table, seen = [], set()
    for name in names or ["linear", "attention", "norm", "conv", "cross_entropy"]:
        below = BELOW["tf32"] if name == "linear" else 10**12
        words = ["ncu", "--clock-control", "none", "--filter-mode", "per-launch-config", "--launch-count", "1", "--csv",
                 "--page", "raw", *[part for section in SECTIONS for part in ("--section", section)],
                 BIN / "opcheck", "--large", "--json", "--device", DEVICE, "--element", element, "--filter", name,
                 "--below", str(below)]
        result = check(run(f"ncu {element} {name}", words, 100))
        with open(OUT / "profile.csv", "a") as file:
            file.write("".join(line + "\n" for line in result.text.splitlines() if line.startswith('"')))
        for row in csv_rows(result.text):
            key = (row.get("Kernel Name"), row.get("Grid Size"), row.get("Block Size"))
            if key not in seen:
                seen.add(key)
                table.append(row)
    print_profile(table)
    return None


def csv_rows(text):
    rows = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(rows) < 3:
        return []
    # The second row has units.
    units = dict(zip(rows[0], rows[1]))
    return [{**dict(zip(rows[0], row)), "units": units} for row in rows[2:] if len(row) == len(rows[0])]


def number(row, patterns):
    """The largest of the metrics whose names match the first pattern that any matches."""
    for pattern in patterns:
        found = []
        for key, value in row.items():
            if key != "units" and re.search(pattern, key):
                try:
                    found.append(float(value.replace(",", "")))
                except (ValueError, AttributeError):
                    pass
        if found:
            return max(found)
    return None


def stall(row):
    """What warps wait for most."""
    ratios = {}
    for key, value in row.items():
        wanted = key != "units" and "warps_issue_stalled" in key and key.endswith(".ratio")
        if wanted and "not_issued" not in key and "stalled_selected" not in key and re.fullmatch(r"[\d.]+", value or ""):
            ratios[key] = float(value)
    return re.sub(r".*stalled_(\w+?)(_per_warp_active|_per_issue_active)?\..*", r"\1", max(ratios, key=ratios.get, default=""))


def print_profile(table):
    found = []
    for row in table:
        unit = next((row["units"][key] for key in row["units"] if "gpu__time_duration" in key), "us")
        is_ = {name: number(row, patterns) for name, patterns in METRICS.items()}
        is_["took"] = (is_["took"] or 0) * UNITS.get(unit, 1.0)
        busy = max(is_[name] or 0 for name in ("dram", "tensor", "sm"))
        found.append((is_["took"] * (1 - busy / 100), row, is_))
    found.sort(reverse=True, key=lambda each: each[0])
    print(f"\n{len(found)} kernels and grids; sorted by time that no unit was busy; percent of peak")
    print(f"{'kernel':34} {'grid':>16} {'us':>8} {'dram':>5} {'tensor':>6} {'sm':>5} {'issue':>5} {'warps':>5} {'regs':>4}  stall")
    for _, row, is_ in found[:24]:
        grid = re.sub(r"[() ]", "", row.get("Grid Size", "")).replace(",", "x")
        print(f"{row.get('Kernel Name', '?')[:34]:34} {grid:>16} {shown(is_['took'], 8)} {shown(is_['dram'], 5, 0)} "
              f"{shown(is_['tensor'], 6, 0)} {shown(is_['sm'], 5, 0)} {shown(is_['issue'], 5, 0)} "
              f"{shown(is_['warps'], 5, 0)} {shown(is_['regs'], 4, 0)}  {stall(row)}")
