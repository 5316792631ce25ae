#!/usr/bin/env python3
"""Makes study.json: what Optuna 5.0.0 and cmaes 0.13.1 compute for recorded histories of trials.

Run it in this folder; needs optuna 5.0.0 and cmaes 0.13.1. lib/study/tests/optuna.rs reads the result.

- densities: for a space and the parameters of trials, the log density of the Parzen estimator at some points.
- divisions: for a history, the numbers of the good trials.
- pruners: for recorded values, the trial and step at which each pruner ends a trial when the trials report in turn.
- importances: for recorded trials, the importance of each parameter by PED-ANOVA.
- evolutions: generations of points, and the state of CMA-ES after the first and after the last.
"""
import json
import math
import warnings

import cmaes
import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import HyperbandPruner, MedianPruner, PatientPruner, PercentilePruner, SuccessiveHalvingPruner
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator, _ParzenEstimatorParameters
from optuna.samplers._tpe.sampler import _split_trials, default_gamma, default_weights
from optuna.trial import TrialState, create_trial

warnings.filterwarnings("ignore")
optuna.logging.set_verbosity(optuna.logging.ERROR)
assert optuna.__version__ == "5.0.0" and cmaes.__version__ == "0.13.1"
random = np.random.default_rng(5)
PARAMETERS = _ParzenEstimatorParameters(1.0, True, False, default_weights, True)

SPACES = {
    "float": {"x": FloatDistribution(-3.0, 5.0)},
    "log": {"x": FloatDistribution(1e-5, 1e-1, log=True)},
    "step": {"x": FloatDistribution(0.0, 1.5, step=0.25)},
    "int": {"x": IntDistribution(1, 9)},
    "int-step": {"x": IntDistribution(2, 20, step=3)},
    "int-log": {"x": IntDistribution(1, 500, log=True)},
    "categorical": {"x": CategoricalDistribution(["a", "b", "c"])},
    "mixed": {
        "a": FloatDistribution(0.0, 1.0),
        "b": FloatDistribution(1e-4, 1.0, log=True),
        "c": CategoricalDistribution([1, 2]),
        "d": IntDistribution(1, 60),
    },
}


def kind(d):
    if isinstance(d, CategoricalDistribution):
        return {"kind": "categorical", "choices": list(d.choices)}
    found = {"kind": "int" if isinstance(d, IntDistribution) else "float", "low": d.low, "high": d.high, "log": d.log}
    if d.step is not None:
        found["step"] = d.step
    return found


def draw(d, n):
    """Numbers as the samplers see them. In a space of several parameters all are different: Optuna gives equal ones their
    bandwidths in the order of NumPy's sort, which is not stable and differs between processors."""
    if isinstance(d, CategoricalDistribution):
        return random.integers(0, len(d.choices), n).astype(float)
    if d.log and isinstance(d, FloatDistribution):
        return np.exp(random.uniform(math.log(d.low), math.log(d.high), n))
    if isinstance(d, IntDistribution) and d.log:
        return np.round(np.exp(random.uniform(math.log(d.low), math.log(d.high), n)))
    if isinstance(d, IntDistribution) and d.high - d.low > 2 * n:
        return d.low + random.permutation(d.high - d.low + 1)[:n].astype(float)
    if d.step is not None:
        return d.low + d.step * random.integers(0, round((d.high - d.low) / d.step) + 1, n)
    return random.uniform(d.low, d.high, n)


def densities(names, counts):
    cases = []
    for name in names:
        space = SPACES[name]
        for n in counts:
            observed = {key: draw(d, n) for key, d in space.items()}
            points = {key: draw(d, 7) for key, d in space.items()}
            found = _ParzenEstimator(observed, space, PARAMETERS).log_pdf(points)
            cases.append({
                "name": f"{name}, {n} trials",
                "space": {key: kind(d) for key, d in space.items()},
                "trials": [{key: float(observed[key][i]) for key in space} for i in range(n)],
                "points": [{key: float(points[key][i]) for key in space} for i in range(7)],
                "log_density": found.tolist(),
                "argmax": int(np.argmax(found)),
            })
    return cases


def divisions():
    cases = []
    for direction in ("minimize", "maximize"):
        study = optuna.create_study(direction=direction)
        space = {"x": FloatDistribution(0.0, 1.0)}
        history = []
        for number in range(58):
            state = ["complete", "complete", "pruned", "running", "pruned"][random.integers(5)] if number > 4 else "complete"
            steps = {int(s): float(random.normal()) for s in range(random.integers(0, 4))} if state == "pruned" else {}
            if number % 11 == 7 and steps:
                steps[max(steps)] = math.nan
            value = float(round(random.normal(), 1)) if state == "complete" else None
            study.add_trial(create_trial(
                state={"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "running": TrialState.RUNNING}[state],
                value=value, params={"x": 0.5}, distributions=space, intermediate_values=steps))
            none = {str(s): (None if math.isnan(v) else v) for s, v in steps.items()}
            history.append({"state": state, "value": value, "intermediate": none})
        trials = study.get_trials()
        n = sum(t.state != TrialState.RUNNING for t in trials)
        good, bad = _split_trials(study, trials, default_gamma(n))
        cases.append({"direction": direction, "trials": history, "good": [t.number for t in good], "bad": [t.number for t in bad]})
    return cases


PRUNERS = {
    "median": ({"kind": "median", "startup": 3, "warmup": 2, "interval": 2, "min_trials": 2},
               lambda: MedianPruner(3, 2, 2, n_min_trials=2)),
    "percentile": ({"kind": "percentile", "percentile": 30.0, "startup": 2}, lambda: PercentilePruner(30.0, 2)),
    "halving": ({"kind": "halving", "min_resource": 1, "reduction": 3}, lambda: SuccessiveHalvingPruner(1, 3)),
    "halving-bootstrap": ({"kind": "halving", "min_resource": 2, "reduction": 2, "early": 1, "bootstrap": 3},
                          lambda: SuccessiveHalvingPruner(2, 2, 1, 3)),
    "hyperband": ({"kind": "hyperband", "min_resource": 1, "max_resource": 20, "reduction": 3},
                  lambda: HyperbandPruner(1, 20, 3)),
    "patient": ({"kind": "patient", "patience": 2, "min_delta": 0.05}, lambda: PatientPruner(None, 2, 0.05)),
    "patient-median": ({"kind": "patient", "patience": 1, "pruner": {"kind": "median", "startup": 2}},
                       lambda: PatientPruner(MedianPruner(2), 1)),
}


def pruners():
    """Waves of five trials that report in turn, each to the end of its recorded values or until it is pruned."""
    cases = []
    for name, (config, make) in PRUNERS.items():
        for direction in ("minimize", "maximize"):
            sign = 1.0 if direction == "minimize" else -1.0
            study = optuna.create_study(study_name="golden", direction=direction, pruner=make())
            curves, ends = [], []
            for wave in range(8):
                trials = [study.ask() for _ in range(5)]
                level = random.uniform(0, 1, 5)
                own = [[round(sign * float(level[i] + math.exp(-0.2 * s) + 0.1 * random.normal()), 3) for s in range(1, 21)] for i in range(5)]
                if wave == 3:
                    own[2][3] = math.nan
                open_ = set(range(5))
                end = [None] * 5
                for step in range(1, 21):
                    for i in sorted(open_):
                        trials[i].report(own[i][step - 1], step)
                        if trials[i].should_prune():
                            end[i] = step
                            open_.discard(i)
                            study.tell(trials[i], state=TrialState.PRUNED)
                for i in sorted(open_):
                    study.tell(trials[i], own[i][-1])
                curves += own
                ends += end
            none = [[None if math.isnan(v) else v for v in curve] for curve in curves]
            cases.append({"name": name, "pruner": config, "direction": direction, "curves": none, "ends": ends})
    return cases


def evolutions():
    """Points are drawn by cmaes in the unit cube and rounded; some repeat and have equal values."""
    cases = []
    for d, population in ((1, None), (2, None), (2, 5), (3, 2), (3, 7), (4, 3), (5, None), (5, 9), (7, 30), (10, None), (10, 11)):
        cma = cmaes.CMA(np.full(d, 0.5), 1 / 6, np.array([[0.0, 1.0]] * d), n_max_resampling=10 * d, seed=d, population_size=population)
        scale = 10.0 ** (np.arange(d) / max(d - 1, 1))
        generations, states = [], []
        for generation in range(9):
            points = [np.round(cma.ask(), 4) for _ in range(cma.population_size)]
            points[1] = points[0].copy()
            values = [float(np.sum(scale * (x - 0.3) ** 2)) for x in points]
            cma.tell(list(zip(points, values)))
            ranked = sorted(range(len(points)), key=lambda i: values[i])
            generations.append([points[i].tolist() for i in ranked])
            if generation in (0, 8):
                states.append({"generations": generation + 1, "mean": cma._mean.tolist(), "sigma": float(cma._sigma),
                               "covariance": cma._C.ravel().tolist(), "path_sigma": cma._p_sigma.tolist(), "path": cma._pc.tolist()})
        cases.append({"population": population, "generations": generations, "states": states})
    return cases


def importances():
    """Trials at random or near the best, some without a value; n is drawn only if c is 1."""
    space = {**SPACES["mixed"], "e": IntDistribution(1, 500, log=True), "f": FloatDistribution(0.0, 1.5, step=0.25),
             "g": IntDistribution(2, 20, step=3), "n": FloatDistribution(1e-3, 1.0, log=True), "o": CategoricalDistribution(["x", "y", "z"])}
    cases = []
    for direction, count in (("minimize", 2), ("minimize", 9), ("maximize", 60), ("minimize", 250)):
        study = optuna.create_study(direction=direction)
        trials = []
        for number in range(count):
            point = {key: float(draw(d, 40)[0]) for key, d in space.items()}
            if number > 50:
                point["a"] = float(np.clip(0.3 + 0.1 * random.normal(), 0, 1))
            if point["c"] == 0:
                del point["n"]
            loss = (point["a"] - 0.3) ** 2 + 0.1 * abs(math.log(point["b"]) + 3) + 0.05 * (point["c"] + point["o"]) + 0.002 * point["e"]
            loss += 0.1 * abs(math.log(point.get("n", 0.1))) + 0.01 * float(random.normal())
            value = round(loss if direction == "minimize" else -loss, 3)
            state = "pruned" if number % 13 == 5 else "complete"
            distributions = {key: space[key] for key in point}
            study.add_trial(create_trial(
                state=TrialState.PRUNED if state == "pruned" else TrialState.COMPLETE, value=value,
                params={key: d.to_external_repr(point[key]) for key, d in distributions.items()}, distributions=distributions))
            trials.append({"state": state, "value": value, "point": point})
        found = optuna.importance.get_param_importances(study)
        cases.append({"direction": direction, "space": {key: kind(d) for key, d in space.items()}, "trials": trials, "importances": found})
    return cases


few = (0, 1, 2, 5)
found = {"densities": densities(["float", "log"], (*few, 60)) + densities(list(SPACES)[2:], (*few, 14)), "divisions": divisions(), "pruners": pruners(), "evolutions": evolutions()}
# So many that the narrowest bandwidth is the limit of 1/100 of the range.
found["densities"] += densities(["float", "log", "categorical"], (150,))
found["importances"] = importances()
with open("study.json", "w") as file:
    json.dump(found, file, separators=(",", ":"))
    file.write("\n")
