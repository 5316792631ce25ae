//! Any byte that is changed, cut off or missing is detected or does not matter; nothing panics.

use std::fs;
use std::path::PathBuf;

use learn::checkpoint::{Manifest, load, load_newest, verify, write};
use tensor::random::{Philox, Purpose};
use unix::Exit;

use super::*;

/// A valid checkpoint and the bytes of its files.
fn good(folder: &Path, seed: u64) -> (PathBuf, State, Vec<(String, Vec<u8>)>) {
    let state = state(seed, 7);
    let path = write(folder, &state, 1).unwrap();
    let files = names(&path).into_iter();
    let files = files.map(|name| (name.clone(), fs::read(path.join(&name)).unwrap())).collect();
    (path, state, files)
}

#[test]
fn every_byte_flipped_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    let random = Philox::new(seed, Purpose::Test);
    let (path, state, files) = good(folder.path(), seed);
    let manifest = load(&path).unwrap().manifest;
    let mut flipped = 0;
    for (name, bytes) in &files {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << random.below(0, at as u64, 8);
            fs::write(path.join(name), &changed).unwrap();
            let error = load(&path).err().unwrap_or_else(|| panic!("{name}: byte {at} not found"));
            assert_eq!(error.exit, Exit::Data, "{name} {at}: {error}");
            assert!(error.to_string().contains(name), "{name} {at}: {error}");
            if at % 16 == 0 {
                is_placed(&path, &manifest, name, at as u64);
            }
            flipped += 1;
        }
        fs::write(path.join(name), bytes).unwrap();
    }
    println!("{flipped} bytes");
    assert!(flipped > 3000);
    assert!(is_same(&load(&path).unwrap(), &state));
}

/// Asserts that `verify` names the file, and the tensor that contains the byte.
fn is_placed(path: &Path, manifest: &Manifest, name: &str, at: u64) {
    let report = verify(path).unwrap();
    assert_eq!(report.damage.len(), 1, "{name} {at}: {report:?}");
    let entry = manifest.files.iter().find(|file| file.name == name);
    let tensors = entry.into_iter().flat_map(|entry| &entry.tensors);
    let within = tensors.filter(|t| (t.start..t.end).contains(&at)).map(|t| t.name.clone()).next();
    assert_eq!((report.damage[0].file.as_str(), &report.damage[0].tensor), (name, &within));
}

#[test]
fn every_cut_and_every_addition_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _, files) = good(folder.path(), seed());
    for (name, bytes) in &files {
        for cut in (0..bytes.len()).step_by(13).chain([bytes.len() - 1]) {
            fs::write(path.join(name), &bytes[..cut]).unwrap();
            assert_eq!(load(&path).unwrap_err().exit, Exit::Data, "{name} cut at {cut}");
            let report = verify(&path).unwrap();
            assert!(!report.damage.is_empty() && report.damage.iter().all(|d| d.file == *name));
        }
        fs::write(path.join(name), [bytes.as_slice(), b"\n"].concat()).unwrap();
        assert_eq!(load(&path).unwrap_err().exit, Exit::Data, "{name} longer");
        fs::write(path.join(name), bytes).unwrap();
    }
    let model = path.join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    fs::write(&model, &bytes[..bytes.len() - 3]).unwrap();
    let told: Vec<String> = verify(&path).unwrap().damage.iter().map(|d| d.to_string()).collect();
    assert!(told[0].contains("bytes, but was written with"), "{told:?}");
    assert!(told.last().unwrap().ends_with("is truncated"), "{told:?}");
}

#[test]
fn missing_and_strange_files_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let (path, state, files) = good(folder.path(), seed());
    for (name, bytes) in &files {
        let file = path.join(name);
        fs::remove_file(&file).unwrap();
        assert_eq!(load(&path).unwrap_err().exit, Exit::NoInput, "{name}");
        assert!(verify(&path).unwrap().damage[0].problem.contains("missing"));
        fs::create_dir(&file).unwrap();
        assert_eq!(load(&path).unwrap_err().exit, Exit::Data, "{name} a folder");
        fs::remove_dir(&file).unwrap();
        // Reading a pipe would block forever.
        let made = std::process::Command::new("mkfifo").arg(&file).status().unwrap();
        assert!(made.success());
        assert_eq!(load(&path).unwrap_err().exit, Exit::Data, "{name} a pipe");
        assert!(!verify(&path).unwrap().damage.is_empty());
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file).unwrap();
        assert_eq!(load(&path).unwrap_err().exit, Exit::Data, "{name} a link");
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
    }
    assert!(is_same(&load(&path).unwrap(), &state));
}

#[test]
fn damaged_checkpoints_are_skipped_for_the_newest_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    for update in [1, 2, 3, 4] {
        write(folder.path(), &state(seed, update), 1).unwrap();
    }
    let step = |n: u64| folder.path().join(format!("step-{n:08}"));
    let model = fs::read(step(4).join("model.safetensors")).unwrap();
    let mut changed = model.clone();
    changed[model.len() / 2] ^= 4;
    fs::write(step(4).join("model.safetensors"), changed).unwrap();
    fs::remove_file(step(3).join("manifest.json")).unwrap();
    for link in ["latest", "best"] {
        std::os::unix::fs::symlink("step-nowhere", folder.path().join(link)).unwrap();
    }
    assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &state(seed, 2)));
    for n in [1, 2] {
        fs::write(step(n).join("optim-0-of-1.safetensors"), b"").unwrap();
    }
    let error = load_newest(folder.path()).unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    assert!(error.to_string().contains("none of the 4"), "{error}");
}

/// A later attempt that went back to an older update is newer than what it left behind.
#[test]
fn the_later_attempt_is_newer() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    for (update, attempt) in [(10, 1), (20, 1), (30, 1), (15, 2)] {
        write(folder.path(), &state(seed, update), attempt).unwrap();
    }
    assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &state(seed, 15)));
}

/// A newer format is not damage: falling back to an older checkpoint would lose work.
#[test]
fn a_newer_format_is_refused_with_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    write(folder.path(), &state(seed, 1), 1).unwrap();
    let path = write(folder.path(), &state(seed, 2), 1).unwrap();
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    let text = text.replacen("\"format\": 1,", "\"format\": 2,", 1);
    let before = &text[..text.find("\"digest\"").unwrap()];
    let digest = blake3::hash(before.as_bytes()).to_hex();
    fs::write(&manifest, format!("{before}\"digest\": \"{digest}\"\n}}\n")).unwrap();
    for error in [load(&path).unwrap_err(), load_newest(folder.path()).unwrap_err()] {
        assert_eq!(error.exit, Exit::Data);
        assert!(error.to_string().contains("format 2"), "{error}");
    }
}
