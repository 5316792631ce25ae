//! Tokens equal those of transformers, and those of a text do not depend on the way in which it is read.

mod chat;
mod chunks;
mod images;
mod input;
mod sentences;
mod vectors;

use data::split::{By, DivideRequest, Share, SplitName, divide};
use data::text::{
    Columns, Encoded, Needs, NewTexts, TextSet, TextSplit, TokenSet, Tokenizer, import, tokenize,
};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// An entry of encodings.json, see golden_tokenizers.py.
#[derive(Deserialize)]
struct Golden {
    tokenizer: String,
    text: String,
    text2: Option<String>,
    length: usize,
    ids: Vec<i32>,
    types: Vec<u8>,
    offsets: Vec<[i32; 2]>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers")
}

#[test]
fn ids_types_and_character_offsets_are_those_of_transformers() {
    let text = std::fs::read(folder().join("encodings.json")).unwrap();
    let goldens: Vec<Golden> = serde_json::from_slice(&text).unwrap();
    assert!(goldens.len() >= 50);
    let mut tokenizers: HashMap<(String, usize), Tokenizer> = HashMap::new();
    let mut truncated = 0;
    for golden in &goldens {
        for name in [golden.tokenizer.clone(), format!("{}-json", golden.tokenizer)] {
            // Unigram models exist only as tokenizer.json.
            if !folder().join(&name).exists() {
                continue;
            }
            let open = || Tokenizer::open(&folder().join(&name), golden.length).unwrap();
            let key = (name.clone(), golden.length);
            let tokenizer = tokenizers.entry(key).or_insert_with(open);
            let found = tokenizer.encode(&golden.text, golden.text2.as_deref()).unwrap();
            let (ids, types) = (golden.ids.clone(), golden.types.clone());
            let offsets = golden.offsets.clone();
            // The last text ends before the last special token, and begins after one.
            let last = found.last.clone();
            let special = tokenizer.special();
            if !last.is_empty() {
                assert_eq!((last.end, Some(ids[last.end])), (ids.len() - 1, special.sep), "{name}");
                let before = Some(ids[last.start - 1]);
                assert!([special.cls, special.sep].contains(&before), "{name}: {last:?}");
            }
            let expected = Encoded { ids, types, offsets, last, truncated: found.truncated };
            assert_eq!(found, expected, "{name}: {:?} {:?}", golden.text, golden.text2);
            assert!(found.ids.len() == golden.length || !found.truncated);
            truncated += usize::from(found.truncated);
            let texts = [Some(golden.text.as_str()), golden.text2.as_deref()];
            assert_eq!(tokenizer.encode_all(&[texts]).unwrap(), [expected]);
        }
    }
    assert!(truncated > 10 && truncated < goldens.len(), "{truncated}");
}

#[test]
fn tokenizers_know_their_special_tokens() {
    let open = |name: &str| Tokenizer::open(&folder().join(name), 16).unwrap();
    for (name, expected) in [("bert", (0, 2, 3, 4, 1)), ("roberta", (1, 0, 2, 4, 3))] {
        let of_files = open(name);
        let special = of_files.special();
        let [cls, sep, mask, unk] =
            [special.cls, special.sep, special.mask, special.unk].map(Option::unwrap);
        assert_eq!((special.padding, cls, sep, mask, unk), expected, "{name}");
        let of_json = open(&format!("{name}-json"));
        assert_eq!(of_json.special(), special);
        assert_eq!(of_json.vocabulary(), of_files.vocabulary());
    }
}

#[test]
fn folders_without_a_usable_tokenizer_are_refused() {
    let temporary = tempfile::tempdir().unwrap();
    let error = || Tokenizer::open(temporary.path(), 16).map(drop).unwrap_err();
    let write = |name: &str, text: &str| std::fs::write(temporary.path().join(name), text).unwrap();
    assert_eq!(
        (error().exit, error().to_string().contains("vocab.txt")),
        (unix::Exit::NoInput, true)
    );
    write("vocab.txt", "[PAD]\n[UNK]\na\n");
    assert!(error().to_string().contains("no token [CLS]"), "{}", error());
    write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n");
    assert!(error().to_string().contains("no token [PAD]"), "{}", error());
    write("tokenizer.json", "{\"version\": \"1.0\"");
    assert_eq!(error().exit, unix::Exit::Data);
    let error = Tokenizer::open(&folder().join("bert"), 3).map(drop).unwrap_err();
    assert!(error.to_string().contains("3 special tokens leave no room"), "{error}");
}

/// Values of tokenizers 0.23.3 in Python, whose `longest_first` knows how long both texts are.
#[test]
fn pairs_lose_tokens_of_the_longer_text_first() {
    for (lengths, most, kept) in [
        ([20, 19], 16, [7, 6]),
        ([19, 20], 16, [6, 7]),
        ([20, 20], 16, [6, 7]),
        ([5, 40], 16, [5, 8]),
        ([40, 5], 16, [8, 5]),
        ([30, 7], 17, [7, 7]),
        ([0, 40], 17, [0, 14]),
    ] {
        let (first, second) = ("a ".repeat(lengths[0]), "b ".repeat(lengths[1]));
        let tokenizer = Tokenizer::open(&folder().join("bert"), most).unwrap();
        let found = tokenizer.encode(&first, Some(&second)).unwrap();
        let of = |segment: u8| found.types.iter().filter(|own| **own == segment).count();
        // Two special tokens belong to the first text, one to the second.
        assert_eq!([of(0) - 2, of(1) - 1], kept, "{lengths:?} {most}");
        assert!(found.truncated);
        assert_eq!(found.last, found.ids.len() - 1 - kept[1]..found.ids.len() - 1);
    }
}

/// A folder with copies of the files in a golden one, and more files.
fn copied(name: &str, more: &[(&str, &str)]) -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(folder().join(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, temporary.path().join(path.file_name().unwrap())).unwrap();
    }
    for (file, text) in more {
        std::fs::write(temporary.path().join(file), text).unwrap();
    }
    temporary
}

#[test]
fn added_tokens_of_old_files_have_their_ids() {
    let plain = Tokenizer::open(&folder().join("bert"), 16).unwrap();
    let (next, text) = (plain.vocabulary() as i32, "a [DRUG] b");
    assert!(!plain.encode(text, None).unwrap().ids.contains(&next));
    let ids = format!("{{\"[DRUG]\": {next}}}");
    let token = "{\"content\": \"[DRUG]\", \"special\": true, \"normalized\": false}";
    let decoder = format!("{{\"added_tokens_decoder\": {{\"{next}\": {token}}}}}");
    let list = "{\"additional_special_tokens\": [\"[DRUG]\"]}";
    for (file, content) in [
        ("added_tokens.json", ids.as_str()),
        ("tokenizer_config.json", &decoder),
        ("tokenizer_config.json", list),
        ("special_tokens_map.json", list),
    ] {
        let temporary = copied("bert", &[(file, content)]);
        let tokenizer = Tokenizer::open(temporary.path(), 16).unwrap();
        let found = tokenizer.encode(text, None).unwrap();
        assert_eq!(found.ids.len(), 5, "{file}: {found:?}");
        assert_eq!(found.ids[2], next, "{file}: {content}");
    }
    let error = |files: &[(&str, &str)]| {
        let error = Tokenizer::open(copied("bert", files).path(), 16).map(drop).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Data);
        error.to_string()
    };
    let far = error(&[("added_tokens.json", "{\"[DRUG]\": 1000000000}")]);
    assert!(far.contains("[DRUG] is listed with id 1000000000"), "{far}");
    let two = error(&[
        ("tokenizer_config.json", "{\"cls_token\": \"[MASK]\"}"),
        ("special_tokens_map.json", "{\"cls_token\": \"[CLS]\"}"),
    ]);
    assert!(two.contains("cls_token is [CLS], but [MASK]"), "{two}");
    for (config, text) in [
        ("{\"tokenizer_class\": \"LlamaTokenizer\"}", "tokenizer_class LlamaTokenizer"),
        ("{\"tokenizer_class\": \"RobertaTokenizer\"}", "does not read"),
        ("{\"model_input_names\": [\"input_ids\"]}", "without attention_mask"),
        ("{\"padding_side\": \"left\"}", "padding_side left"),
        ("{\"never_split\": [\"x\"]}", "never_split"),
        ("{\"do_lower_case\": 1}", "neither true nor false"),
        ("{\"a_key_of_tomorrow\": 1}", "a_key_of_tomorrow 1: the key is not known"),
    ] {
        let found = error(&[("tokenizer_config.json", config)]);
        assert!(found.contains(text), "{found}");
    }
}

#[test]
fn settings_beside_the_vocabulary_are_obeyed() {
    let of = |config: &str| {
        let temporary = copied("bert", &[("tokenizer_config.json", config)]);
        Tokenizer::open(temporary.path(), 6).unwrap()
    };
    let [right, left] = ["right", "left"].map(|side| {
        of(&format!("{{\"truncation_side\": \"{side}\"}}")).encode("a b c d e f", None)
    });
    let [right, left] = [right.unwrap(), left.unwrap()];
    let plain = Tokenizer::open(&folder().join("bert"), 16).unwrap();
    let whole = plain.encode("a b c d e f", None).unwrap().ids;
    assert_eq!(right.ids[1..5], whole[1..5]);
    assert_eq!(left.ids[1..5], whole[3..7]);
    let none = of("{\"model_input_names\": [\"input_ids\", \"attention_mask\"]}");
    assert_eq!(none.encode("a", Some("b")).unwrap().types, [0; 5]);
}

/// tokenizer.json with one part replaced, for a class that takes the file as it is.
fn with_part(name: &str, part: &str, value: serde_json::Value) -> Result<Vec<i32>, String> {
    let text = std::fs::read(folder().join(name).join("tokenizer.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    *json.pointer_mut(part).unwrap() = value;
    let temporary = copied(name, &[("tokenizer.json", &json.to_string())]);
    let found = Tokenizer::open(temporary.path(), 16)
        .and_then(|tokenizer| Ok(tokenizer.encode("a \u{fb01} b ½ Ⅷ ㌕", None)?.ids));
    found.map_err(|error| {
        assert_eq!(error.exit, unix::Exit::Data, "{error}");
        error.to_string()
    })
}

#[test]
fn damaged_and_hostile_tokenizers_are_refused_with_their_file() {
    use serde_json::json;
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let unknown = json!([{"SpecialToken": {"id": "[X]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    let twice =
        json!([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]);
    for (part, value, text) in [
        ("/model/vocab/a", json!(1_000_000_000), "an id of 1000000000 among"),
        ("/added_tokens/0/id", json!(1_000_000_000), "an id of 1000000000 among"),
        ("/post_processor/single", unknown, "adds [X], which special_tokens lacks"),
        ("/post_processor/single", twice, "each text once"),
        (
            "/normalizer",
            json!({"type": "Sequence", "normalizers": vec![double; 30]}),
            "times longer",
        ),
        ("/model/unk_token", json!("[NONE]"), "tokenizer.json"),
    ] {
        let found = with_part("bert-json", part, value).unwrap_err();
        assert!(found.contains(text) && found.contains("tokenizer.json"), "{found}");
    }
    // A table of SentencePiece whose places lie outside of it.
    let mut table = 64_u32.to_le_bytes().to_vec();
    table.extend((0..16_u32).flat_map(|i| (i << 10 | 0xff).to_le_bytes()));
    let table = base64(&table);
    let precompiled = json!({"type": "Precompiled", "precompiled_charsmap": table});
    let found = with_part("xlm-json", "/normalizer", precompiled).unwrap_err();
    assert!(found.contains("tokenizer.json"), "{found}");
}

fn base64(bytes: &[u8]) -> String {
    let digits = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |chunk: &[u8]| {
        let number = (0..3).fold(0, |n, i| n << 8 | u32::from(*chunk.get(i).unwrap_or(&0)));
        let digit = |i: usize| match i <= chunk.len() {
            true => char::from(digits[(number >> (18 - 6 * i) & 63) as usize]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}
