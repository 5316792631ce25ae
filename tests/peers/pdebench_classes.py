#!/usr/bin/env python3
"""Opens files of ds-prep gen with PDEBench's own data set classes.

pdebench_classes.py UTILS FILE...: UTILS is pdebench/models/fno/utils.py (or unet/utils.py) of a checkout of
https://github.com/pdebench/PDEBench. Prints a line for each class and file: number of samples, shapes of a sample and
of the grid, and whether the values equal those read by h5py. Needs torch and h5py; files of groups need 24
trajectories, because the class for one file reads the coordinates of group 0023.
"""
import importlib.util
import os
import sys

import h5py
import numpy as np


def load(path):
    spec = importlib.util.spec_from_file_location("pdebench_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first(path):
    """The first trajectory as [x.., t, v]."""
    with h5py.File(path) as f:
        if path.endswith(".h5"):
            return np.moveaxis(f["0000/data"][()], 0, -2)
        values = np.moveaxis(f["tensor"][0], 0, -1)
        if "nu" in f:
            values = np.stack([f["nu"][0], values[..., 0]], axis=-1)
        return values[..., None]


def opened(classes, path):
    folder, name = os.path.split(os.path.abspath(path))
    kind = next(c for c in vars(classes) if c.endswith("DatasetSingle"))
    # The U-Net class refuses every .h5 file.
    if not (name.endswith(".h5") and kind.startswith("UNet")):
        yield kind, vars(classes)[kind](name, saved_folder=folder + "/", test_ratio=0)
    if name.endswith(".h5"):
        kind = next(c for c in vars(classes) if c.endswith("DatasetMult"))
        yield kind, vars(classes)[kind](name[: -len(".h5")], saved_folder=folder + "/", test_ratio=0)


classes = load(sys.argv[1])
for path in sys.argv[2:]:
    for kind, data in opened(classes, path):
        values, grid = (np.asarray(data[0][i]) for i in (1, -1))
        if not np.array_equal(values, first(path)):
            sys.exit(f"{path}: {kind} reads other values")
        print(f"{path}: {kind}, {len(data)} samples, {values.shape}, grid {grid.shape}, equal")
