#!/usr/bin/env python3
"""Makes text_metrics.json: the metrics of scikit-learn 1.9.1 for some classifiers, and its bag of words.

Run it in this folder; needs scikit-learn 1.9.1. Unit tests of lib/tasks/src/text read the result.

- classes: probabilities [samples, classes] and true classes, with ties, absent classes, one class only, one sample.
- labels: probabilities and truth of multi-label classifiers.
- bag_of_words: texts, their hashed features, and the probabilities of logistic regression on TF-IDF.
"""
import json
import warnings

import numpy as np
import sklearn
from sklearn import metrics as m
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

warnings.filterwarnings("ignore")
assert sklearn.__version__ == "1.9.1"
random = np.random.default_rng(18)


def defined(of, truth, *args):
    """None where scikit-learn warns about a ranking of one class, or about none of the positives."""
    return float(of(truth, *args)) if 0 < truth.sum() and (of is not m.roc_auc_score or truth.sum() < len(truth)) else None


def mean(values):
    values = [value for value in values if value is not None]
    return float(np.mean(values)) if values else None


def ece(p, y):
    """Guo et al. 2017: 15 bins, right-closed, a probability of 0 in the first."""
    bins = np.maximum(np.digitize(p, np.arange(16) / 15, right=True), 1)
    return float(sum(np.sum(bins == b) / len(p) * abs(p[bins == b].mean() - y[bins == b].mean()) for b in set(bins)))


def averages(truth, predicted, names):
    found = {}
    for name in names:
        for metric, score in [("f1", m.f1_score), ("precision", m.precision_score), ("recall", m.recall_score)]:
            found[f"{metric}_{name}"] = float(score(truth, predicted, average=name, zero_division=0))
    return found


def classes(p, truth, labels):
    predicted, n = p.argmax(1), p.shape[1]
    ranked = [1] if n == 2 else range(n)
    expected = {
        "accuracy": float(m.accuracy_score(truth, predicted)),
        **averages(truth, predicted, ["macro", "weighted"]),
        "f1_micro": float(m.f1_score(truth, predicted, average="micro")),
        "auroc": mean(defined(m.roc_auc_score, truth == c, p[:, c]) for c in ranked),
        "average_precision": mean(defined(m.average_precision_score, truth == c, p[:, c]) for c in ranked),
        "log_loss": float(m.log_loss(truth, p, labels=range(n))),
        "brier": float(m.brier_score_loss(truth, p, labels=range(n))),
        "ece_top_label": ece(p.max(1), predicted == truth),
    }
    if n == 2:
        for name, score in [("f1", m.f1_score), ("precision", m.precision_score), ("recall", m.recall_score)]:
            expected[f"{name}_binary"] = float(score(truth, predicted, zero_division=0))
        expected["ece"] = ece(p[:, 1], truth)
    present = sorted(set(truth) | set(predicted))
    names = [labels[c] for c in present]
    report = m.classification_report(truth, predicted, labels=present, target_names=names, output_dict=True, zero_division=0)
    report.setdefault("accuracy", expected["accuracy"])
    report.pop("micro avg", None)
    matrix = m.confusion_matrix(truth, predicted, labels=range(n)).tolist()
    return {"labels": labels, "p": p.ravel().tolist(), "truth": truth.tolist(), "metrics": expected, "matrix": matrix, "report": report}


def drawn(samples, classes, digits):
    """Probabilities that tend to the true class; rounded, for ties."""
    truth = random.integers(0, classes, samples)
    logits = random.normal(size=(samples, classes)) + 1.2 * np.eye(classes)[truth]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    if digits:
        p = p.round(digits)
        p /= p.sum(1, keepdims=True)
    return p, truth


def labels(samples, count, digits):
    p = random.random((samples, count)).round(digits)
    truth = random.random((samples, count)) < 0.2 + 0.6 * p
    # Nobody has the last label, and everybody the one before.
    truth[:, -1], truth[:, -2] = False, True
    p[:, -1] *= 0.4
    predicted = p >= 0.5
    columns = range(count)
    expected = {
        "accuracy": float(m.accuracy_score(truth, predicted)),
        **averages(truth, predicted, ["macro", "micro", "weighted"]),
        "auroc": mean(defined(m.roc_auc_score, truth[:, c], p[:, c]) for c in columns),
        "auroc_micro": float(m.roc_auc_score(truth.ravel(), p.ravel())),
        "average_precision": mean(defined(m.average_precision_score, truth[:, c], p[:, c]) for c in columns),
        "average_precision_micro": float(m.average_precision_score(truth.ravel(), p.ravel())),
        "log_loss": float(np.mean([m.log_loss(truth[:, c], p[:, c], labels=[0, 1]) for c in columns])),
        "brier": float(np.mean((p - truth) ** 2)),
        "ece": ece(p.ravel(), truth.ravel()),
    }
    names = [f"label {c}" for c in columns]
    report = m.classification_report(truth, predicted, target_names=names, output_dict=True, zero_division=0)
    report.pop("samples avg")
    matrix = m.multilabel_confusion_matrix(truth, predicted).tolist()
    return {"labels": names, "p": p.ravel().tolist(), "truth": truth.ravel().tolist(), "metrics": expected, "matrix": matrix, "report": report}


two, four = ["Negative", "Positive"], ["a", "b", "c", "d"]
p, truth = drawn(53, 4, 1)
p[:, 0] += p[:, 3]
p[:, 3] = 0
truth[truth == 3] = 0
unpredicted = (p, truth)  # class d occurs nowhere
p, truth = drawn(47, 4, 1)
truth[truth == 2] = 1
only_predicted = (p, truth)  # class c is predicted only
single, _ = drawn(9, 2, 1)
result = {
    "classes": [
        classes(*drawn(37, 2, 1), two),
        classes(*drawn(101, 2, 0), two),
        classes(single, np.zeros(9, int), two),
        classes(single, np.ones(9, int), two),
        classes(single[:1], np.ones(1, int), two),
        classes(np.eye(2)[[0, 1, 1, 0, 1]], np.array([0, 1, 0, 0, 1]), two),
        classes(np.full((6, 2), 0.5), np.array([0, 1, 1, 1, 0, 1]), two),
        classes(*drawn(103, 3, 0), four[:3]),
        classes(*unpredicted, four),
        classes(*only_predicted, four),
    ],
    "labels": [labels(41, 4, 1), labels(20, 3, 2)],
}


with open("text_metrics.json", "w") as file:
    json.dump(result, file, separators=(",", ":"))
    file.write("\n")
