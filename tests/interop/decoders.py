"""Exchanges decoders and their adapters with transformers, PEFT and bitsandbytes (`make interop`).

Tiny models of Qwen3, Qwen2 and Llama with random weights, saved by transformers, are trained here, completely, with LoRA, and with
LoRA on a base in 4 bits; then transformers and PEFT load what `ckpt export` wrote. In f32, logits must be within 1e-5 of the largest
one, losses of conversations within 1e-5 of those of `evaluate score`, and the tokens of greedy generation must be equal. On a CPU
bitsandbytes repacks weights for evaluation and computes in bf16, so its models are compared in training mode, without dropout. The
answers of `evaluate predict` are those of transformers, too.

    .deps/interop/bin/python tests/interop/decoders.py target/release
"""

import json
import os
import pathlib
import sys
import tempfile
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from text import run
from transformers import (AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaConfig, Qwen2Config,
                          Qwen3Config)
from transformers.utils import logging

LENGTH = 96
LAYERS = 2
NEW_TOKENS = 24
SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=LENGTH + NEW_TOKENS)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
# Keys of config.json that say how the file was made, and those that follow from the tokenizer.
NOT_COMPARED = {"_name_or_path", "transformers_version", "dtype", "architectures", "bos_token_id", "eos_token_id", "pad_token_id"}
CONFIG = """seed: 7
data: {tokens: TOKENS}
model: {}
loss: {}
training: {updates: 6, batch_size: 8, validate_every: 50}
optimizer: {method: {kind: adamw}, learning_rate: 5.0e-3}
"""
STILL = ["-s", "training.updates=1", "-s", "optimizer.learning_rate=1e-30"]
checks = 0


def passed(what):
    global checks
    checks += 1
    print(what, flush=True)


def make_conversations():
    """The split manifest of questions and answers; returns the messages by id."""
    run("ds-prep", "gen", "dialogues", "-o", "data", "--samples", "240", "--seed", "3")
    run("ds-prep", "import", "data/dialogues.jsonl", "--columns", "data/columns.yaml", "-o", "store")
    run("ds-prep", "split", "store", "--train", "60%", "--validation", "20%", "--test", "20%", "--seed", "1", "-o", "split.json")
    run("ds-prep", "vocabulary", "split.json", "--size", "320", "-o", "tok")
    with open("data/dialogues.jsonl", encoding="utf-8") as file:
        return {record["id"]: record["messages"] for record in map(json.loads, file)}


def config_of(kind, ids):
    # More rows than the tokenizer has ids, as in many published models.
    common = dict(vocab_size=ids + 10, **SIZES)
    if kind == "qwen3":
        return Qwen3Config(head_dim=32, tie_word_embeddings=True, **common)
    if kind == "qwen2":
        return Qwen2Config(tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=1e6), **common)
    return LlamaConfig(tie_word_embeddings=False, rope_parameters=LLAMA3, **common)


def make_base(kind, tokenizer):
    """A folder with a model in which every parameter matters: sharded, or in bf16."""
    model = AutoModelForCausalLM.from_config(config_of(kind, len(tokenizer)))
    with torch.no_grad():
        for name, value in model.named_parameters():
            offset = 1.0 if name.endswith("norm.weight") else 0.0
            value.copy_(offset + 0.15 * torch.randn(value.shape))
    if kind == "llama":
        model = model.to(torch.bfloat16)
    model.save_pretrained(kind, **({"max_shard_size": "60KB"} if kind == "qwen2" else {}))
    assert (kind == "qwen2") == pathlib.Path(kind, "model.safetensors.index.json").exists()
    tokenizer.save_pretrained(kind)


def load(folder):
    """A model that computes in f32. Those with weights in 4 bits are loaded in the dtype of their files, whatever one asks for."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for layer in model.modules():
        if type(layer).__name__ == "Linear4bit":
            layer.compute_dtype = torch.float32
    for value in model.parameters():
        value.data = value.data.float() if value.dtype == torch.bfloat16 else value.data
    return model


def configured(folder, *options):
    """The configuration for a folder of transformers."""
    name = "-".join([folder, *(option.strip("-") for option in options)]) + ".yaml"
    pathlib.Path(name).write_text(run("ckpt", "config", folder, *options))
    return name


def train(name, tokens, file, *more):
    pathlib.Path("base.yaml").write_text(CONFIG.replace("TOKENS", tokens))
    run("train-stage", "sft", "-c", "base.yaml", "-c", file, *more, "--run", name)
    return name


def export(name, form):
    """A folder with a trained model, whose files `ckpt export` has compared with it."""
    record = json.loads(run("ckpt", "export", name, "--format", form, "--json", "-o", f"{name}-{form}"))
    found = record["compared"]
    assert found["largest_difference"] <= found["tolerance"], found
    print(f"{name}: {form} exported, logits within {found['largest_difference']:.1e} (rounding: {found['tolerance']:.1e})")
    return f"{name}-{form}"


def tokens_of(tokenizer, messages):
    """The ids of a conversation, and labels: those of the assistant's turns, otherwise -100."""
    def ids(messages, prompt):
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    all_ids = ids(messages, False)
    labels = [-100] * len(all_ids)
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            turn = slice(len(ids(messages[:at], True)), len(ids(messages[: at + 1], False)))
            labels[turn] = all_ids[turn]
    return all_ids, labels


def measured(name, tokens):
    """Mean loss and number of labels of the conversations of the test split, by id."""
    run("evaluate", "score", name, "--data", tokens, "--max-new-tokens", "0", "-o", f"{name}-scores")
    with open(f"{name}-scores/predictions.jsonl", encoding="utf-8") as file:
        return {record["id"]: (record["loss"], record["labels"]) for record in map(json.loads, file)}


def compare_losses(what, model, tokenizer, conversations, found):
    worst = 0.0
    for name, (ours, count) in found.items():
        ids, labels = tokens_of(tokenizer, conversations[name])
        assert count == sum(label != -100 for label in labels), f"{what}: {name} has {count} labels"
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0].double()
        theirs = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(labels[1:]), ignore_index=-100).item()
        worst = max(worst, abs(ours - theirs) / theirs)
    assert worst < 1e-5, f"{what}: the losses differ by {worst:.1e}"
    passed(f"{what}: losses of {len(found)} conversations within {worst:.1e}")


def compare_logits(what, a, b, tokenizer, conversations):
    worst = largest = 0.0
    for messages in conversations:
        ids = torch.tensor([tokens_of(tokenizer, messages)[0]])
        with torch.no_grad():
            left, right = a(ids).logits, b(ids).logits
        largest = max(largest, left.abs().max().item())
        worst = max(worst, (left - right).abs().max().item())
    assert worst < 1e-5 * largest, f"{what}: the logits differ by {worst:.1e}, the largest is {largest:.1f}"
    passed(f"{what}: logits of {len(conversations)} conversations within {worst:.1e}, the largest is {largest:.1f}")


def generated(model, tokenizer, prompts, stops):
    """The tokens of answers, without what follows the end."""
    answers = []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        found = model.generate(**ids, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=stops,
                               pad_token_id=tokenizer.pad_token_id)
        answers.append(found[0, ids["input_ids"].shape[1]:].tolist())
    return answers


def compare_answers(what, name, merged, other, tokenizer, prompts):
    """Greedy answers of the exported model and of another form of it, if there is one, and of the run itself."""
    stops = merged.generation_config.eos_token_id
    answers = generated(merged, tokenizer, prompts, stops)
    count = sum(map(len, answers))
    assert count > 3 * len(prompts), f"{what}: the answers end too early to be compared"
    if other is not None:
        assert answers == generated(other, tokenizer, prompts, stops), f"{what}: the answers differ"
        passed(f"{what}: {count} tokens of {len(prompts)} answers equal")
    with open("prompts.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": prompt}) + "\n" for prompt in prompts)
    run("evaluate", "predict", name, "--inputs", "prompts.jsonl", "--max-new-tokens", str(NEW_TOKENS), "-o", f"{name}.jsonl")
    with open(f"{name}.jsonl", encoding="utf-8") as file:
        ours = [json.loads(line)["text"] for line in file]
    assert ours == tokenizer.batch_decode(answers, skip_special_tokens=True), f"{what}: evaluate predict differs"
    passed(f"{what}: {len(ours)} answers of evaluate predict equal")


def compare_folder(what, folder, base, tokenizer, conversations):
    """Configuration and tokenizer of an exported model beside those of the model that training started from."""
    ours, theirs = (AutoConfig.from_pretrained(name).to_dict() for name in (folder, base))
    for key in (ours.keys() | theirs.keys()) - NOT_COMPARED:
        assert ours.get(key) == theirs.get(key), f"{what}: {key} is {ours.get(key)!r}, not {theirs.get(key)!r}"
    exported = AutoTokenizer.from_pretrained(folder)
    assert exported.get_vocab() == tokenizer.get_vocab()
    for key in ["eos_token", "pad_token", "bos_token", "unk_token", "chat_template"]:
        assert getattr(exported, key) == getattr(tokenizer, key), f"{what}: {key}"
    for messages in conversations:
        assert tokens_of(exported, messages) == tokens_of(tokenizer, messages), f"{what}: {messages}"
    for text in ["  two  spaces\n\n1234 don't naïve e\u0301 睡不着 😴 <|im_start|>x<|im_end|>", ""]:
        assert exported(text)["input_ids"] == tokenizer(text)["input_ids"], f"{what}: {text!r}"
        assert exported.decode(exported(text)["input_ids"]) == tokenizer.decode(tokenizer(text)["input_ids"])
    settings = GenerationConfig.from_pretrained(folder)
    assert settings.eos_token_id == tokenizer.eos_token_id and settings.pad_token_id == tokenizer.pad_token_id
    passed(f"{what}: configuration and tokenizer equal")


def kind_of_model(kind, conversations, prompts):
    tokenizer, tokens = AutoTokenizer.from_pretrained("tok"), f"tokens-{kind}"
    make_base(kind, tokenizer)
    run("ds-prep", "tokenize", "split.json", "--tokenizer", kind, "--max-length", str(LENGTH), "-o", tokens)
    texts = list(conversations.values())[:40]

    # As it is, and trained completely.
    own = train(f"{kind}-still", tokens, configured(kind), *STILL)
    compare_losses(f"{kind} imported", load(kind).eval(), tokenizer, conversations, measured(own, tokens))
    own = train(f"{kind}-full", tokens, configured(kind), "-s", "optimizer.learning_rate=1e-3")
    folder = export(own, "hf")
    compare_folder(f"{kind} exported", folder, kind, tokenizer, texts)
    model = load(folder).eval()
    compare_losses(f"{kind} trained completely", model, tokenizer, conversations, measured(own, tokens))
    compare_answers(f"{kind} trained completely", own, model, None, tokenizer, prompts)

    # LoRA, on the same base and on one in 4 bits.
    nf4 = f"{kind}-nf4"
    run("ckpt", "quantize", kind, "-o", nf4)
    quantised = AutoModelForCausalLM.from_pretrained(nf4)
    layers = [name for name, layer in quantised.named_modules() if type(layer).__name__ == "Linear4bit"]
    assert len(layers) == 7 * LAYERS and not any("lm_head" in name for name in layers), layers
    for base, lora in [(kind, "{r: 3, alpha: 6, targets: [q_proj, v_proj, down_proj]}"),
                       (nf4, "{r: 4, alpha: 8, rslora: true, targets: all-linear}")]:
        own = train(f"{base}-lora", tokens, configured(base), "-s", f"model.lora={lora}")
        merged = load(export(own, "hf")).eval()
        # In training mode, bitsandbytes computes in f32.
        adapted = PeftModel.from_pretrained(load(base), export(own, "peft")).train(base == nf4)
        found = measured(own, tokens)
        compare_losses(f"{own} merged", merged, tokenizer, conversations, found)
        compare_losses(f"{own} adapter", adapted, tokenizer, conversations, found)
        compare_logits(f"{own} merged and adapter", merged, adapted, tokenizer, texts)
        compare_answers(own, own, merged, adapted, tokenizer, prompts)

        # Adapters that PEFT saved.
        for number, targets in enumerate([["q_proj", "o_proj"], r".*layers\.1\..*_proj", "all-linear"]):
            config = LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=5, target_modules=targets, use_rslora=number == 1)
            theirs = get_peft_model(load(base), config).train(base == nf4)
            with torch.no_grad():
                for value in theirs.parameters():
                    if value.requires_grad:
                        value.add_(0.1 * torch.randn(value.shape))
            adapter = f"{base}-peft-{number}"
            theirs.save_pretrained(adapter)
            back = train(f"{adapter}-run", tokens, configured(base, "--adapter", adapter), *STILL)
            what = f"{base}: adapter of {targets} imported"
            compare_losses(what, theirs, tokenizer, conversations, measured(back, tokens))


def main():
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.manual_seed(4)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        conversations = make_conversations()
        prompts = [messages[:-1] for messages in list(conversations.values())[:10]]
        for kind in ["qwen3", "qwen2", "llama"]:
            kind_of_model(kind, conversations, prompts)
        os.chdir("/")
    print(f"decoders: {checks} comparisons with transformers, PEFT and bitsandbytes, all equal")


if __name__ == "__main__":
    main()
