#!/usr/bin/env python3
"""Describes files of fields as read by h5py and NumPy with the keys that PDEBench documents.

read_back.py FILE...: prints a line of JSON per file: layout, sizes, channels, first and last coordinates, numeric
attributes, CRC-32 of all values as f32 [n, t, x.., c], and statistics of each frame of the last trajectory.
tests/ds_prep/read_back.rs compares these with ds-prep's description of the same files. Needs numpy, and h5py for
HDF5; safetensors files are parsed without a library.
"""
import json
import os
import sys
import zlib

import numpy as np

VARIABLES = ["density", "pressure", "Vx", "Vy", "Vz"]
SAFETENSORS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def as_f32(raw, kind):
    """Numbers of a safetensors file; BF16 is the upper half of f32."""
    if kind == "BF16":
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    return np.frombuffer(raw, SAFETENSORS[kind])


def safetensors(path):
    """Arrays by name, and attributes."""
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        header = json.loads(f.read(length))
        data = f.read()
    attributes = header.pop("__metadata__", {})
    arrays = {}
    for name, told in header.items():
        first, end = told["data_offsets"]
        arrays[name] = as_f32(data[first:end], told["dtype"]).reshape(told["shape"])
    return arrays, attributes


def hdf5(path):
    """Arrays by their whole names, and attributes of the root and of the first group."""
    import h5py

    arrays = {}
    with h5py.File(path) as f:
        f.visititems(lambda name, item: arrays.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        attributes = dict(f.attrs)
        for item in f.values():
            if isinstance(item, h5py.Group):
                attributes.update(item.attrs)
                break
    return arrays, attributes


def field(arrays):
    """Layout, values [n, t, x.., c], the names of channels that the file tells, and coordinates by letter."""
    coordinates = {letter: arrays.get(f"{letter}-coordinate") for letter in "xyzt"}
    if "tensor" in arrays and np.ndim(arrays.get("nu")) > 1:
        # [n, x, y] and [n, 1, x, y]
        values = np.stack([arrays["nu"][:, None], arrays["tensor"]], axis=-1)
        return "steady", values, ["nu", "u"], coordinates
    if "tensor" in arrays:
        space = sum(coordinates[letter] is not None for letter in "xyz")
        tensor = arrays["tensor"]
        values = tensor if np.ndim(tensor) == space + 3 else tensor[..., None]
        return "tensor", values, None, coordinates
    if "velocity" in arrays:
        parts = [arrays["velocity"]]
        names = [f"velocity{i}" for i in range(parts[0].shape[-1])]
        if "force" in arrays:
            # The same at all times.
            force = np.repeat(arrays["force"][:, None], parts[0].shape[1], axis=1)
            parts.insert(0, force)
            names = [f"force{i}" for i in range(force.shape[-1])] + names
        if "particles" in arrays:
            parts.append(arrays["particles"])
            names.append("particles")
        t = arrays["t"][0] if "t" in arrays else arrays["t-coordinate"]
        return "incompressible", np.concatenate(parts, axis=-1), names, {"t": t}
    variables = [name for name in VARIABLES if name in arrays]
    if variables:
        return "variables", np.stack([arrays[name] for name in variables], axis=-1), variables, coordinates
    groups = sorted(name.split("/")[0] for name in arrays if name.endswith("/data"))
    values = np.stack([arrays[f"{group}/data"] for group in groups])
    return "groups", values, None, {letter: arrays.get(f"{groups[0]}/grid/{letter}") for letter in "xyzt"}


def statistics(frame):
    frame = frame.astype("f8")
    return {"min": frame.min(), "max": frame.max(), "mean": frame.mean(), "rms": np.sqrt((frame**2).mean())}


def describe(path):
    arrays, attributes = safetensors(path) if path.endswith(".safetensors") else hdf5(path)
    layout, values, channels, coordinates = field(arrays)
    values = np.ascontiguousarray(values, "<f4")
    frames = values.shape[1]
    if channels is None:
        usual = ["u"] if values.shape[-1] == 1 else [f"u{i}" for i in range(values.shape[-1])]
        channels = attributes["channels"].split(",") if "channels" in attributes else usual
    numbers = {}
    for name, value in attributes.items():
        try:
            numbers[name.lower()] = float(value)
        except (TypeError, ValueError):
            continue
    ends = {letter: [float(at[0]), float(at[frames - 1 if letter == "t" else -1])]
            for letter, at in coordinates.items() if at is not None}
    return {"file": os.path.basename(path), "layout": layout, "trajectories": values.shape[0], "frames": frames,
            "grid": "x".join(str(n) for n in values.shape[2:-1]), "channels": ",".join(channels),
            "ends": ends, "numbers": numbers, "crc32": zlib.crc32(values.tobytes()),
            "last": [{name: float(value) for name, value in statistics(frame).items()} for frame in values[-1]]}


for path in sys.argv[1:]:
    print(json.dumps(describe(path)))
