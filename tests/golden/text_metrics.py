#!/usr/bin/env python3
"""Makes text_metrics.json: the metrics of scikit-learn 1.9.1 for some classifiers, and its bag of words.

Run it in this folder; needs scikit-learn 1.9.1. Unit tests of lib/tasks/src/text read the result.

- classes: probabilities [samples, classes] and true classes, with ties, absent classes, one class only, one sample.
- labels: probabilities and truth of multi-label classifiers.
- hashed: texts and the counts of their hashed words and pairs of words.
- bag_of_words: texts, of which the first two thirds are for training, and the probabilities that logistic regression on
  TF-IDF gives the others.
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
    """None for a ranking of one class."""
    return float(of(truth, *args)) if 0 < truth.sum() < len(truth) else None


def mean(values):
    values = list(values)
    return None if None in values else float(np.mean(values))


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
        "matthews_correlation": float(m.matthews_corrcoef(truth, predicted)),
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

TEXTS = [
    "The cat sat on the mat; the CAT sat.",
    "a I x yz",
    "",
    "don't re-use snake_case v2.0 3.14 1000",
    "Ünïcödé ÉCOLE straße İstanbul ὈΔΥΣΣΕΎΣ 東京 は 大都市 Ⅷ²",
    "tab\tand\nnewline  and   and",
]
hashed = HashingVectorizer(n_features=2**18, ngram_range=(1, 2), alternate_sign=False, norm=None).transform(TEXTS)
hashed.sort_indices()
rows = [hashed[i] for i in range(len(TEXTS))]
result["hashed"] = [{"text": t, "counts": [[int(c), int(n)] for c, n in zip(r.indices, r.data)]} for t, r in zip(TEXTS, rows)]


def write(topics):
    """A text of some words of its topics among common words."""
    words = [f"t{t}w{random.integers(12)}" for t in topics for _ in range(2)] + [f"w{int(random.pareto(1.0) * 5)}" for _ in range(5)]
    return " ".join(random.permutation(words))


def probabilities(train, truth, test, c):
    hashing = HashingVectorizer(n_features=2**18, ngram_range=(1, 2), alternate_sign=False, norm=None)
    weights = TfidfTransformer().fit(hashing.transform(train))
    x, z = (weights.transform(hashing.transform(texts)) for texts in (train, test))
    return LogisticRegression(C=c, tol=1e-9, max_iter=10000).fit(x, truth).predict_proba(z)


def bag(kind, truth, texts, c, p):
    n = len(truth) * 2 // 3
    found = p(texts[:n], truth[:n], texts[n:], c)
    flat = truth.ravel().tolist()
    return {"kind": kind, "texts": texts, "truth": flat, "strength": c, "width": found.shape[1], "p": found.ravel().tolist()}


def separately(train, truth, test, c):
    columns = [probabilities(train, truth[:, k], test, c)[:, 1] for k in range(truth.shape[1])]
    return np.stack(columns, 1)


result["bag_of_words"] = []
for classes_, c in [(2, 10.0), (3, 1.0), (3, 100.0)]:
    truth = random.integers(0, classes_, 120)
    # A tenth of the labels are noise.
    topics = np.where(random.random(120) < 0.1, random.integers(0, classes_, 120), truth)
    result["bag_of_words"].append(bag("classes", truth, [write([t]) for t in topics], c, probabilities))
truth = random.random((120, 3)) < [0.3, 0.5, 0.6]
texts = [write(np.flatnonzero(row)) for row in truth]
result["bag_of_words"].append(bag("labels", truth, texts, 10.0, separately))

with open("text_metrics.json", "w") as file:
    json.dump(result, file, separators=(",", ":"))
    file.write("\n")
