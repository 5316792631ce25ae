#!/usr/bin/env python3
"""Fine-tunes an encoder with PEFT on the sections of Debian packages, as benches/science/lora.sh does with train-stage.

Runs in the folder of that protocol: encoder/, packages.csv and split.json. Mean pooling, dropout 0.1 and a linear head; LoRA
of rank 8 in every linear layer of the encoder; AdamW without decay of biases, clipping at 1, a linear warm-up and decay.
Prints the accuracy on the test split. Needs torch, transformers and peft.

    tests/peers/lora.py --seed 1 --updates 1000
"""
import argparse
import csv
import json

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoTokenizer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--updates", type=int, default=1000)
arguments = parser.parse_args()
torch.manual_seed(arguments.seed)
torch.set_num_threads(1)

rows = list(csv.DictReader(open("packages.csv", encoding="utf-8")))
split = json.load(open("split.json"))
labels = {label: at for at, label in enumerate(split["labels"])}
texts = {name: [rows[at] for part in split[name] for at in part["samples"]] for name in ["train", "test"]}
tokenizer = AutoTokenizer.from_pretrained("encoder")
layers = r"encoder\.layer\..*\.(query|key|value|dense)"
encoder = get_peft_model(AutoModel.from_pretrained("encoder", add_pooling_layer=False),
                         LoraConfig(r=8, lora_alpha=16, target_modules=layers))
head = torch.nn.Linear(encoder.config.hidden_size, len(labels))
dropout = torch.nn.Dropout(0.1)


def logits(batch):
    inputs = tokenizer([row["description"] for row in batch], truncation=True, max_length=48, padding=True, return_tensors="pt")
    states = encoder(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    return head(dropout((states * mask).sum(1) / mask.sum(1)))


trained = [value for value in [*encoder.parameters(), *head.parameters()] if value.requires_grad]
groups = [{"params": [value for value in trained if value.dim() > 1], "weight_decay": 0.01},
          {"params": [value for value in trained if value.dim() < 2], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-3)
factor = lambda at: min((at + 1) / 60, (arguments.updates - at) / max(arguments.updates - 60, 1))
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
encoder.train()
order = torch.randperm(len(texts["train"])).tolist()
for update in range(arguments.updates):
    batch = [texts["train"][order[(update * 32 + i) % len(order)]] for i in range(32)]
    target = torch.tensor([labels[row["section"]] for row in batch])
    torch.nn.functional.cross_entropy(logits(batch), target).backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
encoder.eval()
dropout.eval()
right = 0
with torch.no_grad():
    for start in range(0, len(texts["test"]), 128):
        batch = texts["test"][start:start + 128]
        found = logits(batch).argmax(1).tolist()
        right += sum(at == labels[row["section"]] for at, row in zip(found, batch))
print(f"{right / len(texts['test']):.4f}")
