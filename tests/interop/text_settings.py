"""Settings in folders of models and tokenizers: each key that longhaul-files(5) lists gets an unusual value, and longhaul
must then compute the tokens and probabilities of transformers, or refuse the folder (`make interop`).

    .deps/interop/bin/python tests/interop/text_settings.py target/release
"""

import csv
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

import text
from text import BIN, SIZES, WORDS, randomised

LABELS = ["no", "yes"]
LENGTH = 17
RUN = """seed: 1
data: {tokens: tokens}
model: {}
loss: {}
training: {updates: 1, batch_size: 64}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-30}
"""
REFUSED = (65, 78)
MARKED = "[MARK]"


def attempt(*words):
    """None, or the message with which a program refuses its input; anything else fails the test."""
    done = subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    assert done.returncode in REFUSED and done.stderr.strip(), f"{words}: {done.returncode} {done.stderr}"
    return done.stderr.strip().splitlines()[-1]


def make_pairs():
    generator = random.Random(8)
    words = WORDS + [MARKED, "[MASK]", "<mask>", "Word", "  ", "<pad>"]
    some = lambda: " ".join(generator.choice(words) for _ in range(generator.randrange(1, 14)))
    pairs = [(f"T{number} {some()}", some()) for number in range(60)]
    with open("pairs.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["a", "b", "label"])
        table.writerows((a, b, LABELS[number % 2]) for number, (a, b) in enumerate(pairs))
    pathlib.Path("columns.yaml").write_text("{text: a, text2: b, label: label}\n")
    text.run("ds-prep", "import", "pairs.csv", "--columns", "columns.yaml", "-o", "store")
    text.run("ds-prep", "split", "store", "--by", "index", "-o", "split.json")
    pathlib.Path("run.yaml").write_text(RUN)
    with open("pairs.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"text": a, "text2": b}) + "\n" for a, b in pairs)
    return pairs


def make_folders(pairs):
    """Models with heads, and their tokenizers as tokenizer.json and in the old files."""
    texts = [word for pair in pairs for word in pair]
    tokenizers = text.make_tokenizers(texts)
    for kind in ("bert", "distilbert", "roberta"):
        tokenizer = AutoTokenizer.from_pretrained(tokenizers[kind])
        config = text.config_of(kind, len(tokenizer), 40)
        config.id2label, config.label2id = dict(enumerate(LABELS)), {label: at for at, label in enumerate(LABELS)}
        if kind == "roberta":
            config.type_vocab_size = 2
        model = randomised(AutoModelForSequenceClassification.from_config(config))
        model.save_pretrained(kind)
        tokenizer.save_pretrained(kind)
        change(kind, "tokenizer_config.json", {"tokenizer_class": "RobertaTokenizer" if kind == "roberta" else "BertTokenizer"})
    for kind, files in (("bert", "words"), ("roberta", "pieces")):
        slow = f"{kind}-slow"
        shutil.copytree(kind, slow)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            os.remove(f"{slow}/{name}")
        shutil.copytree(files, slow, dirs_exist_ok=True)
    ids = sorted(json.load(open("bert/tokenizer.json"))["model"]["vocab"].values())
    return {"bert": ids[-1] + 1, "roberta": max(json.load(open("pieces/vocab.json")).values()) + 1}


def change(folder, name, keys):
    """Sets keys of a JSON file; a name a/b is a key of a mapping; DELETE removes."""
    path = pathlib.Path(folder, name)
    content = json.loads(path.read_text()) if path.exists() else {}
    for key, value in keys.items():
        *outer, last = key.split("/")
        part = content
        for step in outer:
            part = part[step]
        if value == "DELETE":
            part.pop(last, None)
        else:
            part[last] = value
    path.write_text(json.dumps(content))


def theirs(folder, pairs):
    """Tokens, segments and probabilities of transformers."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    rows = []
    for a, b in pairs:
        batch = tokenizer(a, b, truncation=True, max_length=LENGTH, return_tensors="pt")
        if model.config.model_type == "distilbert":
            batch.pop("token_type_ids", None)
        ids = batch["input_ids"][0].tolist()
        with torch.no_grad():
            logits = model(**batch).logits[0]
        # Without problem_type several labels are exclusive.
        p = torch.sigmoid(logits) if model.config.problem_type == "multi_label_classification" else torch.softmax(logits, 0)
        rows.append((ids, {model.config.id2label[at]: value for at, value in enumerate(p.tolist())}))
    return rows


def ours(folder):
    """The same by longhaul, or the message of a refusal."""
    for name in ("tokens", "run"):
        shutil.rmtree(name, ignore_errors=True)
    message = attempt("ds-prep", "tokenize", "split.json", "--tokenizer", folder, "--max-length", str(LENGTH), "-o", "tokens")
    if message:
        return message
    made = subprocess.run([str(BIN / "ckpt"), "config", folder, "--head"], capture_output=True, text=True)
    if made.returncode:
        assert made.returncode in REFUSED, made.stderr
        return made.stderr.strip().splitlines()[-1]
    pathlib.Path("encoder.yaml").write_text(made.stdout)
    message = attempt("train-stage", "classify", "-c", "run.yaml", "-c", "encoder.yaml", "--run", "run")
    message = message or attempt("evaluate", "predict", "run", "--inputs", "pairs.jsonl", "-o", "found.jsonl")
    if message:
        return message
    ids = []
    for split in ("train", "validation", "test"):
        arrays = load_file(next(pathlib.Path("tokens", split).glob("*.safetensors")))
        start = 0
        for end in arrays["tokens.ends"].ravel():
            ids.append(arrays["ids"].ravel()[start:end].tolist())
            start = end
    rows = [json.loads(line)["probabilities"] for line in open("found.jsonl", encoding="utf-8")]
    os.remove("found.jsonl")
    return list(zip(ids, rows))


def compare(what, folder, pairs, expected):
    found = ours(folder)
    if isinstance(found, str):
        assert expected != "equal", f"{what}: refused: {found}"
        print(f"{what}: refused: {found[-150:]}", flush=True)
        return
    assert expected != "refused", f"{what}: not refused"
    by_ids = sorted(zip(pairs, theirs(folder, pairs)), key=lambda row: row[0])
    by_text = sorted(zip(pairs, found), key=lambda row: row[0])
    worst = 0.0
    for (pair, (ids, p)), (_, (_, q)) in zip(by_ids, by_text):
        assert p.keys() == q.keys(), f"{what}: labels {p} {q}"
        worst = max(worst, max(abs(p[label] - q[label]) for label in p))
    assert sorted(ids for ids, _ in found) == sorted(ids for _, (ids, _) in by_ids), f"{what}: other tokens"
    assert worst < 1e-4, f"{what}: probabilities differ by {worst:.1e}"
    print(f"{what}: equal within {worst:.1e}", flush=True)


def cases(first):
    """Folder, file, keys, and what is expected: equal, refused, or either of them (None)."""
    config, tokenizer, special, added, file = ("config.json", "tokenizer_config.json", "special_tokens_map.json",
                                               "added_tokens.json", "tokenizer.json")
    token = dict(content=MARKED, lstrip=False, rstrip=False, single_word=False, normalized=False, special=True)
    of_bert = {str(first["bert"]): token}
    of_roberta = {str(first["roberta"]): {**token, "lstrip": True}}
    both = ("bert", "roberta")
    yield from ((folder, config, {}, "equal") for folder in ("bert", "distilbert", "roberta", "bert-slow", "roberta-slow"))
    # config.json
    for key, value in [("id2label", {"0": "yes", "1": "no"}), ("id2label", {"0": "NO", "1": "YES"}), ("id2label", "DELETE"),
                       ("id2label", {"0": "no"}), ("label2id", {"no": 1, "yes": 0}), ("num_labels", 3),
                       ("problem_type", "regression"), ("problem_type", "multi_label_classification"),
                       ("hidden_act", "relu"), ("hidden_act", "gelu_new"), ("position_embedding_type", "relative_key"),
                       ("is_decoder", True), ("add_cross_attention", True), ("pruned_heads", {"0": [1]}),
                       ("auto_map", {"AutoModel": "x.Y"}), ("quantization_config", {"load_in_8bit": True}),
                       ("per_layer_config", {"0": {"hidden_act": "relu"}}), ("a_key_of_tomorrow", 1),
                       ("architectures", ["BertForTokenClassification"]), ("vocab_size", 7), ("max_position_embeddings", 12),
                       ("hidden_size", 48), ("num_hidden_layers", 1), ("num_hidden_layers", 3), ("num_attention_heads", 5),
                       ("model_type", "roberta")]:
        keys = {key: value, **({"label2id": {"yes": 0, "no": 1}} if value == {"0": "yes", "1": "no"} else {})}
        yield "bert", config, keys, "refused"
    for key, value in [("layer_norm_eps", 0.1), ("num_attention_heads", 6), ("pad_token_id", 3), ("initializer_range", 9.0),
                       ("use_cache", False), ("hidden_dropout_prob", 0.5),
                       ("classifier_dropout", 0.7), ("attention_probs_dropout_prob", 0.3), ("bos_token_id", 7),
                       ("eos_token_id", 7), ("problem_type", "single_label_classification"), ("temperature", 0.1),
                       ("gradient_checkpointing", True), ("tie_word_embeddings", False), ("tokenizer_class", "XLNetTokenizer")]:
        yield "bert", config, {key: value}, None if key in ("pad_token_id", "tokenizer_class") else "equal"
    yield "roberta", config, {"pad_token_id": 3}, "refused"
    yield "roberta", config, {"layer_norm_eps": 0.1}, "equal"
    yield "distilbert", config, {"layer_norm_eps": 0.1}, "equal"
    yield "distilbert", config, {"sinusoidal_pos_embds": True}, None
    yield "distilbert", config, {"activation": "relu"}, "refused"
    yield "distilbert", config, {"n_heads": 6}, "equal"
    # The files of tokenizers.
    for folder in both:
        for side in ("left", "right"):
            yield folder, tokenizer, {"truncation_side": side}, "equal"
        yield folder, tokenizer, {"padding_side": "left"}, "refused"
        yield folder, tokenizer, {"model_input_names": ["input_ids", "attention_mask"]}, "equal"
        yield folder, tokenizer, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, "equal"
        yield folder, tokenizer, {"model_input_names": ["input_ids"]}, "refused"
        yield folder, tokenizer, {"model_max_length": 9, "clean_up_tokenization_spaces": True}, "equal"
        yield folder, tokenizer, {"split_special_tokens": True}, "refused"
        yield folder, tokenizer, {"add_bos_token": True}, "refused"
        yield folder, tokenizer, {"tokenizer_class": "LlamaTokenizer"}, "refused"
        yield folder, tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast"}, "equal"
        yield folder, tokenizer, {"a_key_of_tomorrow": "x"}, "refused"
        yield folder, tokenizer, {"cls_token": MARKED}, "refused"
        yield folder, tokenizer, {"sep_token": "[MASK]"}, "refused"
        yield folder, file, {"truncation": {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}}, "equal"
        yield folder, file, {"model/dropout": 0.3} if folder == "roberta" else {"model/max_input_chars_per_word": 3}, "refused"
        yield folder, file, {"normalizer": {"type": "Lowercase"}}, "refused"
        yield folder, file, {"pre_tokenizer": {"type": "Whitespace"}}, "refused"
        yield folder, file, {"post_processor": None}, "refused"
    yield "bert", tokenizer, {"do_lower_case": False}, "refused"
    yield "bert", tokenizer, {"strip_accents": False}, "refused"
    yield "bert", tokenizer, {"tokenize_chinese_chars": False}, "refused"
    yield "roberta", tokenizer, {"add_prefix_space": True}, "refused"
    for key, value in [("do_lower_case", False), ("strip_accents", False), ("tokenize_chinese_chars", False)]:
        yield "bert-slow", tokenizer, {key: value}, "equal"
    yield "bert-slow", tokenizer, {"never_split": ["Word"]}, "refused"
    yield "bert-slow", tokenizer, {"do_basic_tokenize": False}, "refused"
    yield "bert-slow", tokenizer, {"added_tokens_decoder": of_bert}, "equal"
    yield "bert-slow", tokenizer, {"added_tokens_decoder": {"9": token}}, "refused"
    yield "bert-slow", tokenizer, {"additional_special_tokens": [MARKED]}, "equal"
    yield "bert-slow", tokenizer, {"extra_special_tokens": [MARKED]}, "equal"
    yield "bert-slow", tokenizer, {"mask_token": MARKED}, "equal"
    yield "bert-slow", tokenizer, {"pad_token": "[MASK]"}, None
    yield "bert-slow", tokenizer, {"unk_token": "[MASK]"}, "equal"
    yield "bert-slow", added, {MARKED: first["bert"]}, "equal"
    yield "bert-slow", added, {MARKED: 10**9}, "refused"
    yield "bert-slow", special, {"additional_special_tokens": [MARKED]}, "equal"
    yield "bert-slow", special, {"cls_token": "[MASK]"}, None
    yield "bert-slow", special, {"a_key_of_tomorrow": "x"}, "refused"
    yield "roberta-slow", tokenizer, {"add_prefix_space": True}, "equal"
    yield "roberta-slow", tokenizer, {"trim_offsets": False}, "equal"
    yield "roberta-slow", tokenizer, {"added_tokens_decoder": of_roberta}, "equal"
    yield "roberta-slow", tokenizer, {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True}}, "equal"
    yield "roberta-slow", special, {"mask_token": {"content": "<mask>", "lstrip": True, "rstrip": False}}, "equal"
    yield "roberta-slow", added, {MARKED: first["roberta"]}, "equal"
    yield "roberta-slow", tokenizer, {"tokenizer_class": "BertTokenizer"}, "refused"


def main():
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(4)
    only = sys.argv[2:]
    count, failures = 0, []
    with tempfile.TemporaryDirectory() as temporary:
        os.chdir(temporary)
        pairs = make_pairs()
        first = make_folders(pairs)
        for base, name, keys, expected in cases(first):
            what = f"{base} {name} {json.dumps(keys)[:90]}"
            if only and not all(part in what for part in only):
                continue
            shutil.rmtree("folder", ignore_errors=True)
            shutil.copytree(base, "folder")
            if keys:
                change("folder", name, keys)
            try:
                compare(what, "folder", pairs, expected)
            except AssertionError as failure:
                failures.append(str(failure))
                print(f"FAILED {failure}", flush=True)
            count += 1
        os.chdir("/")
    assert not failures, f"{len(failures)} of {count} differ"
    assert only or count >= 60
    print(f"settings: {count} folders of transformers read alike or refused")


if __name__ == "__main__":
    main()
