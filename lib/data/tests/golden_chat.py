#!/usr/bin/env python3
"""Writes lib/data/tests/golden/chat: tokenizers with chat templates, and conversations as transformers renders them.

    python lib/data/tests/golden_chat.py TEMPLATES

TEMPLATES holds qwen3.jinja and qwen2.jinja, the templates of Qwen3-0.6B and Qwen2.5-7B-Instruct (Apache License 2.0); by
default those that are there already. That of Llama 3 is written here after Meta's description of its prompt format. The
vocabularies are trained here, byte-level BPE with the pattern of Qwen2. A turn is what follows the header of an assistant's
message up to the end of the turn; the script finds it with a regular expression, whatever the template did to the message.
Needs transformers 5.24.
"""
import json
import re
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

HERE = Path(__file__).resolve().parent / "golden" / "chat"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = r"""{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Only system, user and assistant, not ' + message['role']) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL = {
    "qwen3": dict(cls="Qwen2Tokenizer", eos="<|im_end|>", pad="<|endoftext|>", tokens=QWEN),
    "qwen2": dict(cls="Qwen2Tokenizer", eos="<|im_end|>", pad="<|endoftext|>", tokens=QWEN),
    "llama3": dict(cls="PreTrainedTokenizerFast", eos="<|eot_id|>", pad=None, bos="<|begin_of_text|>",
                   tokens=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
}
TURN = {
    "qwen3": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)",
    "qwen2": r"<\|im_start\|>assistant\n(.*?<\|im_end\|>\n)",
    "llama3": r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)",
}


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = [
    [message("user", "What is 3 + 4?"), message("assistant", "7")],
    [message("system", "Be short."), message("user", "Who wrote it?"), message("assistant", "Ada."),
     message("user", "When?\n\n  In which year?"), message("assistant", "In 1843 – »notes«.\n\n日本語 ☃ e\u0301")],
    [message("user", " leading and trailing "), message("assistant", "  as it is  \n"), message("user", "'s it?"),
     message("assistant", "")],
    [message("user", "2 * 3?"), message("assistant", "<think>\nTwo times three.\n</think>\n\n6"), message("user", "and 5?"),
     message("assistant", "<think>\nFive times 2\nis ten.\n</think>\n\n10")],
    [message("user", "hi"), message("assistant", "one"), message("assistant", "two"), message("user", "no answer")],
]
TOOLS = [message("user", "weather?"),
         message("assistant", "", tool_calls=[{"type": "function", "function": {
             "name": "look", "arguments": {"place": "Köln <3>", "days": [1, 2.5], "wind": True, "rain": None}}}]),
         message("tool", "{\"sun\": 1}"), message("assistant", "Sunny & warm.")]


def folder(name, template):
    at, own = HERE / name, SPECIAL[name]
    at.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    if own["cls"] == "Qwen2Tokenizer":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=own["tokens"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = [m["content"] for all in CONVERSATIONS for m in all] + ["assistant", "system", "user", "think", "tool_call"] * 9
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(at / "tokenizer.json"), pretty=False)
    config = {"tokenizer_class": own["cls"], "eos_token": own["eos"], "clean_up_tokenization_spaces": False}
    config.update({key: own[short] for key, short in [("pad_token", "pad"), ("bos_token", "bos")] if own.get(short)})
    (at / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
    (at / "chat_template.jinja").write_text(template)
    return AutoTokenizer.from_pretrained(at)


def main():
    templates = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    found = []
    for name in SPECIAL:
        source = HERE / name / "chat_template.jinja" if templates is None else templates / f"{name}.jinja"
        tokenizer = folder(name, LLAMA if name == "llama3" else source.read_text())
        for messages in CONVERSATIONS + ([TOOLS] if name == "qwen3" else []):
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            turns = [match.span(1) for match in re.finditer(TURN[name], text, re.DOTALL)]
            counted = [int(any(a <= start < b for a, b in turns)) for start, _ in encoded["offset_mapping"]]
            prompt = tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
            found.append({"folder": name, "messages": messages, "text": text, "prompt": prompt,
                          "ids": encoded["input_ids"], "counted": counted})
    (HERE / "conversations.json").write_text("[\n" + ",\n".join(json.dumps(own) for own in found) + "\n]\n")


if __name__ == "__main__":
    main()
