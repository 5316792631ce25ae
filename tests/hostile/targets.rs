//! Fuzzing targets: each reader, with valid files mutated in their own structure. A reader may accept or refuse a file;
//! it must not panic, hang, or allocate memory for data that does not exist.

use std::fs;
use std::path::{Path, PathBuf};

use data::fields::latents::LatentStore;
use data::fields::split::{Split, SplitName};
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use data::seal;
use learn::checkpoint;
use learn::foreign;
use learn::results::{Analysis, Board, Comparison};
use serde_json::Value;
use tasks::pde::codec::CodecTask;
use tensor::Dtype;
use unix::slurm::{Slurm, time_left_of};

use super::arrays;
use super::mutate::Mutator;

/// A reader by name.
pub type Target = (&'static str, fn(&Path, &mut Mutator));

/// Each works in a copy of the fixture and restores it.
pub const TARGETS: [Target; 15] = [
    ("safetensors", safetensors),
    ("pickle", pickle),
    ("checkpoint", checkpoint),
    ("log and status", records),
    ("evaluations and leaderboards", results),
    ("configuration", configuration),
    ("split and statistics", data_set),
    ("latents", latents),
    ("times", times),
    ("names", names),
    ("field in npy", arrays::npy),
    ("field in npz", arrays::npz),
    ("field in a table", arrays::table),
    ("field in zarr", arrays::zarr),
    ("field in safetensors", arrays::safetensors),
];

/// Writes `bytes`, calls `read`, and restores the original content.
pub fn with(path: &Path, bytes: &[u8], read: impl FnOnce(&Path)) {
    let before = fs::read(path).ok();
    fs::write(path, bytes).unwrap();
    read(path);
    match before {
        Some(before) => fs::write(path, before).unwrap(),
        None => fs::remove_file(path).unwrap(),
    }
}

pub fn document(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn read_weights(path: &Path) {
    let Ok(file) = foreign::open(path) else { return };
    for stored in file.tensors() {
        let _ = file.read(stored, Dtype::F32);
    }
}

/// A safetensors file with another header, with the right length prefix.
pub fn new_header(chaos: &mut Mutator, bytes: &[u8]) -> Vec<u8> {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let header = match chaos.below(3) {
        0 => chaos.bytes(header),
        _ => chaos.json(&serde_json::from_slice(header).unwrap()).to_string().into_bytes(),
    };
    [&(header.len() as u64).to_le_bytes()[..], &header, data].concat()
}

fn safetensors(folder: &Path, chaos: &mut Mutator) {
    let good = fs::read(folder.join("weights.safetensors")).unwrap();
    let bytes = if chaos.below(4) == 0 { chaos.bytes(&good) } else { new_header(chaos, &good) };
    with(&folder.join("fuzzed"), &bytes, read_weights);
}

/// A valid PyTorch file with changed bytes, or with only its pickle changed, in an intact archive.
fn pickle(folder: &Path, chaos: &mut Mutator) {
    const FILES: [&str; 5] = ["state_dict", "dtypes", "views", "nested", "protocol4"];
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/torch");
    let good = fs::read(golden.join(format!("{}.pt", FILES[chaos.below(5)]))).unwrap();
    let bytes = if chaos.below(3) == 0 { chaos.bytes(&good) } else { new_pickle(chaos, &good) };
    with(&folder.join("fuzzed"), &bytes, read_weights);
}

/// Rewrites the entries of an archive with `data.pkl` changed.
fn new_pickle(chaos: &mut Mutator, good: &[u8]) -> Vec<u8> {
    new_archive(good, "data.pkl", |content| match chaos.below(3) {
        0 => chaos.bytes(content),
        _ => chaos.sizes(content.to_vec()),
    })
}

/// Rewrites the entries of an archive without compression, changing those whose names have this suffix; checksums and
/// offsets are correct.
pub fn new_archive(
    good: &[u8],
    changed: &str,
    mut change: impl FnMut(&[u8]) -> Vec<u8>,
) -> Vec<u8> {
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([good[at], good[at + 1]]));
    let u32_at = |at: usize| u16_at(at) + (u16_at(at + 2) << 16);
    let end = good.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    let (count, mut at) = (u16_at(end + 10), u32_at(end + 16));
    let mut members = Vec::new();
    for _ in 0..count {
        let (size, names, extra) = (u32_at(at + 24), u16_at(at + 28), u16_at(at + 30));
        let (name, local) = (good[at + 46..at + 46 + names].to_vec(), u32_at(at + 42));
        let start = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        let mut content = good[start..start + size].to_vec();
        if name.ends_with(changed.as_bytes()) {
            content = change(&content);
        }
        members.push((name, content));
        at += 46 + names + extra + u16_at(at + 32);
    }
    archive(&members)
}

/// A zip archive of these members, uncompressed.
pub fn archive(members: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in members {
        let crc = crc32fast::hash(content).to_le_bytes();
        let size = (content.len() as u32).to_le_bytes();
        let length = (name.len() as u16).to_le_bytes();
        let place = (out.len() as u32).to_le_bytes();
        let common = [&[0; 8][..], &crc, &size, &size, &length, &[0; 2]].concat();
        out.extend([b"PK\x03\x04\x14\x00", &common[..], name, content].concat());
        let tail = [&[0; 10][..], &place, name].concat();
        directory.extend([b"PK\x01\x02\x14\x00\x14\x00", &common[..], &tail].concat());
    }
    let (start, size) = (out.len() as u32, directory.len() as u32);
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([members.len() as u16; 2].map(u16::to_le_bytes).concat());
    out.extend([size, start].map(u32::to_le_bytes).concat());
    out.extend([0, 0]);
    out
}

/// A changed manifest or header whose digests were recomputed.
fn checkpoint(folder: &Path, chaos: &mut Mutator) {
    let path = folder.join("run/ckpt/step-00000006");
    let other = folder.join("run/ckpt/step-00000004");
    let manifest = path.join("manifest.json");
    let mut fields = document(&manifest);
    fields.as_object_mut().unwrap().remove("digest");
    let look = |_: &Path| {
        let _ = checkpoint::verify(&path);
        let _ = checkpoint::load(&path);
        let _ = checkpoint::diff(&other, &path);
        let _ = checkpoint::listing(folder);
        for entry in checkpoint::manifest_of(&path).iter().flat_map(|m| &m.files) {
            let _ = checkpoint::statistics(&path, entry, |_| true, |_| Ok(()));
        }
    };
    match chaos.below(3) {
        0 => with(&manifest, &sealed(&chaos.json(&fields)), look),
        1 => {
            let good = fs::read(&manifest).unwrap();
            with(&manifest, &chaos.bytes(&good), look);
        }
        _ => {
            let files = fields["files"].as_array_mut().unwrap();
            let at = chaos.below(files.len());
            let file = path.join(files[at]["name"].as_str().unwrap());
            let bytes = new_header(chaos, &fs::read(&file).unwrap());
            files[at]["bytes"] = bytes.len().into();
            files[at]["blake3"] = blake3::hash(&bytes).to_hex().as_str().into();
            let text = sealed(&fields);
            with(&manifest, &text, |_| with(&file, &bytes, look));
        }
    }
}

fn sealed(fields: &Value) -> Vec<u8> {
    let mut text = String::from("{\n");
    for (name, value) in fields.as_object().into_iter().flatten() {
        text += &format!("{}: {value},\n", Value::from(name.as_str()));
    }
    text += &format!("\"digest\": \"{}\"\n}}\n", blake3::hash(text.as_bytes()).to_hex());
    text.into_bytes()
}

fn records(folder: &Path, chaos: &mut Mutator) {
    let log = fs::read_to_string(folder.join("run/log.jsonl")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    let line: Value = serde_json::from_str(lines[chaos.below(lines.len())]).unwrap();
    let text =
        [log.as_bytes(), chaos.json(&line).to_string().as_bytes(), &chaos.text(&log)].concat();
    with(&folder.join("fuzzed"), &text, |path| drop(unix::log::read(path)));
    let status = chaos.json(&document(&folder.join("run/status.json"))).to_string();
    with(&folder.join("fuzzed"), status.as_bytes(), |path| drop(unix::status::read(path)));
}

/// A metrics.json, and a log and a leaderboard with a further line whose checksum is right.
fn results(folder: &Path, chaos: &mut Mutator) {
    let scored = folder.join("scored");
    let metrics = chaos.json(&document(&scored.join("metrics.json"))).to_string();
    with(&scored.join("metrics.json"), metrics.as_bytes(), |_| {
        let comparison = Comparison::read(std::slice::from_ref(&scored));
        let _ = comparison.map(|comparison| comparison.lines());
    });
    for name in ["run/log.jsonl", "board.jsonl"] {
        let path = folder.join(name);
        let log = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        let line: Value = serde_json::from_str(lines[chaos.below(lines.len())]).unwrap();
        let Value::Object(mut record) = chaos.json(&line) else { continue };
        record.shift_remove("crc");
        if record.is_empty() {
            continue;
        }
        with(&path, log.as_bytes(), |path| {
            let _ = unix::log::append_once(path, &record, |other| *other == record);
            let _ = Analysis::read(&folder.join("run"));
            let board = Board::read(&folder.join("board.jsonl"), false).unwrap();
            let text = board.document(&["nrmse".to_string()]).html();
            assert!(text.ends_with("</html>\n") && board.csv().is_ok());
        });
    }
}

fn configuration(folder: &Path, chaos: &mut Mutator) {
    let good = fs::read_to_string(folder.join("codec.yaml")).unwrap();
    let yaml = chaos.text(&(good + "x: &a [1, *a]\ny: ${A:-b}\n"));
    let overrides = ["training.updates=5", "schedule=[{kind: linear}]", "note=a: b", "a.0.b=${X}"];
    let with_override = overrides[chaos.below(4)];
    let overrides = [String::from_utf8_lossy(&chaos.text(with_override)).into_owned()];
    with(&folder.join("fuzzed"), &yaml, |path| {
        let files = [PathBuf::from(path)];
        let variable = |name: &str| (name.len() == 1).then(|| "value".to_string());
        let _ = learn::task::load_config::<CodecTask>(&files, &[], &variable);
        let good = [folder.join("codec.yaml")];
        let _ = learn::task::load_config::<CodecTask>(&good, &overrides, &variable);
    });
}

fn data_set(folder: &Path, chaos: &mut Mutator) {
    let split = chaos.json(&document(&folder.join("split.json"))).to_string();
    with(&folder.join("fuzzed"), split.as_bytes(), |path| {
        if let Ok((split, _)) = Split::load(path) {
            let _ = split.rows(path);
        }
        if let Ok(set) = TrajectorySet::open(path, SplitName::Train, Verify::Sizes) {
            let mut values = vec![0.0; set.shape().trajectory_len()];
            (0..set.len()).for_each(|i| drop(set.read(i, &mut values)));
        }
    });
    let stats = document(&folder.join("stats.json"));
    let text = seal::sealed(&chaos.json(&stats).to_string());
    let set = TrajectorySet::open(&folder.join("split.json"), SplitName::Train, Verify::Sizes);
    let set = set.unwrap();
    with(&folder.join("fuzzed"), text.as_bytes(), |path| drop(Stats::load(path, &set)));
}

fn latents(folder: &Path, chaos: &mut Mutator) {
    let store = folder.join("latents/train");
    let look = |_: &Path| {
        let Ok(store) = LatentStore::open(&store, None) else { return };
        let _ = store.verify();
        for i in 0..store.len().min(1000) {
            let _ = (store.sample(i).len(), store.parameter(i));
        }
    };
    let (index, shard) = (store.join("index.json"), store.join("shard-00000.safetensors"));
    if chaos.below(2) == 0 {
        return with(
            &index,
            seal::sealed(&chaos.json(&document(&index)).to_string()).as_bytes(),
            look,
        );
    }
    let bytes = new_header(chaos, &fs::read(&shard).unwrap());
    let mut fields = document(&index);
    fields["shards"][0]["bytes"] = bytes.len().into();
    with(&index, seal::sealed(&fields.to_string()).as_bytes(), |_| with(&shard, &bytes, look));
}

fn times(_: &Path, chaos: &mut Mutator) {
    const GOOD: [&str; 8] = [
        "1-02:03:04",
        "UNLIMITED",
        "05:00",
        "1h30m",
        "300",
        "2d",
        "1:00\n2-3\nINVALID",
        "18446744073709551615d",
    ];
    let good = GOOD[chaos.below(8)];
    let text = chaos.text(good);
    let text = String::from_utf8_lossy(&text);
    let _ = unix::time::parse_duration(&text).map(unix::time::format_duration);
    let _ = unix::time::parse_limit(&text);
    let _ = time_left_of(&text);
    let facts = Slurm::from_variables(|name| Some(format!("{name}{text}").split_off(name.len())));
    let _ = facts.map(|facts| facts.id());
}

fn names(_: &Path, chaos: &mut Mutator) {
    let text = chaos.text("core.*.weight=1D_Burgers_Sols_Nu0.001.hdf5");
    let text = String::from_utf8_lossy(&text);
    let _ = unix::text::matches(&text, "core.0.weight.*.1D");
    let _ = data::fields::parameter::Parameter::from_file_name(&text);
    if let Some(path) = unix::small::inside(Path::new("a"), &text) {
        assert_eq!(path.parent(), Some(Path::new("a")), "{text:?}");
    }
}
