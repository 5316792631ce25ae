#!/usr/bin/env python3
"""Makes golden/tokenizers/: small tokenizers of BERT, RoBERTa and XLM-R, and how transformers encodes texts with them.

Run it in this folder; needs transformers 5.24 and tokenizers 0.23. `bert` has vocab.txt, `roberta` has vocab.json and
merges.txt, and `bert-json` and `roberta-json` the tokenizer.json that transformers makes of these; `xlm-json` has the
tokenizer.json of a Unigram model. encodings.json lists ids, segment types and offsets in characters for each folder, text and largest length.
"""
import json
from pathlib import Path

from tokenizers import BertWordPieceTokenizer, ByteLevelBPETokenizer, SentencePieceUnigramTokenizer
from transformers import BertTokenizerFast, RobertaTokenizerFast, XLMRobertaTokenizerFast

SENTENCES = [
    "I do not sleep well at night, and I never feel rested in the morning.",
    "Nothing interests me any more; even music sounds dull.",
    "She said: “I am fine”, but she was not fine at all!",
    "Das Café ist naïve Übung, größer als früher.",
    "My sister can't eat. I eat too much, don't I?",
    "我睡不着。 今天 很累",
    "Sleeping, sleeper, slept; resting, rested, rests.",
]
TEXTS = [
    ["I do not sleep well.", None],
    ["Sleeping is not what I do; I'm resting", "SLEEP_ISSUES"],
    ["A naïve café, Übung größer", "élan"],
    ["我睡不着 means I cannot sleep", None],
    ["so tired 😴😴 today 👩‍👩‍👧 ok", "family 👩‍👩‍👧"],
    ["line one\nline two\r\n\tand a tab", "a\u00a0no-break\u2003em space  two"],
    ["  leading and trailing   ", None],
    ["", None],
    ["", "x"],
    ["zero\u200bwidth and soft\u00adhyphen and \u0301 accent and \ufffd and e\u0301", None],
    ["[MASK] <mask> a [SEP] b </s> c <s>", "x <mask>y"],
    ["a" * 150 + " end", None],
    ["I never feel rested in the morning and nothing interests me any more " * 3, "Nothing at all " * 5],
    ["short", "she was not fine at all " * 9],
]
LENGTHS = [16, 64]


def encode(tokenizer, text, text2, length):
    found = tokenizer(text, text2, truncation=True, max_length=length, return_offsets_mapping=True,
                      return_token_type_ids=True)
    return {"ids": found["input_ids"], "types": found["token_type_ids"],
            "offsets": [list(pair) for pair in found["offset_mapping"]]}


def main():
    out = Path("golden/tokenizers")
    for name in ["bert", "bert-json", "roberta", "roberta-json", "xlm-json"]:
        (out / name).mkdir(parents=True, exist_ok=True)
    words = BertWordPieceTokenizer(lowercase=True)
    words.train_from_iterator(SENTENCES, vocab_size=300, min_frequency=1)
    words.save_model(str(out / "bert"))
    pieces = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    pieces.train_from_iterator(SENTENCES, vocab_size=400, min_frequency=1, special_tokens=special)
    pieces.save_model(str(out / "roberta"))
    kinds = {"bert": BertTokenizerFast, "roberta": RobertaTokenizerFast}
    encodings = []
    tokenizers = {name: kind.from_pretrained(str(out / name)) for name, kind in kinds.items()}
    words = SentencePieceUnigramTokenizer()
    words.train_from_iterator(SENTENCES, vocab_size=150, special_tokens=special, unk_token="<unk>", show_progress=False)
    vocabulary = [tuple(entry) for entry in json.loads(words.to_str())["model"]["vocab"]]
    tokenizers["xlm"] = XLMRobertaTokenizerFast(vocab=vocabulary)
    tokenizers["xlm"].backend_tokenizer.normalizer = words.normalizer
    for name, tokenizer in tokenizers.items():
        tokenizer.backend_tokenizer.save(str(out / f"{name}-json" / "tokenizer.json"))
        for text, text2 in TEXTS:
            for length in LENGTHS:
                encodings.append({"tokenizer": name, "text": text, "text2": text2, "length": length,
                                  **encode(tokenizer, text, text2, length)})
    with open(out / "encodings.json", "w") as file:
        json.dump(encodings, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
