#!/usr/bin/env python3
"""Makes text.safetensors: the results of transformers for small BERT, RoBERTa, XLM-R and DistilBERT classifiers with
random weights, and of PEFT for one with a LoRA adapter.

Run it in this folder; needs torch, transformers, peft and safetensors (written with torch 2.15, transformers 5.24, peft
0.21).
lib/tasks/tests/text.rs reads the result.

Everything is drawn as f32 and computed in f64, without dropout. A case NAME has NAME/ids, NAME/types, NAME/lengths,
NAME/states (of the tokens; zero at padding), NAME/logits, NAME/dlogits (the gradient of the logits), and for each
parameter its value NAME/value/<parameter> and gradient NAME/gradient/<parameter>.
"""
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn
from transformers import (BertConfig, BertForSequenceClassification, BertModel, DistilBertConfig,
                          DistilBertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification,
                          RobertaModel, XLMRobertaConfig, XLMRobertaForSequenceClassification)

torch.manual_seed(5)
tensors = {}
LENGTHS = [13, 1, 7, 12, 2]
PADDING = {"bert": 0, "roberta": 1, "xlm": 1, "distilbert": 0}
SIZES = dict(vocab_size=61, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
             max_position_embeddings=19, num_labels=3, attn_implementation="eager")


def randomise(module):
    """Other values than the initial ones, so that biases and normalisations matter."""
    with torch.no_grad():
        for name, value in module.named_parameters():
            offset = 1.0 if name.lower().replace("_", "").endswith("norm.weight") else 0.0
            value.copy_((offset + 0.3 * torch.randn(value.shape)).float())
    return module.double().eval()


def config(kind):
    if kind == "bert":
        return BertConfig(type_vocab_size=2, layer_norm_eps=1e-12, **SIZES)
    if kind == "xlm":
        return XLMRobertaConfig(type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, **SIZES)
    if kind == "distilbert":
        names = dict(hidden_size="dim", num_hidden_layers="n_layers", num_attention_heads="n_heads",
                     intermediate_size="hidden_dim")
        return DistilBertConfig(**{names.get(key, key): value for key, value in SIZES.items()})
    return RobertaConfig(type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, **SIZES)


class Pooled(nn.Module):
    """An encoder, a mean or maximum over tokens, and a head with hidden layers."""

    def __init__(self, kind, pooling, dims, activation):
        super().__init__()
        model = {"bert": BertModel, "roberta": RobertaModel}[kind]
        setattr(self, kind, model(config(kind), add_pooling_layer=pooling == "cls"))
        self.kind, self.pooling = kind, pooling
        widths = [SIZES["hidden_size"], *dims]
        layers = []
        for a, b in zip(widths, dims):
            layers += [nn.Linear(a, b), activation(), nn.Dropout(0.1)]
        self.classifier = nn.Module()
        if pooling == "attention":
            self.classifier.attention = nn.Linear(widths[0], 1, bias=False)
        self.classifier.hidden_layers = nn.Sequential(*layers)
        self.classifier.output_layer = nn.Linear(widths[-1], SIZES["num_labels"])

    def forward(self, input_ids, attention_mask, token_type_ids):
        out = getattr(self, self.kind)(input_ids, attention_mask, token_type_ids)
        mask = attention_mask[:, :, None].double()
        states = out.last_hidden_state
        pooled = {
            "cls": lambda: out.pooler_output,
            "mean": lambda: (states * mask).sum(1) / mask.sum(1),
            "max": lambda: states.masked_fill(mask == 0, -1e30).max(1).values,
            "attention": lambda: (states * self.classifier.attention(states).masked_fill(mask == 0, -1e30).softmax(1)).sum(1),
        }[self.pooling]()
        return self.classifier.output_layer(self.classifier.hidden_layers(pooled)), states


class Library(nn.Module):
    """A classifier of transformers."""

    def __init__(self, kind):
        super().__init__()
        model = {"bert": BertForSequenceClassification, "roberta": RobertaForSequenceClassification,
                 "xlm": XLMRobertaForSequenceClassification, "distilbert": DistilBertForSequenceClassification}[kind]
        self.model, self.kind = model(config(kind)), kind

    def named_parameters(self, *args, **options):
        return self.model.named_parameters(*args, **options)

    def forward(self, **inputs):
        if self.kind == "distilbert":
            del inputs["token_type_ids"]
        out = self.model(**inputs, output_hidden_states=True)
        return out.logits, out.hidden_states[-1]


class Adapted(nn.Module):
    """A classifier of transformers with a LoRA adapter of PEFT on layers with and without activation, and a trained head."""

    def __init__(self, kind):
        super().__init__()
        self.model = Library(kind).model
        lora = LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=5, lora_dropout=0.1,
                          target_modules=["query", "value", "intermediate.dense"], modules_to_save=["classifier", "pooler"])
        self.model = get_peft_model(self.model, lora)

    def named_parameters(self, *args, **options):
        """With the names of PEFT's files; the modules that PEFT keeps beside its copies are left out."""
        for name, value in self.model.named_parameters(*args, **options):
            if ".original_module." not in name:
                for part in [".base_layer", ".modules_to_save.default", ".default"]:
                    name = name.replace(part, "")
                yield name.removeprefix("base_model.model."), value

    def forward(self, **inputs):
        out = self.model(**inputs, output_hidden_states=True)
        return out.logits, out.hidden_states[-1]


def case(name, kind, module):
    module = randomise(module)
    ids = torch.full((len(LENGTHS), max(LENGTHS)), PADDING[kind])
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        ids[row, :length] = torch.randint(2, SIZES["vocab_size"], (length,))
        mask[row, :length] = 1
        if kind == "bert":
            types[row, length // 2:length] = 1
    logits, states = module(input_ids=ids, attention_mask=mask, token_type_ids=types)
    dlogits = torch.randn(logits.shape).float()
    (logits * dlogits).sum().backward()
    save = lambda key, value: tensors.__setitem__(f"{name}/{key}", value.detach().clone().contiguous())
    save("ids", ids.int())
    save("types", types.int())
    save("lengths", torch.tensor(LENGTHS).int())
    save("states", (states * mask[:, :, None]).float())
    save("logits", logits.float())
    save("dlogits", dlogits)
    for parameter, value in module.named_parameters():
        save(f"value/{parameter}", value.float())
        gradient = torch.zeros_like(value) if value.grad is None else value.grad
        if value.requires_grad:
            save(f"gradient/{parameter}", gradient.float())


if __name__ == "__main__":
    case("bert", "bert", Library("bert"))
    case("roberta", "roberta", Library("roberta"))
    case("bert_mean", "bert", Pooled("bert", "mean", [10], nn.ReLU))
    case("roberta_max", "roberta", Pooled("roberta", "max", [9, 5], nn.SiLU))
    case("bert_cls", "bert", Pooled("bert", "cls", [7], nn.GELU))
    case("bert_attention", "bert", Pooled("bert", "attention", [6], nn.GELU))
    case("xlm", "xlm", Library("xlm"))
    case("distilbert", "distilbert", Library("distilbert"))
    case("bert_lora", "bert", Adapted("bert"))
    save_file(tensors, "text.safetensors")
