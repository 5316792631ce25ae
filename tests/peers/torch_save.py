#!/usr/bin/env python3
"""The cost of torch.save and an fsync for as many bytes as one of our checkpoints, for comparison with
lib/learn/examples/checkpoint_save.rs. torch.save has no checksums, no second copy and no verification, and training
waits until it is done. Prints one JSON object with medians. Needs torch."""
import argparse
import json
import os
import statistics
import tempfile
import time

import torch

p = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
p.add_argument("--megabytes", type=int, default=256)
p.add_argument("--repeats", type=int, default=5)
p.add_argument("--folder", default=".")
a = p.parse_args()
state = {f"tensor.{i}": torch.randn(1 << 18) for i in range(a.megabytes)}
times = []
with tempfile.TemporaryDirectory(dir=a.folder) as folder:
    for i in range(a.repeats):
        path = os.path.join(folder, f"{i}.pt")
        start = time.perf_counter()
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        times.append(1e3 * (time.perf_counter() - start))
        os.remove(path)
print(json.dumps({"peer": "torch.save " + torch.__version__, "bytes": a.megabytes << 20, "stall_ms": statistics.median(times)}))
