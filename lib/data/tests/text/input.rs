//! The ids of a text do not depend on the way in which it is read.

use super::*;
/// Texts of blanks, controls, marks, quotes and characters beyond the basic plane; at least some lines end in each of them.
fn texts() -> Vec<String> {
    let parts = [
        " ",
        "  ",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "\u{85}",
        "\r",
        "\n",
        "\r\n",
        "\0",
        "\u{7f}",
        "\u{feff}",
        "\u{200b}",
        "e\u{301}",
        "\u{e9}",
        "\u{1f469}\u{200d}\u{1f52c}",
        "\u{1f600}",
        "\u{fb01}",
        "I\u{307}",
        "\u{df}",
        "\"",
        ",",
        "\\",
        "'",
        "{",
        "[",
        "a",
        "The",
        "word",
        "ing",
        "n\u{304}",
        "\u{4e2d}",
        "\u{ac00}",
    ];
    let mut state = test_support::seed();
    let mut next = |below: usize| {
        // Knuth's MMIX.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut all: Vec<String> =
        ["", " ", "\u{feff}", "\u{feff} x", " x ", "x\r", "\0"].map(String::from).into();
    while all.len() < 500 {
        let count = next(12);
        all.push((0..count).map(|_| parts[next(parts.len())]).collect());
    }
    all
}

/// All texts, as predictions read them.
fn new_texts(path: &Path) -> Vec<String> {
    let needs = Needs { text: true, text2: false, context: false };
    let mut rows = NewTexts::open(path, needs, None).unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.read().unwrap() {
        found.push(row.text.unwrap());
    }
    found
}

#[test]
fn a_text_has_the_same_ids_whichever_way_it_is_read() {
    let (temporary, all) = (tempfile::tempdir().unwrap(), texts());
    let path = |name: &str| temporary.path().join(name);
    let table = |delimiter: u8| {
        let mut writer = csv::WriterBuilder::new().delimiter(delimiter).from_writer(Vec::new());
        writer.write_record(["id", "text"]).unwrap();
        for (i, text) in all.iter().enumerate() {
            writer.write_record([&i.to_string(), text]).unwrap();
        }
        writer.into_inner().unwrap()
    };
    let object = |text: &String| serde_json::json!({"text": text, "id": 1}).to_string();
    let objects: Vec<String> = all.iter().map(object).collect();
    // What a line cannot be: several, one that ends in a carriage return, an object.
    let is_line =
        |text: &&String| !text.contains('\n') && !text.ends_with('\r') && !text.starts_with('{');
    let lines: Vec<String> = all.iter().filter(is_line).cloned().collect();
    assert!(lines.len() > 250, "{}", lines.len());
    let mark = "\u{feff}";
    let files: [(&str, Vec<u8>, &[String]); 9] = [
        ("a.csv", table(b','), &all),
        ("a.tsv", table(b'\t'), &all),
        ("a.jsonl", (objects.join("\n") + "\n").into(), &all),
        ("b.ndjson", (mark.to_string() + &objects.join("\r\n")).into(), &all),
        ("c.json", format!("{mark}\n [{}\n]\n", objects.join(" ,\n")).into(), &all),
        ("d.json", (objects.join("\n") + "\n").into(), &all),
        ("a.txt", (mark.to_string() + &lines.join("\n") + "\n").into(), &lines),
        ("b.txt", (mark.to_string() + &lines.join("\r\n") + "\r\n").into(), &lines),
        ("c", (objects.join("\n") + "\n").into(), &all),
    ];
    std::fs::write(path("columns.yaml"), "text: text\nid: id\n").unwrap();
    let columns = Columns::load(&path("columns.yaml")).unwrap();
    for (name, content, expected) in &files {
        std::fs::write(path(name), content).unwrap();
        assert!(new_texts(&path(name)) == *expected, "{name}");
    }
    for (name, ..) in files.iter().filter(|(name, ..)| !name.ends_with(".txt") && *name != "c") {
        let store = path(&format!("{name}.store"));
        import(&columns, &[path(name)], &store, |_| Ok(())).unwrap();
        let shares = [Share::Fraction(1.0), Share::Count(0), Share::Count(0)];
        let request = DivideRequest {
            by: By::Index,
            group_by: None,
            shares,
            fixed: &[],
            seed: 0,
            near: None,
        };
        let manifest = path(&format!("{name}.split.json"));
        let split: TextSplit = divide(&request, &[store], &manifest).unwrap();
        split.save(&manifest).unwrap();
        let set = TextSet::open(&manifest, SplitName::Train).unwrap();
        for (i, text) in all.iter().enumerate() {
            let (store, record) = set.locate(i);
            assert_eq!(store.texts(record)[0], Some(text.as_str()), "{name}: {i}");
        }
        for tokenizer in ["bert", "roberta"] {
            let folder = path(&format!("{name}.{tokenizer}"));
            let of_files = Tokenizer::open(&self::folder().join(tokenizer), 64).unwrap();
            tokenize(&manifest, &of_files, 64, None, &folder, |_| Ok(())).unwrap();
            let tokens = TokenSet::open(&folder, SplitName::Train).unwrap();
            // As predictions encode them.
            let saved = Tokenizer::open(&folder, 64).unwrap();
            let pairs: Vec<_> = all.iter().map(|text| [Some(text.as_str()), None]).collect();
            for (i, encoded) in saved.encode_all(&pairs).unwrap().iter().enumerate() {
                assert_eq!(tokens.ids(i), encoded.ids, "{name}, {tokenizer}: {i}");
            }
        }
    }
}

#[test]
fn a_damaged_token_is_found_when_its_record_is_read() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    std::fs::write(path("columns.yaml"), "text: text\n").unwrap();
    std::fs::write(path("a.csv"), "text\nab cd\nef gh\nij kl\n").unwrap();
    let columns = Columns::load(&path("columns.yaml")).unwrap();
    import(&columns, &[path("a.csv")], &path("store"), |_| Ok(())).unwrap();
    let shares = [Share::Fraction(1.0), Share::Count(0), Share::Count(0)];
    let request =
        DivideRequest { by: By::Index, group_by: None, shares, fixed: &[], seed: 0, near: None };
    let split: TextSplit = divide(&request, &[path("store")], &path("split.json")).unwrap();
    split.save(&path("split.json")).unwrap();
    let tokenizer = Tokenizer::open(&folder().join("bert"), 16).unwrap();
    tokenize(&path("split.json"), &tokenizer, 16, None, &path("tokens"), |_| Ok(())).unwrap();
    let set = || TokenSet::open(&path("tokens"), SplitName::Train).unwrap();
    assert_eq!((set().len(), set().segments()), (3, 1));
    let ids: Vec<i32> = (0..3).flat_map(|i| set().checked(i).unwrap().ids.to_vec()).collect();
    let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let shard = std::fs::read_dir(path("tokens/train")).unwrap().map(|e| e.unwrap().path());
    let shard = shard.into_iter().find(|p| p.extension().is_some_and(|e| e == "safetensors"));
    let mut bytes = std::fs::read(shard.as_ref().unwrap()).unwrap();
    let at = bytes.windows(ids.len()).position(|found| found == ids).unwrap();
    let second = 4 * set().ids(0).len();
    bytes[at + second..][..4].copy_from_slice(&30_000_i32.to_le_bytes());
    std::fs::write(shard.unwrap(), bytes).unwrap();
    let damaged = set();
    let error = damaged.checked(1).map(drop).unwrap_err();
    assert_eq!(error.exit, unix::Exit::Data);
    assert!(error.to_string().contains("the tokens of record 1 are damaged"), "{error}");
    assert!(damaged.checked(0).is_ok() && damaged.checked(2).is_ok());
}

#[test]
fn files_of_new_texts_are_refused_with_the_line() {
    let temporary = tempfile::tempdir().unwrap();
    let needs = Needs { text: true, text2: false, context: false };
    for (name, content, count, message) in [
        ("a.csv", "id,txt\n1,a\n", 0, "line 1: no column text; did you mean txt?"),
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n\n{\"text\": \"b\"}\n",
            1,
            "line 2: empty, not a JSON object",
        ),
        ("b.jsonl", "\n{\"text\": \"a\"}\n", 0, "line 1: empty, not a JSON object"),
        ("c.jsonl", "{\"text\": \"a\"}\n\n\n", 1, ""),
        ("a.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"", 1, "line 2: the array has no end"),
        (
            "b.json",
            "[{\"text\": \"a\"}\n{\"text\": \"b\"}]",
            1,
            "line 2: the objects of the array must be separated",
        ),
        ("c.json", "[{\"text\": \"a\"}]\n[]", 1, "line 2: there is text after the array"),
        ("d.json", "[{\"text\": [1]}]", 0, "line 1: column `text`: neither text nor a number"),
        ("e.json", "[1]", 0, "line 1: not a JSON object"),
        ("f.json", "[]", 0, ""),
        (
            "a.txt",
            "a\n\n{\"txt\": 1}\n",
            2,
            "line 3: the model reads `text`, but the line has neither",
        ),
    ] {
        let path = temporary.path().join(name);
        std::fs::write(&path, content).unwrap();
        let read = || -> unix::Result<()> {
            let mut rows = NewTexts::open(&path, needs, None)?;
            for _ in 0..count {
                assert!(rows.read()?.is_some(), "{name}");
            }
            assert!(rows.read()?.is_none(), "{name}");
            Ok(())
        };
        let found = read().map_err(|error| error.to_string()).err().unwrap_or_default();
        assert!(
            found.contains(message) && found.is_empty() == message.is_empty(),
            "{name}: {found}"
        );
    }
}
