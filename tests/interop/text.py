"""Opens exported models of texts with transformers and PEFT, and imports what these save (`make interop`).

Tiny encoders with random weights of every kind, and their tokenizers, on a few hundred synthetic texts in several
scripts. Tokens must be equal, and the logits of transformers and longhaul within 1e-5 of each other.

    .deps/interop/bin/python tests/interop/text.py target/release
"""

import csv
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.numpy import load_file
from safetensors.torch import save_file
from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, SentencePieceUnigramTokenizer
from transformers import (AutoModel, AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer, BertConfig, BertTokenizerFast,
                          DistilBertConfig, RobertaConfig, RobertaTokenizerFast, XLMRobertaConfig,
                          XLMRobertaTokenizerFast)
from transformers.utils import logging

BIN = pathlib.Path(sys.argv[1]).resolve()
LABELS = ["absent", "maybe", "present"]
LENGTH = 24
WORDS = """I do not sleep well at night never feel rested in the morning nothing interests me any more music sounds dull my
sister can't eat don't isn't größer früher naïve café Übung élan Ωμέγα привет мир 睡不着 今天 很累 نوم 😴 👩‍👩‍👧 e\u0301 A\u0308
zero\u200bwidth soft\u00adhyphen \u00a0space [MASK] <mask> 3.14 1,000 http://x.y/z?q=1 "quoted" (aside) ... !? -- tab\tbed""".split(" ")
CONFIG = f"""seed: 7
data: {{tokens: TOKENS}}
model: {{}}
loss: {{}}
training: {{updates: 1, batch_size: 16, validate_every: 50}}
optimizer: {{method: {{kind: adamw}}, learning_rate: 1.0e-30}}
"""
SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
OF_DISTILBERT = dict(dim=24, n_layers=2, n_heads=3, hidden_dim=40)
checks = 0


def run(*words):
    done = subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def make_texts():
    """The store and split manifest of a table of random texts; returns texts by id."""
    generator = random.Random(5)
    texts = {}
    with open("texts.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "label"])
        for number in range(400):
            words = " ".join(generator.choice(WORDS) for _ in range(generator.randrange(1, 25)))
            texts[f"t{number}"] = f"{number} {words}"
            table.writerow([f"t{number}", texts[f"t{number}"], LABELS[number % 3]])
    pathlib.Path("columns.yaml").write_text("{text: text, label: label, id: id}\n")
    run("ds-prep", "import", "texts.csv", "--columns", "columns.yaml", "-o", "store")
    run("ds-prep", "split", "store", "--train", "30%", "--validation", "10%", "--test", "60%", "--seed", "1", "-o", "split.json")
    return texts


def make_tokenizers(texts):
    """A folder with a tokenizer of each kind."""
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(texts, vocab_size=300, min_frequency=1, show_progress=False)
    pathlib.Path("words").mkdir()
    words.save_model("words")
    BertTokenizerFast.from_pretrained("words").save_pretrained("tokenizer-bert")
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(texts, vocab_size=400, min_frequency=1, special_tokens=special, show_progress=False)
    pathlib.Path("pieces").mkdir()
    pieces.save_model("pieces")
    RobertaTokenizerFast.from_pretrained("pieces").save_pretrained("tokenizer-roberta")
    unigrams = SentencePieceUnigramTokenizer()
    unigrams.train_from_iterator(texts, vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    vocabulary = [tuple(entry) for entry in json.loads(unigrams.to_str())["model"]["vocab"]]
    XLMRobertaTokenizerFast(vocab=vocabulary).save_pretrained("tokenizer-xlm")
    return {"bert": "tokenizer-bert", "distilbert": "tokenizer-bert", "roberta": "tokenizer-roberta", "xlm": "tokenizer-xlm"}


def config_of(kind, vocabulary, length=LENGTH):
    # More rows than the tokenizer has ids, as in many published models.
    common = dict(vocab_size=vocabulary + 3, num_labels=3, id2label=dict(enumerate(LABELS)),
                  label2id={label: at for at, label in enumerate(LABELS)})
    if kind == "bert":
        return BertConfig(max_position_embeddings=length, **SIZES, **common)
    if kind == "distilbert":
        return DistilBertConfig(max_position_embeddings=length, **OF_DISTILBERT, **common)
    kinds = {"roberta": RobertaConfig, "xlm": XLMRobertaConfig}
    return kinds[kind](max_position_embeddings=length + 2, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1, **SIZES, **common)


def randomised(model):
    """Larger values than the initial ones, so that every parameter matters."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            offset = 1.0 if name.lower().replace("_", "").endswith("norm.weight") else 0.0
            value.copy_(offset + 0.15 * torch.randn(value.shape))
    return model.eval()


def predictions(folder, tokens):
    """Centred logits of the test split by id, as longhaul computes them."""
    run("evaluate", "score", folder, "--data", tokens, "-o", f"{folder}-scores")
    found = {}
    for line in open(f"{folder}-scores/predictions.jsonl", encoding="utf-8"):
        record = json.loads(line)
        logs = [math.log(record["probabilities"][label]) for label in LABELS]
        found[record["id"]] = [x - sum(logs) / 3 for x in logs]
    return found


def compare(what, model, tokenizer, texts, found):
    """The logits of a model of transformers for the same texts, one batch with padding."""
    global checks
    ids = list(found)
    batch = tokenizer([texts[i] for i in ids], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt")
    if model.config.model_type == "distilbert":
        batch.pop("token_type_ids", None)
    with torch.no_grad():
        logits = model.eval()(**batch).logits.double()
    logits = logits - logits.mean(1, keepdim=True)
    error = (logits - torch.tensor([found[i] for i in ids]).double()).abs().max().item()
    assert error < 1e-5, f"{what}: the logits differ by {error:.1e}"
    assert logits.std().item() > 1e-3, f"{what}: all logits are equal"
    checks += 1
    print(f"{what}: {len(ids)} texts, logits within {error:.1e}", flush=True)


def compare_tokens(what, tokenizer, texts, tokens):
    """All ids and segments of the test split."""
    global checks
    index = json.load(open(f"{tokens}/test/index.json"))
    assert len(index["shards"]) == 1
    shard = next(pathlib.Path(tokens, "test").glob("*.safetensors"))
    arrays = load_file(shard)
    ends, id_ends = arrays["tokens.ends"].ravel(), arrays["id.ends"].ravel()
    start = id_start = 0
    for end, id_end in zip(ends, id_ends):
        name = bytes(arrays["id"].ravel()[id_start:id_end]).decode()
        theirs = tokenizer(texts[name], truncation=True, max_length=LENGTH, return_token_type_ids=True)
        assert arrays["ids"].ravel()[start:end].tolist() == theirs["input_ids"], f"{what}: {texts[name]!r}"
        assert arrays["types"].ravel()[start:end].tolist() == theirs["token_type_ids"], f"{what}: {texts[name]!r}"
        start, id_start = end, id_end
    checks += 1
    print(f"{what}: tokens of {len(ends)} texts equal", flush=True)


def train(name, tokens, *files, more=(), task="classify"):
    """One update that changes nothing, or as many as `more` says; returns the run."""
    pathlib.Path("base.yaml").write_text(CONFIG.replace("TOKENS", tokens))
    words = [word for file in ["base.yaml", *files] for word in ("-c", file)]
    run("train-stage", task, *words, *more, "--run", name)
    return name


def pretrained(name, *options):
    """The configuration for a folder of transformers."""
    pathlib.Path(f"{name}.yaml").write_text(run("ckpt", "config", name, *options))
    return f"{name}.yaml"


def old_names(state):
    """As in files that were converted from TensorFlow."""
    return {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
            for name, value in state.items()}


def save(model, tokenizer, folder, form):
    """The model in a folder, in one of the forms that exist."""
    tokenizer.save_pretrained(folder)
    if form in ("whole", "sharded"):
        model.save_pretrained(folder, **({"max_shard_size": "20KB"} if form == "sharded" else {}))
        assert (form == "sharded") == pathlib.Path(folder, "model.safetensors.index.json").exists()
        return
    model.config.save_pretrained(folder)
    state = model.state_dict()
    if form == "pickle":
        torch.save(state, f"{folder}/pytorch_model.bin")
    elif form == "old":
        torch.save(old_names(state), f"{folder}/pytorch_model.bin")
    else:
        dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[form]
        model.load_state_dict({name: value.to(dtype).to(value.dtype) for name, value in state.items()})
        save_file({name: value.to(dtype).contiguous() for name, value in state.items()}, f"{folder}/model.safetensors",
                  metadata={"format": "pt"})


def kind_of_model(kind, folder, texts):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = f"tokens-{kind}"
    run("ds-prep", "tokenize", "split.json", "--tokenizer", folder, "--max-length", str(LENGTH), "-o", tokens)
    compare_tokens(f"{kind} tokenizer", tokenizer, texts, tokens)

    # Import: every form, with the head.
    forms = ["whole", "sharded", "pickle", "f16", "bf16"] + (["old"] if kind == "bert" else [])
    for form in forms:
        model = randomised(AutoModelForSequenceClassification.from_config(config_of(kind, len(tokenizer))))
        name = f"{kind}-{form}"
        save(model, tokenizer, name, form)
        own = train(f"{name}-run", tokens, pretrained(name, "--head"))
        compare(f"{name} imported", model, tokenizer, texts, predictions(own, tokens))

    # The encoder alone, without prefix and perhaps without pooler; the head is new.
    encoder = randomised(AutoModel.from_config(config_of(kind, len(tokenizer))))
    if kind == "roberta":
        encoder.pooler = None
    save(encoder, tokenizer, f"{kind}-encoder", "whole")
    own = train(f"{kind}-encoder-run", tokens, pretrained(f"{kind}-encoder"))
    run("ckpt", "export", own, "--format", "hf", "-o", f"{kind}-encoder-back")
    model = AutoModelForSequenceClassification.from_pretrained(f"{kind}-encoder-back")
    state = dict(getattr(model, model.base_model_prefix).named_parameters())
    for key, value in encoder.named_parameters():
        if key in state:
            assert torch.equal(state[key], value), f"{kind}: {key} changed"
    compare(f"{kind} encoder imported, exported", model, AutoTokenizer.from_pretrained(f"{kind}-encoder-back"), texts,
            predictions(own, tokens))

    # Export after real updates, here without padded rows.
    base = f"{kind}-whole"
    tuned = train(f"{kind}-tuned", tokens, pretrained(base),
                  more=["-s", "training.updates=20", "-s", "optimizer.learning_rate=1e-3"])
    run("ckpt", "export", tuned, "--format", "hf", "-o", f"{tuned}-hf")
    ours = predictions(tuned, tokens)
    model = AutoModelForSequenceClassification.from_pretrained(f"{tuned}-hf")
    assert [model.config.id2label[at] for at in range(3)] == LABELS and model.config.num_labels == 3
    exported = AutoTokenizer.from_pretrained(f"{tuned}-hf")
    compare_tokens(f"{kind} tokenizer exported", exported, texts, tokens)
    assert exported.pad_token == tokenizer.pad_token and exported.model_max_length == LENGTH
    compare(f"{kind} tuned and exported", model, exported, texts, ours)
    run("ckpt", "export", tuned, "--format", "hf", "--encoder-only", "-o", f"{tuned}-encoder")
    assert AutoModel.from_pretrained(f"{tuned}-encoder").config.model_type == model.config.model_type

    # LoRA: trained here, read by PEFT, and merged.
    names = ["q_lin", "v_lin", "ffn.lin1"] if kind == "distilbert" else ["query", "value", "dense"]
    lora = f"model.lora={{r: 3, alpha: 6, targets: [{', '.join(names)}]}}"
    adapted = train(f"{kind}-lora", tokens, pretrained(base),
                    more=["-s", lora, "-s", "training.updates=20", "-s", "optimizer.learning_rate=1e-2"])
    ours = predictions(adapted, tokens)
    run("ckpt", "export", adapted, "--format", "peft", "-o", f"{adapted}-peft")
    loaded = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base), f"{adapted}-peft")
    compare(f"{kind} adapter exported", loaded, tokenizer, texts, ours)
    run("ckpt", "export", adapted, "--format", "hf", "-o", f"{adapted}-hf")
    merged = AutoModelForSequenceClassification.from_pretrained(f"{adapted}-hf")
    compare(f"{kind} adapter merged", merged, tokenizer, texts, ours)

    # Adapters that PEFT saved train as many parameters here.
    several = {
        # PEFT itself fails with "all-linear" of DistilBERT.
        "distilbert": [["q_lin", "v_lin"], ["lin1"]],
        "bert": [["query", "value"], "all-linear", ["dense"], ["output.dense"]],
    }["distilbert" if kind == "distilbert" else "bert"]
    for number, targets in enumerate(several):
        theirs = get_peft_model(AutoModelForSequenceClassification.from_pretrained(base),
                                LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=5, lora_dropout=0.1, target_modules=targets))
        with torch.no_grad():
            for name, value in theirs.named_parameters():
                if value.requires_grad:
                    value.add_(0.2 * torch.randn(value.shape))
        name = f"{kind}-peft-{number}"
        theirs.save_pretrained(name)
        files = pretrained(base, "--adapter", name)
        back = train(f"{name}-run", tokens, files)
        compare(f"{kind} adapter of {targets} imported", theirs, tokenizer, texts, predictions(back, tokens))
        words = ["classify", "-c", "base.yaml", "-c", files, "--run", "none", "--check", "--json"]
        count = json.loads(run("train-stage", *words).splitlines()[-1])["parameters"]
        trained = theirs.get_nb_trainable_parameters()[0]
        assert count == trained, f"{name}: {count} trained parameters, PEFT {trained}"


def make_contexts():
    """The split manifest of questions and contexts with an answer; returns question and context by id."""
    generator = random.Random(6)
    contexts = {}
    with open("contexts.jsonl", "w", encoding="utf-8") as file:
        for number in range(200):
            words = [generator.choice(WORDS).strip() or "x" for _ in range(generator.randrange(3, 12))]
            first = generator.randrange(len(words))
            answer = " ".join(words[first:first + 2])
            contexts[f"c{number}"] = (generator.choice(WORDS).strip() or "y", " ".join(words))
            question, context = contexts[f"c{number}"]
            file.write(json.dumps(dict(id=f"c{number}", question=question, context=context, answer=answer)) + "\n")
    pathlib.Path("answers.yaml").write_text("{text: question, context: context, answer: answer, id: id}\n")
    run("ds-prep", "import", "contexts.jsonl", "--columns", "answers.yaml", "-o", "contexts")
    run("ds-prep", "split", "contexts", "--train", "40%", "--validation", "10%", "--test", "50%", "--seed", "1", "-o", "contexts.json")
    return contexts


def compare_answers(what, model, tokenizer, contexts, own, tokens):
    """The scores of the best answer and of no answer, and the text of the answer."""
    global checks
    run("evaluate", "score", own, "--data", tokens, "-o", f"{own}-scores")
    rows = [json.loads(line) for line in open(f"{own}-scores/predictions.jsonl", encoding="utf-8")]
    worst = compared = 0
    for row in rows:
        question, context = contexts[row["id"]]
        batch = tokenizer(question, context, return_tensors="pt", return_offsets_mapping=True)
        offsets, sequences = batch.pop("offset_mapping")[0].tolist(), batch.sequence_ids(0)
        if model.config.model_type == "distilbert":
            batch.pop("token_type_ids", None)
        if batch["input_ids"].shape[1] > ANSWER_LENGTH:
            continue
        with torch.no_grad():
            out = model.eval()(**batch)
        start, end = out.start_logits[0].tolist(), out.end_logits[0].tolist()
        places = [at for at, sequence in enumerate(sequences) if sequence == 1]
        best = max((start[a] + end[b], -a, -b) for a in places for b in places if a <= b)
        worst = max(worst, abs(best[0] - row["candidates"][0]["score"]), abs(start[0] + end[0] - row["no_answer_score"]))
        assert row["candidates"][0]["text"] == context[offsets[-best[1]][0]:offsets[-best[2]][1]], f"{what}: {row}"
        compared += 1
    assert compared > 60 and worst < 2e-5, f"{what}: {compared} compared, scores differ by {worst:.1e}"
    checks += 1
    print(f"{what}: answers in {compared} contexts equal, scores within {worst:.1e}", flush=True)


ANSWER_LENGTH = 64


def answers(kind, folder, contexts):
    """Question answering models, imported and exported."""
    tokenizer, tokens = AutoTokenizer.from_pretrained(folder), f"tokens-{kind}-answers"
    run("ds-prep", "tokenize", "contexts.json", "--tokenizer", folder, "--max-length", str(ANSWER_LENGTH), "-o", tokens)
    config = config_of(kind, len(tokenizer), ANSWER_LENGTH)
    config.num_labels = 2
    model = randomised(AutoModelForQuestionAnswering.from_config(config))
    name = f"{kind}-answers"
    save(model, tokenizer, name, "whole")
    own = train(f"{name}-run", tokens, pretrained(name, "--head"), task="span")
    compare_answers(f"{kind} answers imported", model, tokenizer, contexts, own, tokens)
    tuned = train(f"{name}-tuned", tokens, pretrained(name), task="span",
                  more=["-s", "training.updates=20", "-s", "optimizer.learning_rate=1e-3"])
    run("ckpt", "export", tuned, "--format", "hf", "-o", f"{tuned}-hf")
    model = AutoModelForQuestionAnswering.from_pretrained(f"{tuned}-hf")
    compare_answers(f"{kind} answers tuned and exported", model, tokenizer, contexts, tuned, tokens)


def main():
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    torch.manual_seed(3)
    numpy.random.seed(3)
    kinds = sys.argv[2:] or ["bert", "roberta", "xlm", "distilbert"]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        texts, contexts = make_texts(), make_contexts()
        tokenizers = make_tokenizers(texts.values())
        for kind in kinds:
            kind_of_model(kind, tokenizers[kind], texts)
            answers(kind, tokenizers[kind], contexts)
        os.chdir("/")
    print(f"text: {checks} comparisons with transformers and PEFT, all equal")


if __name__ == "__main__":
    main()
