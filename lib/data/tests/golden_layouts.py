#!/usr/bin/env python3
"""Makes tests/golden/layouts/: a small file of each of PDEBench's layouts, as written by its generators.

Needs h5py and numpy. Run in lib/data/tests. All sizes are different, so that no axis can be mistaken for
another; every value encodes its index (see values).
"""
import shutil

import h5py
import numpy as np

N, T, GRID = 3, 5, (7, 6, 4)
FOLDER = "golden/layouts"
LETTERS = "xyz"


def values(axes, c=1, first_channel=0, grid=GRID):
    """c*32 + n + t/16 + x/256 + y/4096 + z/65536, which f32 holds exactly, for axes like `ntxyc`."""
    sizes = {"n": N, "t": T, "c": c, **dict(zip(LETTERS, grid))}
    scale = {"n": 1, "t": 2**-4, "x": 2**-8, "y": 2**-12, "z": 2**-16, "c": 32}
    out = np.full([1] * len(axes), 32.0 * first_channel)
    for place, axis in enumerate(axes):
        shape = [1] * len(axes)
        shape[place] = sizes[axis]
        out = out + (scale[axis] * np.arange(sizes[axis])).reshape(shape)
    return out.astype("f4")


def create(name):
    return h5py.File(f"{FOLDER}/{name}", "w", libver=("earliest", "v108"))


def coordinates(f, space, extra_time=1, name="{}-coordinate", t=T):
    for letter, size in list(zip(LETTERS, GRID))[:space]:
        f[name.format(letter)] = ((np.arange(size) + 0.5) / size).astype("f4")
    f[name.format("t")] = (np.arange(t + extra_time) * 0.25).astype("f4")


def groups(name, space, channels, config, **options):
    """Diffusion-reaction, shallow water, diffusion-sorption; `{n}` in the configuration is the group's number."""
    axes = "nt" + LETTERS[:space] + "c"
    with create(name) as f:
        for n, data in enumerate(values(axes, channels)):
            group = f.create_group(f"{n:04}")
            group.create_dataset("data", data=data, **options)
            coordinates(group, space, 0, "grid/{}")
            group.attrs["config"] = config.replace("{n}", str(n))


# 1-D reaction-diffusion, two parameters; 2-D without and with a channel axis.
with create("ReacDiff_Nu0.5_Rho1.0.hdf5") as f:
    f["tensor"] = values("ntx")
    coordinates(f, 1, 0)
with create("tensor2d.hdf5") as f:
    f["tensor"] = values("ntxy")
    coordinates(f, 2)
    f.attrs["nu"] = 0.01
with create("tensor2d_channels.hdf5") as f:
    f["tensor"] = values("ntxyc", 2)
    coordinates(f, 2)
    f.attrs["nu"] = 0.01
# The same with another order of the axes, which the coordinates reveal.
with create("transposed.hdf5") as f:
    f["tensor"] = values("nctyx", 2)
    coordinates(f, 2)
    f.attrs["nu"] = 0.01
with create("1D_transposed_Nu0.1.hdf5") as f:
    f["tensor"] = values("nxt")
    coordinates(f, 1)
groups("2D_diff-react_NA_NA.h5", 2, 2, "name: diff-react\nsim:\n  Du: 1E-3\n  Dv: 5E-3\n  k: 5E-3\n", compression="lzf")
groups("2D_rdb_NA_NA.h5", 2, 1, "sim:\n  T_end: 1.0\n  dam_radius: 0.5\n", chunks=(2, 7, 6, 1), compression="gzip")
# Different parameters per trajectory: the first and the last group have the same, or a list beside the field.
groups("2D_diff-react_differing.h5", 2, 2, "sim:\n  seed: {n}\n  Du: 1E-3\n  Dv: 5E-3\n  k: 5E-3\n")
with h5py.File(f"{FOLDER}/2D_diff-react_differing.h5", "a") as f:
    f["0001"].attrs["config"] = "sim:\n  seed: 1\n  Du: 2E-3\n  Dv: 5E-3\n  k: 5E-3\n"
with create("listed.hdf5") as f:
    f["tensor"] = values("ntx")
    f["Nu"] = np.array([0.1, 0.2, 0.1])
    coordinates(f, 1)
    f.attrs["rho"] = 2.0
groups("1D_diff-sorp_NA_NA.h5", 1, 1, "sim:\n  D: 5E-4\n  por: 0.29\n")
for space, name in [(1, "1D_CFD_Rand_Eta0.1_Zeta0.1_periodic_Train.hdf5"),
                    (2, "2D_CFD_Rand_M0.1_Eta0.01_Zeta0.01_periodic_128_Train.hdf5"),
                    (3, "3D_CFD_Rand_M1.0_Eta1e-08_Zeta1e-08_periodic_Train.hdf5")]:
    with create(name) as f:
        for i, variable in enumerate(["density", "pressure", "Vx", "Vy", "Vz"][:2 + space]):
            f[variable] = values("nt" + LETTERS[:space], first_channel=i)
        coordinates(f, space)
# With the parameters as attributes, as written by PDEBench's merge script.
with create("merged.hdf5") as f:
    for i, variable in enumerate(["density", "pressure", "Vx", "Vy"]):
        f[variable] = values("ntxy", first_channel=i)
    coordinates(f, 2)
    f.attrs.update({"eta": 0.01, "zeta": 0.02, "M": 0.1})
with create("2D_DarcyFlow_beta10.0_Train.hdf5") as f:
    f["nu"] = values("nxy")
    f["tensor"] = (values("nxy", first_channel=1))[:, None]
    coordinates(f, 2, 0, t=1)
    f.attrs["beta"] = 10.0
with create("ns_incom_inhom_2d_512-0.h5") as f:
    f["force"] = values("nxyc", 2)
    f["velocity"] = values("ntxyc", 2, 2)
    f["particles"] = values("ntxyc", 1, 4)
    f["t"] = np.tile((np.arange(T) * 0.25).astype("f4"), (N, 1))
    f.attrs["nu"] = 0.01

# The same arrays in other formats: NumPy, a table, Zarr version 2 (needs zarr < 3).
np.save(f"{FOLDER}/nu0.3.npy", values("ntx"))
np.save(f"{FOLDER}/fortran.npy", np.asfortranarray(values("nctyx", 2).astype("f8")))
arrays = {"tensor": values("ntxyc", 2), "nu": np.float64(0.5),
          **{f"{letter}-coordinate": (np.arange(size) + 0.5) / size for letter, size in zip("xy", GRID)},
          "t-coordinate": np.arange(T) * 0.25}
np.savez(f"{FOLDER}/stored.npz", **{**arrays, "nu": np.array([0.5])})
np.savez_compressed(f"{FOLDER}/packed.npz", **{**arrays, "nu": np.array([0.5])})
with open(f"{FOLDER}/table.csv", "w") as f:
    f.write("sample, time, x, nu, density, Vx\n")
    rows = [(n, t, x) for n in range(N) for t in range(T) for x in range(GRID[0])]
    rows[40], rows[41] = rows[41], rows[40]
    for n, t, x in rows:
        value = float(values("ntx")[n, t, x])
        f.write(f"{n},{t * 0.25},{(x + 0.5) / GRID[0]!r},0.2,{value!r},{value + 32!r}\n")
import zarr
for name, compressor in [("none", None), ("blosc", zarr.Blosc()), ("zlib", zarr.Zlib()), ("zstd", zarr.Zstd())]:
    shutil.rmtree(f"{FOLDER}/{name}.zarr", ignore_errors=True)
    root = zarr.open_group(f"{FOLDER}/{name}.zarr", "w", zarr_version=2)
    order = "F" if name == "zlib" else "C"
    chunks = (2, 3, 4, 6, 2) if name == "none" else (1, 5, 7, 4, 1)
    root.create_dataset("tensor", data=values("ntxyc", 2), chunks=chunks, compressor=compressor, order=order)
    for letter, size in zip("xy", GRID):
        root.create_dataset(f"{letter}-coordinate", data=(np.arange(size) + 0.5) / size, compressor=compressor)
    root.create_dataset("t-coordinate", data=np.arange(T) * 0.25, compressor=compressor)
    root.attrs["nu"] = 0.5
