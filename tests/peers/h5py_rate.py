#!/usr/bin/env python3
"""Reads samples with h5py as requested by lib/data/examples/loader_rate, for comparison with it.

Each line of stdin is a request: {"file", "frames", "samples": [[trajectory, first frame], ...], "copy"}; the answer
is {"wall", "cpu"} in seconds. Every sample is sliced from the dataset `tensor` of the open file, as in the __getitem__
of a PyTorch Dataset. With "copy" it is read from a copy of the first trajectories: "chunked" has h5py's default
chunks, "gzip" is compressed as well.
"""
import json
import os
import sys
import time

import h5py

# Approximate size of a copy in bytes.
COPIED = 256 << 20
HOW = {"chunked": {"chunks": True}, "gzip": {"compression": "gzip"}}


def copy_of(path, how):
    copy = f"{path}.{how}"
    if not os.path.exists(copy):
        with h5py.File(path) as f, h5py.File(copy + ".new", "w") as g:
            tensor = f["tensor"]
            count = max(1, COPIED // (4 * tensor[0].size))
            g.create_dataset("tensor", data=tensor[:count], **HOW[how])
        os.rename(copy + ".new", copy)
    return copy


def seconds(path, frames, samples):
    with h5py.File(path) as f:
        tensor = f["tensor"]
        samples = [(i % tensor.shape[0], first) for i, first in samples]
        start = [time.perf_counter(), time.process_time()]
        for i, first in samples:
            tensor[i, first:first + frames]
        end = [time.perf_counter(), time.process_time()]
        return {"wall": end[0] - start[0], "cpu": end[1] - start[1]}


for line in sys.stdin:
    ask = json.loads(line)
    path = ask["file"] if ask["copy"] is None else copy_of(ask["file"], ask["copy"])
    print(json.dumps(seconds(path, ask["frames"], ask["samples"])), flush=True)
