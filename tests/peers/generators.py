"""Compares `ds-prep gen` with the same schemes in NumPy and SciPy, alternately on the same cores.

    generators.py FOLDER_OF_PROGRAMS [--pairs N] [--processes N] [equation...]

Each equation is solved for the same initial states (those of the file that ds-prep wrote), with NumPy in as
many processes as ds-prep has threads, on blocks of trajectories. Prints seconds per trajectory of both, their
ratio, and the difference between the last frames. Needs h5py, numpy, scipy.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import h5py  # noqa: E402
import numpy as np  # noqa: E402
from scipy import fft, sparse  # noqa: E402
from scipy.sparse.linalg import spsolve  # noqa: E402


def burgers(u, interval, frames, nu):
    """MUSCL (MC), Godunov, SSP-RK2; exact semigroup of the second difference; Strang. u [block, n]."""
    n = u.shape[1]
    symbol = (2 * np.sin(np.pi * np.arange(n // 2 + 1) / n) * n) ** 2

    def fluxes(u):
        a = u - np.roll(u, 1, 1)
        b = np.roll(a, -1, 1)
        c = 0.25 * (a + b)
        low = np.minimum(np.minimum(a, b), c)
        high = np.maximum(np.maximum(a, b), c)
        slope = np.maximum(0, low) + np.minimum(0, high)
        left = np.maximum(u + slope, 0)
        right = np.minimum(np.roll(u - slope, -1, 1), 0)
        flux = 0.5 * np.maximum(left * left, right * right)
        return flux - np.roll(flux, 1, 1)

    def diffuse(u, factor):
        return np.fft.irfft(np.fft.rfft(u, axis=1) * factor, n, axis=1)

    for _ in range(frames - 1):
        steps = max(1, int(np.ceil(interval * np.abs(u).max() * n / 0.5)))
        step = interval / steps
        half, whole = (np.exp(-nu / np.pi * t * symbol) for t in (step / 2, step))
        u = diffuse(u, half)
        for left in reversed(range(steps)):
            stage = u - step * n * fluxes(u)
            u = 0.5 * (u + stage - step * n * fluxes(stage))
            u = diffuse(u, whole if left else half)
    return u


def diffusion_reaction(u, interval, frames, nu, rho=1.0):
    n = u.shape[1]
    symbol = (2 * np.sin(np.pi * np.arange(n // 2 + 1) / n) * n) ** 2
    steps = max(1, int(np.ceil(interval * rho / 0.01)))
    step = interval / steps
    half, whole = (np.exp(-nu * t * symbol) for t in (step / 2, step))
    growth = np.exp(rho * step)
    for _ in range(frames - 1):
        u = np.fft.irfft(np.fft.rfft(u, axis=1) * half, n, axis=1)
        for left in reversed(range(steps)):
            u = u * growth / (1 + u * (growth - 1))
            u = np.fft.irfft(np.fft.rfft(u, axis=1) * (whole if left else half), n, axis=1)
    return u


def fitzhugh_nagumo(uv, interval, frames, du, dv=5e-3, k=5e-3):
    """uv [block, n, n, 2]; the cosine transform is that of the closed borders."""
    n = uv.shape[1]
    u, v = uv[..., 0], uv[..., 1]
    line = (2 * np.sin(np.pi * np.arange(n) / (2 * n)) * n / 2) ** 2
    symbol = line[:, None] + line
    steps = max(1, int(np.ceil(interval / 0.01)))
    h = interval / steps
    factors = [[np.exp(-d * t * symbol) for d in (du, dv)] for t in (h / 2, h)]

    def diffuse(x, factor):
        return fft.idctn(fft.dctn(x, axes=(1, 2)) * factor, axes=(1, 2))

    def rate(u, v):
        return u - u * u * u - k - v, u - v

    for _ in range(frames - 1):
        u, v = diffuse(u, factors[0][0]), diffuse(v, factors[0][1])
        for left in reversed(range(steps)):
            u1, v1 = rate(u, v)
            u2, v2 = rate(u + h / 2 * u1, v + h / 2 * v1)
            u3, v3 = rate(u + h / 2 * u2, v + h / 2 * v2)
            u4, v4 = rate(u + h * u3, v + h * v3)
            u = u + h / 6 * (u1 + 2 * (u2 + u3) + u4)
            v = v + h / 6 * (v1 + 2 * (v2 + v3) + v4)
            own = factors[1 if left else 0]
            u, v = diffuse(u, own[0]), diffuse(v, own[1])
    return np.stack([u, v], -1)


def navier_stokes(w, interval, frames, nu, force=0.1):
    """Pseudo-spectral, two-thirds rule, RK4 with exact viscosity. w [block, n, n]."""
    n = w.shape[1]
    kept = (n - 1) // 3
    kx = np.fft.fftfreq(n, 1 / n)[:, None]
    ky = np.arange(n // 2 + 1)[None, :]
    mask = (np.abs(kx) <= kept) & (ky <= kept)
    kx, ky = 2 * np.pi * kx, 2 * np.pi * ky
    square = kx**2 + ky**2
    inverse = np.where(square > 0, 1 / np.where(square > 0, square, 1), 0) * mask
    x = 2 * np.pi * (np.arange(n) + 0.5) / n
    f = fft.rfft2(force * (np.sin(x[:, None] + x) + np.cos(x[:, None] + x)))
    u_of, v_of = 1j * ky * inverse, -1j * kx * inverse
    first, second = (kx**2 - ky**2) * mask, kx * ky * mask

    def velocity(w):
        return fft.irfft2(w * u_of, (n, n)), fft.irfft2(w * v_of, (n, n))

    def slope(w):
        u, v = velocity(w)
        return first * fft.rfft2(u * v) + second * fft.rfft2(v * v - u * u) + f

    w = fft.rfft2(w) * mask
    for _ in range(frames - 1):
        u, v = velocity(w)
        steps = max(1, int(np.ceil(interval * (np.abs(u) + np.abs(v)).max() * n / 0.5)))
        h = interval / steps
        e = np.exp(-nu * square * h / 2)
        for _ in range(steps):
            k1 = slope(w)
            k2 = slope(e * (w + h / 2 * k1))
            k3 = slope(e * w + h / 2 * k2)
            k4 = slope(e * (e * w + h * k3))
            w = e * e * w + h / 6 * (e * e * k1 + 2 * e * (k2 + k3) + k4)
    return fft.irfft2(w, (n, n))


def darcy(a, interval, frames, beta):
    """Finite volumes with harmonic means, by SciPy's direct solver. a [block, n, n]."""
    n = a.shape[1]
    number = np.arange(n * n).reshape(n, n)
    out = []
    for a in a:
        diagonal = np.zeros((n, n))
        parts = []
        for axis in (0, 1):
            b, m = np.moveaxis(a, axis, 0), np.moveaxis(number, axis, 0)
            d = np.moveaxis(diagonal, axis, 0)
            t = 2 * b[:-1] * b[1:] / (b[:-1] + b[1:])
            d[:-1] += t
            d[1:] += t
            d[0] += 2 * b[0]
            d[-1] += 2 * b[-1]
            parts += [(-t.ravel(), m[:-1].ravel(), m[1:].ravel()), (-t.ravel(), m[1:].ravel(), m[:-1].ravel())]
        parts.append((diagonal.ravel(), number.ravel(), number.ravel()))
        values, rows, columns = (np.concatenate(p) for p in zip(*parts))
        matrix = sparse.csc_matrix((values, (rows, columns)))
        out.append(spsolve(matrix, np.full(n * n, beta / n**2), permc_spec="MMD_AT_PLUS_A").reshape(n, n))
    return np.array(out)


# Equation: NumPy's solver, parameter, samples, trajectories per block, further arguments for ds-prep gen.
CASES = {
    "burgers": (burgers, 0.01, 32, 8, []),
    "diffusion-reaction": (diffusion_reaction, 0.5, 64, 8, []),
    "diffusion-reaction-2d": (fitzhugh_nagumo, 1e-3, 4, 1, []),
    "navier-stokes": (navier_stokes, 1e-3, 8, 1, []),
    "darcy": (darcy, 1.0, 32, 1, []),
}


def read(path, equation):
    """Initial states, last frames, interval, frames."""
    with h5py.File(path) as file:
        if equation == "darcy":
            return file["nu"][:], file["tensor"][:, 0], 0.0, 1
        if "tensor" in file:
            t = file["t-coordinate"][:]
            data = file["tensor"]
            return data[:, 0], data[:, -1], float(t[-1]) / (len(t) - 1), len(t)
        names = sorted(file)
        t = file[names[0]]["grid/t"][:]
        data = [file[name]["data"] for name in names]
        first, last = ([d[i] for d in data] for i in (0, -1))
        return np.array(first), np.array(last), float(t[-1]) / (len(t) - 1), len(t)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs")
    parser.add_argument("equations", nargs="*")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    program = os.path.join(args.programs, "ds-prep")
    for equation in args.equations or CASES:
        solver, parameter, samples, block, words = CASES[equation]
        for pair in range(args.pairs):
            with tempfile.TemporaryDirectory() as folder:
                command = [program, "gen", equation, "--parameter", str(parameter), "--samples", str(samples)]
                command += ["--threads", str(args.processes), "-o", folder, *words]
                begin = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                ours = time.perf_counter() - begin
                (path,) = (os.path.join(folder, name) for name in os.listdir(folder))
                first, last, interval, frames = read(path, equation)
            first = first.astype(np.float64)
            blocks = [(b, interval, frames, parameter) for b in np.split(first, samples // block)]
            with get_context("fork").Pool(args.processes) as pool:
                pool.map(abs, range(args.processes))
                begin = time.perf_counter()
                found = np.concatenate(pool.starmap(solver, blocks, chunksize=1))
                theirs = time.perf_counter() - begin
            apart = np.sqrt(((found - last) ** 2).mean() / (last.astype(np.float64) ** 2).mean())
            print(
                f"{equation:22} ds-prep {1e3 * ours / samples:9.2f} ms  numpy {1e3 * theirs / samples:9.2f} ms"
                f"  ratio {theirs / ours:5.2f}  apart {apart:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    sys.exit(main())
