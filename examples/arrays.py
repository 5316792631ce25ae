#!/usr/bin/env python3
"""Trains a U-Net on NumPy arrays: pictures of random discs, from noisy ones to clean ones.

    python3 examples/arrays.py [FOLDER OF THE PROGRAMS]

Needs NumPy. Everything is written to arrays-example/: replace x.npy and y.npy with your own arrays, of any number of
channels, and tell ds-prep import what their dimensions are. man longhaul-files, section RECORDS, describes the commands.
"""
import os
import pathlib
import subprocess
import sys

import numpy as np

top = pathlib.Path(__file__).resolve().parent.parent
programs = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else top / "target/release").resolve()
os.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
folder = pathlib.Path("arrays-example")
folder.mkdir()
os.chdir(folder)


def run(command):
    print(f"$ {command}", flush=True)
    subprocess.run(command, shell=True, check=True)


# Your arrays: x [records, rows, columns] and y of the same shape.
random = np.random.default_rng(1)
rows, columns = np.mgrid[0:32, 0:32]


def discs():
    y = np.zeros((32, 32))
    for _ in range(3):
        row, column, radius = random.uniform(0, 32), random.uniform(0, 32), random.uniform(3, 8)
        y += ((rows - row) ** 2 + (columns - column) ** 2 < radius**2) * random.uniform(0.5, 1.5)
    return y


y = np.stack([discs() for _ in range(2200)]).astype(np.float32)
x = (y + random.normal(scale=0.3, size=y.shape)).astype(np.float32)
np.save("x.npy", x[:2100])
np.save("y.npy", y[:2100])

run("ds-prep import x.npy --axes nxy --target y.npy --target-axes nxy -o pairs")
run("ds-prep split pairs --train 1900 --validation 100 --test 100 --seed 1 -o split.json")
run("ds-prep stats split.json")
run("ds-prep check split.json")
run(
    f"train-stage regression -c {top}/configs/unet.yaml -s data.split=split.json -s data.stats=stats.json "
    "-s data.augmentation.flips=true -s data.augmentation.rotations=true "
    "-s data.augmentation.vectors={} -s model.padding_mode=zeros "  # {}: no channel is a component of a vector
    "-s training.updates=300 --run unet"
)
run("evaluate score unet --data split.json -o score")

# Predictions for arrays without targets.
np.save("new.npy", x[2100:])
run("evaluate predict unet --inputs new.npy --axes nxy -o predicted.npy")
p, t = np.load("predicted.npy")[..., 0], y[2100:]
nrmse = lambda p: np.sqrt(np.mean((p - t) ** 2) / np.mean(t**2))
print(f"new pictures: NRMSE {nrmse(p):.3f}, of the noisy pictures {nrmse(x[2100:]):.3f}")
