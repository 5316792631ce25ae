#!/usr/bin/env python3
"""Makes curves.json: the validation loss by epoch of small networks on the digits of scikit-learn, for all combinations of
some hyper-parameters. Run it in this folder; needs scikit-learn 1.9. study.py searches in the result.
"""
import itertools
import json
import warnings
from concurrent.futures import ProcessPoolExecutor

from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

EPOCHS = 27
SPACE = {
    "activation": {"kind": "categorical", "choices": ["relu", "tanh", "logistic"]},
    "log2_batch": {"kind": "int", "low": 4, "high": 7},
    "log2_rate": {"kind": "int", "low": -14, "high": -3},
    "log2_width": {"kind": "int", "low": 3, "high": 6},
}


def values(parameter):
    return parameter.get("choices") or list(range(parameter["low"], parameter["high"] + 1))


def curve(point):
    warnings.filterwarnings("ignore")
    activation, batch, rate, width = point
    x, y = load_digits(return_X_y=True)
    x, held_out, y, held_out_y = train_test_split(x / 16, y, test_size=0.5, random_state=0, stratify=y)
    network = MLPClassifier((2**width,), activation=activation, batch_size=2**batch, learning_rate_init=2.0**rate, random_state=0)
    losses = []
    for _ in range(EPOCHS):
        network.partial_fit(x, y, classes=range(10))
        losses.append(float(f"{log_loss(held_out_y, network.predict_proba(held_out)):.4g}"))
    return losses


if __name__ == "__main__":
    points = list(itertools.product(*map(values, SPACE.values())))
    with ProcessPoolExecutor() as pool:
        curves = list(pool.map(curve, points, chunksize=8))
    with open("curves.json", "w") as file:
        json.dump({"space": SPACE, "curves": curves}, file, separators=(",", ":"))
        file.write("\n")
