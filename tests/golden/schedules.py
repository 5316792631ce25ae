#!/usr/bin/env python3
"""Makes schedules.json: learning rates of staged schedules, by closed form and by PyTorch, and the factors of the
schedules of transformers and of PyTorch's OneCycleLR with the phases that express them (`phases`).

Run it in this folder; needs torch and transformers. Entry u of a list is the rate of update u, counted from 0;
the last entry is the rate after the last update. Stages follow each other at the cumulative sums of
their lengths; a length of -1 is the remainder of `total_updates`; a LinearLR without
start_factor starts from the final rate of its predecessor. `lengths` and `start_factors` are the
resolved ones. The script fails when the two disagree by more than rounding: PyTorch multiplies
the rate on every step, which has an error of about 1e-15 of the base rate after 600 updates.
"""
import json
import math
from pathlib import Path

import torch
import transformers
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR
from transformers import optimization


def resolve(stages, total):
    """Length and start factor of every stage."""
    known = sum(s["num_updates"] for s in stages if s["num_updates"] != -1)
    lengths = [total - known if s["num_updates"] == -1 else s["num_updates"] for s in stages]
    assert min(lengths) >= 1 and sum(lengths) == total, lengths
    reached, starts = 1.0, []
    for stage in stages:
        # A cosine always starts at the base rate.
        cosine = stage["name"] == "CosineAnnealingLR"
        starts.append(1.0 if cosine else stage.get("start_factor", reached))
        reached = stage["end_factor"]
    return lengths, starts


def closed_form(stages, lengths, starts, base, u):
    stage = 0
    while stage + 1 < len(stages) and u >= lengths[stage]:
        u -= lengths[stage]
        stage += 1
    x, start, end = min(u / lengths[stage], 1.0), starts[stage], stages[stage]["end_factor"]
    if stages[stage]["name"] == "LinearLR":
        return base * (start + (end - start) * x)
    return base * (end + (1 - end) * (1 + math.cos(math.pi * x)) / 2)


def by_torch(stages, lengths, starts, base, total):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=base)
    schedulers = []
    for stage, length, start in zip(stages, lengths, starts):
        if stage["name"] == "LinearLR":
            # PyTorch rejects a start factor of 0, and does not need it here.
            made = LinearLR(optimiser, start, stage["end_factor"], total_iters=length)
        else:
            made = CosineAnnealingLR(optimiser, T_max=length, eta_min=base * stage["end_factor"])
        schedulers.append(made)
    milestones = [sum(lengths[: i + 1]) for i in range(len(lengths) - 1)]
    scheduler = SequentialLR(optimiser, schedulers, milestones)
    rates = []
    for _ in range(total + 1):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


def case(name, base, total, *stages):
    lengths, starts = resolve(stages, total)
    exact = [closed_form(stages, lengths, starts, base, u) for u in range(total + 1)]
    rates = by_torch(stages, lengths, starts, base, total)
    error = max(abs(a - b) for a, b in zip(exact, rates)) / base
    print(f"{name}: {total + 1} rates, largest difference {error:.1e} of the base rate")
    assert error < 1e-13, name
    return {
        "name": name, "learning_rate": base, "total_updates": total, "stages": stages,
        "lengths": lengths, "start_factors": starts, "closed_form": exact, "torch": rates,
    }


def linear(num_updates, end_factor, **start):
    return {"name": "LinearLR", "num_updates": num_updates, **start, "end_factor": end_factor}


def cosine(num_updates, end_factor):
    return {"name": "CosineAnnealingLR", "num_updates": num_updates, "end_factor": end_factor}


schedules = [
    case("linear", 1e-3, 20, linear(20, 1.0, start_factor=0.1)),
    case("cosine", 3e-4, 33, cosine(-1, 0.0)),
    case("warm-up and cosine", 0.02, 70, linear(7, 1.0, start_factor=0.001), cosine(-1, 0.05)),
    # The default of 600,000 updates (5000, -1, 10) scaled down. The cosine ends at 590, and the last ten updates decay
    # from 1 % of the base rate to 0.
    case("three stages", 1e-4, 600, linear(50, 1.0, start_factor=0.001), cosine(-1, 0.01), linear(10, 0.0)),
]


def factors(name, total, make, last, *phases):
    """Factors of the updates up to number `last`, by a scheduler for an optimizer with learning rate 1."""
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, found = make(optimiser), []
    for update in range(last + 1):
        found.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        if update < last:
            scheduler.step()
    return {"name": name, "updates": total, "schedule": phases, "factors": found}


def phase(kind, end, start=None, **more):
    return {"kind": kind, "start_factor": start, "end_factor": end, **more}


WARM, TOTAL = 2, 10
warmup = phase("linear", 1.0, 0.0, updates=WARM)
hf = lambda f, **more: lambda o: f(o, WARM, TOTAL, **more)
restarts = optimization.get_cosine_with_hard_restarts_schedule_with_warmup
polynomial = optimization.get_polynomial_decay_schedule_with_warmup
phases = [
    factors("linear", TOTAL, hf(optimization.get_linear_schedule_with_warmup), TOTAL, warmup, phase("linear", 0.0)),
    factors("cosine", TOTAL, hf(optimization.get_cosine_schedule_with_warmup), TOTAL, warmup, phase("cosine", 0.0)),
    factors("constant", TOTAL, lambda o: optimization.get_constant_schedule_with_warmup(o, WARM), TOTAL, warmup,
            phase("linear", 1.0)),
    *(factors(f"{cycles} restarts", TOTAL, hf(restarts, num_cycles=cycles), TOTAL, warmup,
              phase("cosine_restarts", 0.0, cycles=cycles)) for cycles in (1, 2, 3)),
    *(factors(f"polynomial {power}", TOTAL, hf(polynomial, power=power, lr_end=1e-7), TOTAL, warmup,
              phase("polynomial", 1e-7, power=power)) for power in (1.0, 2.0, 0.5)),
    # Warm-up as a fraction; int(100 * 0.29) is 28.
    factors("fraction", 100, lambda o: optimization.get_cosine_schedule_with_warmup(o, int(100 * 0.29), 100), 100,
            phase("linear", 1.0, 0.0, fraction=0.29), phase("cosine", 0.0)),
    # OneCycleLR reaches its maximum at update pct_start * T - 1 and its minimum at update T - 1.
    factors("one cycle", 20, lambda o: OneCycleLR(o, 1.0, 20, pct_start=0.3), 19, phase("cosine", 1.0, 0.04, updates=5),
            phase("cosine", 0.04 / 1e4, updates=14), phase("linear", 0.04 / 1e4, updates=1)),
]
path = Path(__file__).with_name("schedules.json")
lines = lambda cases: ",\n".join(json.dumps(case) for case in cases)
path.write_text(f'{{"torch": "{torch.__version__}", "transformers": "{transformers.__version__}", "schedules": [\n'
                f'{lines(schedules)}\n], "phases": [\n{lines(phases)}\n]}}\n')
print(f"{path.name}: {path.stat().st_size} bytes")
