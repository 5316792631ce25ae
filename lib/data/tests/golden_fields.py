#!/usr/bin/env python3
"""Makes the small files of tests/golden/ that fields.rs reads, with the storage layouts of other writers.

Needs h5py and numpy. Run in lib/data/tests. With a FILE, prints what h5py reads from it instead, for
a manual comparison with our files.
"""
import sys
import h5py
import numpy as np


def values(n, t, x):
    """Numbers that f32 holds exactly and that tell their place: n.ttxx."""
    i, j, k = np.meshgrid(np.arange(n), np.arange(t), np.arange(x), indexing="ij")
    return i + j / 64 + k / 4096


def make(name, dtype, root, on_tensor, extra_time, **options):
    n, t, x = 3, 5, 16
    with h5py.File(f"golden/{name}.hdf5", "w", libver=("earliest", "v108")) as f:
        tensor = f.create_dataset("tensor", data=values(n, t, x).astype(dtype), **options)
        f["x-coordinate"] = ((np.arange(x) + 0.5) / x).astype("f4")
        f["t-coordinate"] = (np.arange(t + extra_time) * 0.25).astype("f4")
        f.attrs.update(root)
        tensor.attrs.update(on_tensor)


if len(sys.argv) > 1:
    with h5py.File(sys.argv[1]) as f:
        for name, dataset in f.items():
            print(name, dataset.shape, dataset.dtype, dataset.chunks)
        print(dict(f.attrs))
        u = f["tensor"][:]
        print("min", u.min(), "max", u.max(), "finite", np.isfinite(u).all())
else:
    make("contiguous", "<f4", {"Nu": 0.01}, {}, 1)
    make("gzip_f64", "<f8", {}, {"beta": 0.4}, 0, chunks=(1, 5, 8), compression="gzip", shuffle=True)
    make("small_chunks", "<f4", {"nu": 0.5}, {}, 0, chunks=(3, 1, 4), compression="gzip")
    make("big_endian", ">f4", {"nu": 0.5}, {}, 0)
    with h5py.File("golden/grouped.hdf5", "w", libver=("earliest", "v108")) as f:
        f["0000/data"] = np.zeros((2, 8, 1), "f4")
        f["density"] = np.zeros((2, 3, 4), "f4")
    with h5py.File("golden/rank_four.hdf5", "w", libver=("earliest", "v108")) as f:
        f["tensor"] = np.zeros((2, 3, 4, 4), "f4")
