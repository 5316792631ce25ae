"""The parts of run.sh; README.md says what each is for.

Progress is one line a step; the table at the end is what to read. Logs, rows and results are in $OUT.
"""
import argparse
import os
import shutil
import sys
import tarfile
import time

import bench
import first
import profiles
import sanitize
import steps
import train
from machine import kernels, machine, save_results

# Seconds of each part.
PARTS = {
    "first": (first.first, 480), "train": (train.train, 300), "bench": (bench.bench, 560),
    "sanitize": (sanitize.sanitize, 420), "profile": (profiles.profile, 240)}


def main():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--only", default="", help="ops, tools, dtypes or families, separated by commas")
    parser.add_argument("--seconds", type=float, help="limit of the whole part")
    given = parser.parse_args()
    only = [word for word in given.only.split(",") if word]
    work, seconds = PARTS[given.part]
    steps.set_limit(given.seconds or seconds)
    shutil.rmtree(steps.LOGS, ignore_errors=True)
    steps.LOGS.mkdir(parents=True)
    machine(given.part)
    kernels()
    try:
        work(only)
    finally:
        path = save_results()
        with tarfile.open(steps.OUT / f"{given.part}-logs.tar.gz", "w:gz") as tar:
            tar.add(steps.LOGS, arcname="logs")
            tar.add(path, arcname=path.name)
    print(f"\n{path}: results; {steps.OUT / given.part}-logs.tar.gz: these and the output of every step")
    for name, why in steps.failed[:25]:
        print(f"FAILED  {name}: {why[:300]}")
    if len(steps.failed) > 25:
        print(f"and {len(steps.failed) - 25} more")
    count = len(steps.failed)
    print(f"{given.part}: {'ok' if not count else f'{count} failed'} after {time.monotonic() - steps.start:.0f} s")
    return 1 if count else 0


if __name__ == "__main__":
    os.umask(0o077)
    sys.exit(main())
