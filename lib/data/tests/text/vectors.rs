//! Vectors beside texts, from arrays to tokens.

use super::folder;
use data::fields::write::npy_header;
use data::split::{By, DivideRequest, Share, Source, SplitName, divide};
use data::store::check::{audit, check_split};
use data::text::{
    Chunks, Columns, TextImport, TextKind, TextSet, TextSplit, TextStore, TokenSet, Tokenizer,
    Unpaired, VectorOptions, VectorStats, equal_vectors, import, import_tokens, import_with,
    tokenize,
};
use std::path::{Path, PathBuf};
use unix::Result;

fn write_npy(path: &Path, shape: &[usize], values: &[f32]) {
    let content = [&npy_header(shape), bytemuck::cast_slice::<f32, u8>(values)].concat();
    std::fs::write(path, content).unwrap();
}

/// Vector number `i`, in which dimension 2 is constant.
fn vector(i: usize) -> [f32; 3] {
    [i as f32, (i * i) as f32 / 4.0 - 5.0, 2.0]
}

fn vectors(range: std::ops::Range<usize>) -> Vec<f32> {
    range.flat_map(vector).collect()
}

fn columns(folder: &Path, text: &str) -> Columns {
    std::fs::write(folder.join("columns.yaml"), text).unwrap();
    Columns::load(&folder.join("columns.yaml")).unwrap()
}

/// Texts `word<i> …` with ids `r<i>`.
fn texts(folder: &Path, name: &str, range: std::ops::Range<usize>) -> PathBuf {
    let row = |i: usize| format!("{{\"id\": \"r{i}\", \"text\": \"number {i} of many\"}}\n");
    std::fs::write(folder.join(name), range.map(row).collect::<String>()).unwrap();
    folder.join(name)
}

pub fn manifest(folder: &Path, stores: &[PathBuf], shares: [usize; 3]) -> PathBuf {
    let shares = shares.map(Share::Count);
    let request =
        DivideRequest { by: By::Index, group_by: None, shares, fixed: &[], seed: 0, near: None };
    let path = folder.join("split.json");
    let split: TextSplit = divide(&request, stores, &path).unwrap();
    split.save(&path).unwrap();
    path
}

fn made(
    columns: &Columns,
    files: &[PathBuf],
    vectors: &VectorOptions,
    to: &Path,
) -> Result<TextStore> {
    import_with(&TextImport { columns, files, vectors, chunks: None }, to, |_| Ok(()))
}

#[test]
fn vectors_follow_their_texts_by_order_and_by_id_up_to_the_tokens() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let columns = columns(temporary.path(), "text: text\nid: id\n");
    let files = [texts(temporary.path(), "a.jsonl", 0..20)];
    write_npy(&path("a.npy"), &[12, 3], &vectors(0..12));
    write_npy(&path("b.npy"), &[7, 1, 3], &vectors(12..19));
    write_npy(&path("c.npy"), &[3], &vector(19));
    let of = |names: &[&str]| VectorOptions {
        files: names.iter().map(|name| path(name)).collect(),
        ..VectorOptions::default()
    };
    let by_order =
        made(&columns, &files, &of(&["a.npy", "b.npy", "c.npy"]), &path("store")).unwrap();
    assert_eq!((by_order.len(), by_order.kind().vector), (20, 3));
    for i in 0..20 {
        assert_eq!(by_order.vector(i), Some(&vector(i)[..]), "{i}");
        assert_eq!(by_order.texts(i)[0], Some(&*format!("number {i} of many")));
    }
    // Rows in another order, and as f64 from safetensors, are found by their ids.
    let order: Vec<usize> = (0..20).map(|i| i * 7 % 20).collect();
    let values: Vec<f64> = order.iter().flat_map(|i| vector(*i)).map(f64::from).collect();
    let header = format!(
        "{{\"v\":{{\"dtype\":\"F64\",\"shape\":[20,3],\"data_offsets\":[0,{}]}}}}",
        values.len() * 8
    );
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(8));
    let length = (header.len() as u64).to_le_bytes();
    let bytes = [&length, header.as_bytes(), bytemuck::cast_slice(&values)].concat();
    std::fs::write(path("d.safetensors"), bytes).unwrap();
    let ids: String = order.iter().map(|i| format!("r{i}\n")).collect();
    std::fs::write(path("ids.txt"), ids).unwrap();
    let options = VectorOptions { ids: Some(path("ids.txt")), ..of(&["d.safetensors"]) };
    let by_id = made(&columns, &files, &options, &path("by-id")).unwrap();
    assert!((0..20).all(|i| by_id.vector(i) == by_order.vector(i)));

    // The statistics of a split are those of all shards, without reading a vector again.
    let split = manifest(temporary.path(), &[path("store")], [14, 3, 3]);
    let tokenizer = Tokenizer::open(&folder().join("bert"), 16).unwrap();
    tokenize(&split, &tokenizer, 16, None, &path("tokens"), |_| Ok(())).unwrap();
    let tokens = TokenSet::open(&path("tokens"), SplitName::Train).unwrap();
    assert_eq!((tokens.len(), tokens.info().vector, tokens.info().kind().vector), (14, 3, 3));
    assert!((0..14).all(|i| tokens.vector(i) == Some(&vector(i)[..]) && tokens.ids(i).len() > 2));
    let found = tokens.vector_statistics().unwrap();
    let mean = |d: usize| (0..14).map(|i| f64::from(vector(i)[d])).sum::<f64>() / 14.0;
    let deviation = |d: usize| {
        let square = |i| (f64::from(vector(i)[d]) - mean(d)).powi(2);
        ((0..14).map(square).sum::<f64>() / 14.0).sqrt()
    };
    assert_eq!(found.count, 14);
    for d in 0..3 {
        assert!((found.mean[d] - mean(d)).abs() < 1e-12 * (1.0 + mean(d).abs()));
        assert!((found.deviation[d] - deviation(d)).abs() < 1e-12 * (1.0 + deviation(d)));
    }
    let stats = VectorStats::of(&TextSet::open(&split, SplitName::Train).unwrap()).unwrap();
    assert_eq!(stats.vector.iter().map(|one| one.mean).collect::<Vec<_>>(), found.mean);
    let sets = TextSet::open_all(&split).unwrap();
    let remarks = <TextKind as data::store::Content>::remarks(&sets);
    assert!(
        remarks.iter().any(|r| r.contains("1 of 3 dimensions of the vectors are constant (2)"))
    );
    assert!(check_split::<TextKind>(&split, f32::INFINITY).unwrap().problems.is_empty());
}

#[test]
fn texts_and_vectors_without_a_partner_are_refused_or_counted() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    let columns = columns(temporary.path(), "text: text\nid: id\n");
    let files = [texts(temporary.path(), "a.jsonl", 0..6)];
    write_npy(&path("a.npy"), &[5, 3], &vectors(2..7));
    std::fs::write(path("ids.txt"), "r2\nr3\nr4\nr5\nr6\n").unwrap();
    let mut options = VectorOptions { files: vec![path("a.npy")], ..VectorOptions::default() };
    let error = |options: &VectorOptions| {
        let error = made(&columns, &files, options, &path("store")).map(drop).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Data, "{error}");
        error.to_string()
    };
    assert!(error(&options).contains("a.npy: 5 vectors for 6 records"), "{}", error(&options));
    options.ids = Some(path("ids.txt"));
    let found = error(&options);
    assert!(found.contains("2 texts have no vector, and 1 vectors no text"), "{found}");
    assert!(found.contains("line 1: no vector has its id r0"), "{found}");
    assert!(found.contains("no text has the id r6 of a vector"), "{found}");
    options.unpaired = Unpaired::Drop;
    let store = made(&columns, &files, &options, &path("store")).unwrap();
    assert_eq!(store.len(), 4);
    assert!((0..4).all(|i| store.vector(i) == Some(&vector(i + 2)[..])));
    assert!((0..4).all(|i| store.id(i) == Some(&*format!("r{}", i + 2))));
    let mut values = vectors(2..7);
    values[4] = f32::NAN;
    write_npy(&path("a.npy"), &[5, 3], &values);
    let found = error(&options);
    assert!(found.contains("a.npy: record 1: its vector is NaN at 1"), "{found}");
    write_npy(&path("a.npy"), &[5, 3, 1], &vectors(2..7));
    let wrong = made(&columns, &files, &options, &path("other")).map(drop).unwrap_err();
    assert!(wrong.to_string().contains("vectors are [N, D], [N, 1, D] or [D]"), "{wrong}");
    std::fs::write(path("ids.txt"), "r2\nr3\nr2\nr5\nr6\n").unwrap();
    write_npy(&path("a.npy"), &[5, 3], &vectors(2..7));
    assert!(error(&options).contains("lines 1 and 3 have the same id"), "{}", error(&options));
}

#[test]
fn vectors_alone_and_texts_alone_are_stores_of_their_own_kind() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    // The last two vectors are equal.
    let values = [vectors(0..9), vector(8).to_vec()].concat();
    write_npy(&path("a.npy"), &[10, 3], &values);
    let options = VectorOptions { files: vec![path("a.npy")], ..VectorOptions::default() };
    let alone = made(&Columns::default(), &[], &options, &path("alone")).unwrap();
    assert_eq!((alone.len(), alone.kind().vectors_only, alone.texts(3)), (10, true, [None, None]));
    assert_eq!((alone.vector(3), alone.line(3)), (Some(&vector(3)[..]), 4));
    let split = manifest(temporary.path(), &[path("alone")], [6, 2, 2]);
    let tokenizer = Tokenizer::open(&folder().join("bert"), 16).unwrap();
    tokenize(&split, &tokenizer, 16, None, &path("tokens"), |_| Ok(())).unwrap();
    let tokens = TokenSet::open(&path("tokens"), SplitName::Train).unwrap();
    assert_eq!((tokens.len(), tokens.ids(0).len(), tokens.texts(0)), (6, 0, [None, None]));
    assert_eq!(tokens.vector(5), Some(&vector(5)[..]));
    // Records with equal vectors share a group, and stores of other kinds a manifest with none of these.
    let groups: Vec<_> = (0..10).map(|i| alone.group(i)).collect();
    assert!(groups[8] == groups[9] && groups[7] != groups[8]);
    let columns = columns(temporary.path(), "text: text\n");
    let files = [texts(temporary.path(), "a.jsonl", 0..10)];
    let plain = import(&columns, &files, &path("plain"), |_| Ok(())).unwrap();
    let why = alone.difference(&plain).unwrap();
    assert!(why.contains("vectors of 3 numbers without texts"), "{why}");
    assert_eq!(plain.vector(0), None);

    // Two different texts with one vector, in two splits.
    let both = made(&columns, &files, &options, &path("both")).unwrap();
    assert_eq!(both.len(), 10);
    let split = manifest(temporary.path(), &[path("both")], [9, 0, 1]);
    let report = audit::<TextKind>(&[split], equal_vectors).unwrap();
    let messages: Vec<&str> = report.problems.iter().map(|one| one.message.as_str()).collect();
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(messages[0].contains("record 9: has the same vector as record 8 of"), "{messages:?}");
}

#[test]
fn chunks_of_a_document_share_a_group_and_have_numbered_ids() {
    let temporary = tempfile::tempdir().unwrap();
    let columns = columns(temporary.path(), "text: text\nid: id\n");
    let text = "One sentence here. Another one follows. The third is last.";
    let rows = format!(
        "{{\"id\": \"a\", \"text\": \"{text}\"}}\n{{\"id\": \"b\", \"text\": \"Short.\"}}\n"
    );
    let files = [temporary.path().join("a.jsonl")];
    std::fs::write(&files[0], rows).unwrap();
    let vectors = VectorOptions::default();
    let plan = TextImport {
        columns: &columns,
        files: &files,
        vectors: &vectors,
        chunks: Some(Chunks::new(30, 0).unwrap()),
    };
    let store = import_with(&plan, &temporary.path().join("store"), |_| Ok(())).unwrap();
    let all: Vec<_> = (0..store.len())
        .map(|i| (store.id(i).unwrap(), store.group_name(i).unwrap(), store.texts(i)[0].unwrap()))
        .collect();
    let ids: Vec<&str> = all.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids, ["a#0", "a#1", "a#2", "b#0"]);
    assert_eq!(all.iter().map(|(_, group, _)| *group).collect::<String>(), "aaab");
    assert_eq!(all[..3].iter().map(|(.., text)| *text).collect::<String>(), text);
    assert!(all[..3].iter().all(|(.., text)| text.trim_end().ends_with('.')));
}

/// The bytes of a NumPy file of another dtype than f32.
fn npy(descr: &str, length: usize, bytes: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({length},), }}\n");
    let length = (text.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], text.as_bytes(), bytes].concat()
}

/// Writes ids, and a mask that keeps the first `kept`.
fn write_npz(path: &Path, ids: &[i64], kept: usize) {
    let mut archive = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let mask: Vec<u8> = (0..ids.len()).map(|i| u8::from(i < kept)).collect();
    let ids = npy("<i8", ids.len(), bytemuck::cast_slice(ids));
    let mask = npy("|b1", mask.len(), &mask);
    for (name, content) in [("input_ids.npy", ids), ("attention_mask.npy", mask)] {
        archive.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        std::io::Write::write_all(&mut archive, &content).unwrap();
    }
    archive.finish().unwrap();
}

#[test]
fn folders_of_tokens_and_vectors_are_paired_by_stem() {
    let temporary = tempfile::tempdir().unwrap();
    let path = |name: &str| temporary.path().join(name);
    for folder in ["tokens/train", "tokens/val", "latents/train", "latents/val"] {
        std::fs::create_dir_all(path(folder)).unwrap();
    }
    let tokenizer = Tokenizer::open(&folder().join("bert"), 64).unwrap();
    let encoded = tokenizer.encode("a b c", None).unwrap().ids;
    let padded: Vec<i64> = encoded.iter().map(|id| i64::from(*id)).chain([0, 0]).collect();
    write_npz(&path("tokens/train/b_tokens.npz"), &padded, encoded.len());
    write_npz(&path("tokens/train/a.npz"), &padded[..4], 3);
    write_npz(&path("tokens/val/c.npz"), &padded, encoded.len());
    write_npz(&path("tokens/val/lonely.npz"), &padded, 1);
    write_npy(&path("latents/train/a.npy"), &[3], &vector(1));
    write_npy(&path("latents/train/b.npy"), &[1, 3], &vector(2));
    write_npy(&path("latents/val/c.npy"), &[2, 3], &vectors(3..5));
    write_npy(&path("latents/val/other.npy"), &[3], &vector(9));
    let copied =
        |unpaired| import_tokens(temporary.path(), &tokenizer, unpaired, &path("out"), |_| Ok(()));
    let error = copied(Unpaired::Refuse).map(drop).unwrap_err();
    assert_eq!(error.exit, unix::Exit::Data);
    for text in ["2 files have no partner", "lonely.npz: no vector", "other.npy: no tokens"] {
        assert!(error.to_string().contains(text), "{error}");
    }
    let sets = copied(Unpaired::Drop).unwrap();
    assert_eq!(sets.iter().map(TokenSet::len).collect::<Vec<_>>(), [2, 1]);
    let train = &sets[0];
    assert_eq!((train.id(0), train.id(1)), (Some("a"), Some("b")));
    assert_eq!((train.ids(0), train.ids(1)), (&encoded[..3], &encoded[..]));
    assert_eq!((train.vector(0), train.vector(1)), (Some(&vector(1)[..]), Some(&vector(2)[..])));
    assert_eq!(train.texts(1)[0], Some("a b c"));
    assert_eq!(sets[1].vector(0), Some(&vector(3)[..]));
    assert_eq!(train.vector_statistics().unwrap().mean[0], 1.5);

    write_npz(&path("tokens/val/c.npz"), &[3, 1_000_000], 2);
    let error = copied(Unpaired::Drop).map(drop).unwrap_err();
    assert!(error.to_string().contains("c.npz: input_ids has 1000000"), "{error}");
}
