"""Exchanges 4-bit models and their adapters with transformers, PEFT and bitsandbytes (`make interop`).

Tiny encoders with random weights. The logits of transformers and longhaul must be within 1e-5 of each other in f32. On a CPU
bitsandbytes repacks weights for evaluation and computes in bf16, so its models are compared in training mode, without dropout.

    .deps/interop/bin/python tests/interop/quantised.py target/release
"""

import json
import os
import pathlib
import sys
import tempfile
import warnings

import text
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from text import pretrained, run, train
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BitsAndBytesConfig
from transformers.utils import logging

NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout=0.0)


def compare(what, model, tokenizer, texts, found):
    """As for dense models, but in training mode."""
    model.eval = model.train
    text.compare(what, model, tokenizer, texts, found)


def load(folder, **options):
    return AutoModelForSequenceClassification.from_pretrained(folder, **options)


def adapters(base, name, tokens, tokenizer, texts):
    """LoRA on the 4-bit model in a folder: trained here and read by PEFT, trained by PEFT and read here."""
    lora = "model.lora={r: 3, alpha: 6, rslora: true, targets: all-linear}"
    words = ["-s", lora, "-s", "training.updates=20", "-s", "optimizer.learning_rate=1e-2"]
    own = train(f"{name}-own", tokens, pretrained(base, "--head"), more=words)
    ours = text.predictions(own, tokens)
    run("ckpt", "export", own, "--format", "peft", "-o", f"{own}-peft")
    compare(f"{name}: adapter exported", PeftModel.from_pretrained(load(base), f"{own}-peft"), tokenizer, texts, ours)
    run("ckpt", "export", own, "--format", "hf", "-o", f"{own}-hf")
    text.compare(f"{name}: merged", load(f"{own}-hf"), tokenizer, texts, ours)

    for number, targets in enumerate([["query", "value"], r".*layer\.1\..*dense", "all-linear"]):
        config = LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=5, target_modules=targets, use_rslora=number == 1)
        theirs = get_peft_model(load(base), config)
        with torch.no_grad():
            for key, value in theirs.named_parameters():
                if value.requires_grad:
                    value.add_(0.1 * torch.randn(value.shape))
        adapter = f"{name}-peft-{number}"
        theirs.save_pretrained(adapter)
        files = pretrained(base, "--head", "--adapter", adapter)
        back = train(f"{adapter}-run", tokens, files)
        compare(f"{name}: adapter of {targets} imported", theirs, tokenizer, texts, text.predictions(back, tokens))
        words = ["classify", "-c", "base.yaml", "-c", files, "--run", "none", "--check", "--json"]
        count = json.loads(run("train-stage", *words).splitlines()[-1])["parameters"]
        trained = theirs.get_nb_trainable_parameters()[0]
        assert count == trained, f"{adapter}: {count} trained parameters, PEFT {trained}"


def kind_of_model(kind, folder, texts):
    tokenizer, tokens = AutoTokenizer.from_pretrained(folder), f"tokens-{kind}"
    run("ds-prep", "tokenize", "split.json", "--tokenizer", folder, "--max-length", str(text.LENGTH), "-o", tokens)
    config = text.config_of(kind, len(tokenizer))
    config.update(NO_DROPOUT)
    base = f"{kind}-base"
    text.save(text.randomised(AutoModelForSequenceClassification.from_config(config)), tokenizer, base, "whole")

    # Ours, read by transformers.
    ours = f"{kind}-ours"
    run("ckpt", "quantize", base, "-o", ours)
    model = load(ours)
    layers = [layer for layer in model.modules() if type(layer).__name__ == "Linear4bit"]
    assert len(layers) == 12, f"{ours}: {len(layers)} layers in 4 bits"
    own = train(f"{ours}-run", tokens, pretrained(ours, "--head"))
    compare(f"{kind} quantised here", model, tokenizer, texts, text.predictions(own, tokens))
    adapters(ours, ours, tokens, tokenizer, texts)

    # Theirs, read here; with one layer left dense.
    for nested in [False, True]:
        theirs = f"{kind}-theirs-{nested}"
        skipped = ["classifier", "pooler", "layer.0.output.dense"]
        options = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested,
                                     llm_int8_skip_modules=skipped)
        model = load(base, quantization_config=options, dtype=torch.bfloat16)
        model.save_pretrained(theirs)
        tokenizer.save_pretrained(theirs)
        model = load(theirs)
        for value in model.parameters():
            value.data = value.data.float() if value.dtype == torch.bfloat16 else value.data
        files, lora = pretrained(theirs, "--head"), ["-s", "model.lora={targets: all-linear}"]
        for form, words in [("frozen", lora), ("dense", [])]:
            own = train(f"{theirs}-{form}", tokens, files, more=words)
            what = f"{kind} quantised there, {'nested' if nested else 'plain'} scales, {form}"
            compare(what, model, tokenizer, texts, text.predictions(own, tokens))


def main():
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        texts = text.make_texts()
        tokenizers = text.make_tokenizers(texts.values())
        for kind in ["bert", "roberta"]:
            kind_of_model(kind, tokenizers[kind], texts)
        os.chdir("/")
    print(f"quantised: {text.checks} comparisons with transformers, PEFT and bitsandbytes, all equal")


if __name__ == "__main__":
    main()
