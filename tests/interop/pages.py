"""Reads ten pages with transformers and PEFT (`make interop`).

The model in slurm/ocr-base is adapted here to pages in other fonts, with LoRA on the weights in 4 bits and on dense ones; then
transformers loads the merged folder, and PEFT the adapter. Pixels of the image processor there must be those of ours to the bit, and
greedy answers to ten pages those of `evaluate predict`.

    .deps/interop/bin/python tests/interop/pages.py target/release
"""

import json
import os
import pathlib
import tempfile
import warnings

import torch
from peft import PeftModel
from PIL import Image
from text import run
from transformers import AutoTokenizer, Qwen2VLImageProcessorPil
from transformers.utils import logging
from vision_language import load

PAGES = 10
NEW_TOKENS = 160
BASE = pathlib.Path(__file__).resolve().parents[2] / "slurm/ocr-base"
ADAPT = BASE.parents[1] / "configs/ocr-adapt.yaml"
UPDATES = 60


def answers(model, folder, tokenizer, pages):
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
    pad, end = tokenizer.convert_tokens_to_ids(["<|image_pad|>", "<|im_end|>"])
    found = []
    for page in pages:
        pixels = processor([Image.open(page["image"]).convert("RGB")], return_tensors="pt")
        tokens = int(pixels["image_grid_thw"].prod()) // processor.merge_size ** 2
        content = [{"type": "image"}, {"type": "text", "text": page["prompt"]}]
        ids = tokenizer.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True, return_dict=False)
        at = ids.index(pad)
        ids = torch.tensor([ids[:at] + [pad] * tokens + ids[at + 1:]])
        with torch.no_grad():
            out = model.generate(input_ids=ids, mm_token_type_ids=(ids == pad).int(), **pixels, attention_mask=torch.ones_like(ids),
                                 do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=end, pad_token_id=end)
        new = out[0, ids.shape[1]:]
        found.append(tokenizer.decode(new[new != end]))
    return found


def compare(what, model, folder, tokenizer, pages, ours):
    theirs = answers(model, folder, tokenizer, pages)
    for page, a, b in zip(pages, theirs, ours):
        assert a == b, f"{what}: {page['image']}: transformers reads\n{a}\nand we read\n{b}"
    print(f"ok: {what}: {len(theirs)} equal answers, e.g. {theirs[0].splitlines()[0]}")


def compare_all():
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    run("ds-prep", "gen", "headers", "--preset", "moderate", "--samples", "700", "--seed", "3", "-o", "pages")
    run("ds-prep", "import", "pages/pages.jsonl", "--columns", "pages/columns.yaml", "-o", "store")
    run("ds-prep", "split", "store", "--train", "600", "--validation", "50", "--test", "50", "-o", "split.json")
    run("ds-prep", "tokenize", "split.json", "--tokenizer", str(BASE), "--max-length", "512", "-o", "tokens")
    rows = [json.loads(line) for line in pathlib.Path("pages/pages.jsonl").read_text().splitlines()[-PAGES:]]
    pages = [{"image": f"pages/{row['image']}", "prompt": "Read."} for row in rows]
    pathlib.Path("prompts.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))

    base = BASE
    for name in ["nf4", "dense"]:
        pathlib.Path(f"{name}.yaml").write_text(run("ckpt", "config", str(base)))
        run("train-stage", "sft", "-c", str(ADAPT), "-c", f"{name}.yaml", "-s", f"training.updates={UPDATES}", "--run", name)
        run("evaluate", "predict", name, "--inputs", "prompts.jsonl", "--max-new-tokens", str(NEW_TOKENS), "-o", f"{name}.jsonl")
        ours = [json.loads(line)["text"] for line in pathlib.Path(f"{name}.jsonl").read_text().splitlines()]
        for form in ["hf", "peft"]:
            run("ckpt", "export", name, "--format", form, "-o", f"{name}-{form}")
        compare(f"{name}, merged", load(f"{name}-hf"), f"{name}-hf", tokenizer, pages, ours)
        adapted = PeftModel.from_pretrained(load(base), f"{name}-peft").train(name == "nf4")
        compare(f"{name}, adapter", adapted, BASE, tokenizer, pages, ours)
        base = f"{name}-hf"


def main():
    warnings.simplefilter("ignore")
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        compare_all()
        os.chdir("/")


if __name__ == "__main__":
    main()

