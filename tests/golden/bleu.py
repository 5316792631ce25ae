#!/usr/bin/env python3
"""Makes bleu.json: corpus BLEU-4 of sacrebleu 2.6.0 for sequences of token numbers, without smoothing and with `exp`.

Run it in this folder; needs sacrebleu 2.6.0. Unit tests of lib/tasks/src/multimodal read the result. Cases: corruptions of
the references at three rates, hypotheses that are too short, too long, without any common 4-gram, shorter than four tokens,
empty, and without any common token.
"""
import json
import random

import sacrebleu

assert sacrebleu.__version__ == "2.6.0"
random.seed(7)


def sentence(words, length):
    return [random.randrange(words) for _ in range(length)]


def corrupted(tokens, rate):
    """Each token is dropped, doubled or replaced with a probability of `rate`/3 each."""
    out = []
    for token in tokens:
        at = random.random() / rate
        out += [] if at < 1 / 3 else [token, token] if at < 2 / 3 else [random.randrange(20)] if at < 1 else [token]
    return out


def case(hypotheses, references):
    def text(sentences):
        return [" ".join(map(str, tokens)) for tokens in sentences]

    hyp, ref = text(hypotheses), [text(references)]
    none, exp = (sacrebleu.corpus_bleu(hyp, ref, smooth_method=method, tokenize="none", force=True)
                 for method in ("none", "exp"))
    return {"hypotheses": hypotheses, "references": references, "matches": exp.counts, "totals": exp.totals,
            "lengths": [exp.sys_len, exp.ref_len], "none": none.score, "exp": exp.score}


references = [sentence(20, random.randrange(5, 15)) for _ in range(8)]
cases = [case([corrupted(r, rate) for r in references], references) for rate in (0.05, 0.2, 0.5)]
cases += [
    case([r[: len(r) * 2 // 3] for r in references], references),
    case([r + r[:3] for r in references], references),
    case([[1, 2, 3, 9, 4, 5], [7, 7, 7, 7, 7]], [[1, 2, 3, 4, 5], [7, 7, 8]]),
    case([[1, 2, 3], [4]], [[1, 2, 3, 4], [4, 5]]),
    case([[], [1, 2, 3, 4, 5]], [[6, 7], [1, 2, 3, 4, 6]]),
    case([[1, 2, 3, 4, 5]], [[6, 7, 8, 9]]),
    case([[]], [[1, 2]]),
]
with open("bleu.json", "w") as file:
    json.dump(cases, file, separators=(",", ":"))
    file.write("\n")
