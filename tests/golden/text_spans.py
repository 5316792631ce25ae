#!/usr/bin/env python3
"""Makes text_spans.safetensors: the results of transformers for small question answering models of each kind with random
weights, and of a joint model of a sentence and a post; and text_spans.json: exact match and F1 of SQuAD's evaluation.

Run it in this folder; needs torch, transformers, peft and safetensors (written with torch 2.15, transformers 5.24).
lib/tasks/tests/text_spans.rs reads the results.

Everything is drawn as f32 and computed in f64, without dropout. The tensors of a case NAME are named as in text.py: NAME/ids,
NAME/types, NAME/lengths, NAME/places (first and last token of the answer of each window), NAME/logits [windows, tokens, 2],
NAME/loss (the sum over windows of the mean of both cross entropies), NAME/value/<parameter>, NAME/gradient/<parameter>. The
joint model also has NAME/text_ids, NAME/text_types, NAME/text_lengths, NAME/classes and NAME/class_logits; its loss is the sum
of that of the answers and of twice the cross entropies of the classes.
"""
import collections
import json
import random
import re
import string

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (BertForQuestionAnswering, BertModel, DistilBertForQuestionAnswering,
                          RobertaForQuestionAnswering, RobertaModel)

import text

torch.manual_seed(6)
random.seed(6)
tensors = {}
TEXTS = [5, 9, 3, 1, 8]


class Question(nn.Module):
    """A question answering model of transformers."""

    def __init__(self, kind):
        super().__init__()
        model = {"bert": BertForQuestionAnswering, "roberta": RobertaForQuestionAnswering,
                 "distilbert": DistilBertForQuestionAnswering}[kind]
        config = text.config(kind)
        config.num_labels = 2
        self.model, self.kind = model(config), kind

    def named_parameters(self, *args, **options):
        return self.model.named_parameters(*args, **options)

    def forward(self, windows, _):
        if self.kind == "distilbert":
            del windows["token_type_ids"]
        out = self.model(**windows)
        return torch.stack([out.start_logits, out.end_logits], -1), None


class Joint(nn.Module):
    """Two encoders, of which the pooled state of one is added to the states of the other; or one encoder without that."""

    def __init__(self, kind, share):
        super().__init__()
        model = {"bert": BertModel, "roberta": RobertaModel}[kind]
        width = text.SIZES["hidden_size"]
        self.kind, self.share = kind, share
        setattr(self, kind, model(text.config(kind), add_pooling_layer=kind == "bert"))
        self.classifier = nn.Linear(width, 3) if kind == "bert" else nn.Module()
        if kind == "roberta":
            self.classifier.dense = nn.Linear(width, width)
            self.classifier.out_proj = nn.Linear(width, 3)
        if not share:
            self.context = nn.Module()
            setattr(self.context, kind, model(text.config(kind), add_pooling_layer=False))
            self.fusion = nn.Linear(width, width)
        self.qa_outputs = nn.Linear(width, 2)

    def forward(self, windows, texts):
        encoder = getattr(self, self.kind)
        out = encoder(**texts)
        if self.kind == "bert":
            pooled, output = out.pooler_output, self.classifier
        else:
            pooled, output = torch.tanh(self.classifier.dense(out.last_hidden_state[:, 0])), self.classifier.out_proj
        reader = encoder if self.share else getattr(self.context, self.kind)
        states = reader(**windows).last_hidden_state
        if not self.share:
            states = states + nn.functional.gelu(self.fusion(pooled))[:, None]
        return self.qa_outputs(states), output(pooled)


def inputs(kind, lengths, name):
    """Random tokens; saved with names that begin with `name`."""
    ids = torch.full((len(lengths), max(lengths)), text.PADDING[kind])
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(2, text.SIZES["vocab_size"], (length,))
        mask[row, :length] = 1
        if kind == "bert":
            types[row, length // 2:length] = 1
    for key, value in [("ids", ids), ("types", types), ("lengths", torch.tensor(lengths))]:
        tensors[name + key] = value.int().contiguous()
    return dict(input_ids=ids, attention_mask=mask, token_type_ids=types)


def case(name, kind, module):
    module = text.randomise(module)
    windows = inputs(kind, text.LENGTHS, f"{name}/")
    texts = inputs(kind, TEXTS, f"{name}/text_")
    mask = windows["attention_mask"]
    logits, classes = module(windows, texts)
    places = torch.tensor([sorted(random.randrange(length) for _ in range(2)) for length in text.LENGTHS])
    hidden = logits.masked_fill(mask[:, :, None] == 0, -1e30)
    loss = sum(cross_entropy(hidden[:, :, side], places[:, side], reduction="sum") for side in range(2)) / 2
    save = lambda key, value: tensors.__setitem__(f"{name}/{key}", value.detach().clone().contiguous())
    if classes is not None:
        truth = torch.randint(0, 3, (len(TEXTS),))
        loss = loss + 2 * cross_entropy(classes, truth, reduction="sum")
        save("classes", truth.int())
        save("class_logits", classes.float())
    loss.backward()
    save("places", places.int())
    save("logits", (logits * mask[:, :, None]).float())
    save("loss", loss.float().reshape(1))
    for parameter, value in module.named_parameters():
        save(f"value/{parameter}", value.float())
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        save(f"gradient/{parameter}", gradient.float())


def normalise(answer):
    """As the official evaluation script of SQuAD 1.1 does."""
    answer = "".join(c for c in answer.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer).split())


def f1(prediction, truth):
    prediction, truth = normalise(prediction).split(), normalise(truth).split()
    if not prediction or not truth:
        return float(prediction == truth)
    same = sum((collections.Counter(prediction) & collections.Counter(truth)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(prediction), same / len(truth)
    return 2 * precision * recall / (precision + recall)


def squad():
    words = ["The", "a", "an", "house", "House,", "old", "the-house", "it's", "Übel", "über", "42", "4.2", "...", "_a_", "ß", "an.",
             "“the", "naïve", "A.", "theatre"]
    texts = [" ".join(random.choices(words, k=random.randrange(0, 7))) for _ in range(28)]
    return [[a, b, normalise(a) == normalise(b), f1(a, b)] for a in texts for b in texts]


if __name__ == "__main__":
    for kind in ["bert", "roberta", "distilbert"]:
        case(kind, kind, Question(kind))
    case("joint_bert", "bert", Joint("bert", share=False))
    case("joint_roberta", "roberta", Joint("roberta", share=False))
    case("joint_share", "bert", Joint("bert", share=True))
    save_file(tensors, "text_spans.safetensors")
    with open("text_spans.json", "w", encoding="utf-8") as file:
        json.dump(squad(), file, ensure_ascii=False, indent=None, separators=(",", ":"))
        file.write("\n")
