#!/usr/bin/env python3
"""Makes edm.json: preconditioning, noise levels and samplers of diffusion models, in double precision.

Run it in this folder; needs Python only. lib/tasks/tests/diffusion.rs reads the result. Formulas are those of Karras et
al. 2022 (Table 1, Eq. 5, Algorithm 2) and Song et al. 2023 (Appendix C, Algorithm 1), written in the order of the papers
and for one number at a time. The denoiser is exact: that of a mixture of two Gaussians, D(x; sigma) = E[y | x].
"""
import json
import math
import random

MEANS, DEVIATION = (-1.5, 1.0), 0.4


def denoise(x, sigma):
    variance = DEVIATION**2 + sigma**2
    weights = [math.exp(-((x - m) ** 2 - (x - MEANS[0]) ** 2) / (2 * variance)) for m in MEANS]
    posterior = [m + DEVIATION**2 / variance * (x - m) for m in MEANS]
    return sum(w * p for w, p in zip(weights, posterior)) / sum(weights)


def levels(n, low, high, rho):
    at = lambda i: i / (n - 1) if n > 1 else 0.0
    return [(high ** (1 / rho) + at(i) * (low ** (1 / rho) - high ** (1 / rho))) ** rho for i in range(n)]


def algorithm_2(noise, n, low, high, rho, churn, s_min, s_max, s_noise, heun):
    t = levels(n, low, high, rho) + [0.0]
    x = t[0] * noise[0]
    for i in range(n):
        gamma = min(churn / n, math.sqrt(2) - 1) if s_min <= t[i] <= s_max else 0.0
        hat = t[i] + gamma * t[i]
        x_hat = x + math.sqrt(hat**2 - t[i] ** 2) * s_noise * noise[i + 1]
        d = (x_hat - denoise(x_hat, hat)) / hat
        x = x_hat + (t[i + 1] - hat) * d
        if heun and t[i + 1] != 0.0:
            d_next = (x - denoise(x, t[i + 1])) / t[i + 1]
            x = x_hat + (t[i + 1] - hat) * (d + d_next) / 2
    return x


def algorithm_1(noise, sigmas):
    x = 0.0
    for sigma, z in zip(sigmas, noise):
        x = denoise(x + sigma * z, sigma)
    return x


generator = random.Random(7)
noise = [[generator.gauss(0, 1) for _ in range(12)] for _ in range(9)]
preconditioning = []
for sigma in (0.002, 0.05, 0.7, 5.0, 80.0):
    for data, low in ((0.5, None), (1.0, None), (0.5, 0.002), (1.0, 0.05)):
        if low is not None and sigma < low:
            continue
        above = sigma - (low or 0.0)
        skip = data**2 / (above**2 + data**2)
        out = above * data / math.sqrt(sigma**2 + data**2)
        values = [skip, out, 1 / math.sqrt(sigma**2 + data**2), math.log(sigma) / 4]
        preconditioning.append({"sigma": sigma, "data": data, "min": low, "values": values})
schedules = [
    {"n": n, "min": low, "max": high, "rho": rho, "levels": levels(n, low, high, rho)}
    for n, low, high, rho in ((1, 0.05, 5, 7), (2, 0.05, 5, 7), (7, 0.002, 80, 7), (12, 0.05, 5, 3))
]
samples = []
for heun in (False, True):
    for n, churn, s_min, s_max, s_noise in (
        (1, 0, 0, 1e6, 1), (2, 0, 0, 1e6, 1), (8, 0, 0, 1e6, 1), (5, 3, 0.1, 2, 1.003), (8, 40, 0, 1e6, 1),
    ):
        results = [algorithm_2(row, n, 0.05, 5, 7, churn, s_min, s_max, s_noise, heun) for row in noise]
        samples.append({"heun": heun, "n": n, "churn": [churn, s_min, s_max, s_noise], "results": results})
refined = [
    {"sigmas": sigmas, "results": [algorithm_1(row, sigmas) for row in noise]}
    for sigmas in ([5.0], [5.0, 0.8], [0.3, 0.1], [5.0, 2.0, 0.5, 0.05])
]
golden = {
    "means": MEANS, "deviation": DEVIATION, "noise": noise, "preconditioning": preconditioning,
    "schedules": schedules, "samples": samples, "refined": refined,
}
with open("edm.json", "w") as file:
    json.dump(golden, file, indent=1)
    file.write("\n")
