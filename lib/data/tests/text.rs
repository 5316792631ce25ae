//! Tokens equal those of transformers.

use data::text::{Encoded, Tokenizer};
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
    assert!(error().to_string().contains("no padding token"), "{}", error());
    write("tokenizer.json", "{\"version\": \"1.0\"");
    assert_eq!(error().exit, unix::Exit::Data);
    let error = Tokenizer::open(&folder().join("bert"), 3).map(drop).unwrap_err();
    assert!(error.to_string().contains("3 special tokens leave no room"), "{error}");
}
