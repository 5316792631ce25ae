//! A loaded state equals the saved one bit for bit.

use learn::checkpoint::{load, load_newest, statistics, verify, write};
use safetensors::SafeTensors;
use tensor::Tensor;
use unix::Exit;

use super::*;

#[test]
fn a_state_round_trips_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = state(seed(), 1200);
    let special = [f32::NAN, f32::INFINITY, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX];
    let model = state.tensors.get_mut("model").unwrap();
    model.push(("special".into(), Tensor::from_slice(&special, &[5])));
    let path = write(folder.path(), &state, 3).unwrap();
    assert_eq!(path, folder.path().join("step-00001200"));
    assert_eq!(names(folder.path()), ["step-00001200"]);
    let expected =
        ["buffers.safetensors", "manifest.json", "model.safetensors", "optim-0-of-1.safetensors"];
    assert_eq!(names(&path), expected);
    let loaded = load(&path).unwrap();
    assert!(is_same(&loaded, &state));
    assert_eq!((loaded.path(), loaded.manifest.attempt), (path.as_path(), 3));
    assert!(loaded.tensors("ema").is_none());
    assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &state));
    assert_eq!(verify(&path).unwrap().damage, []);
}

/// Other tools can read our files; here, the reference implementation in Rust.
#[test]
fn the_safetensors_library_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(seed(), 1);
    let path = write(folder.path(), &state, 1).unwrap();
    for (stem, tensors) in &state.tensors {
        let bytes = std::fs::read(path.join(format!("{stem}.safetensors"))).unwrap();
        let read = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(read.len(), tensors.len());
        for (name, tensor) in tensors {
            let view = read.tensor(name).unwrap();
            assert_eq!(view.shape(), tensor.shape(), "{name}");
            let found: Vec<f64> = match view.dtype() {
                safetensors::Dtype::F32 => {
                    let four = view.data().chunks_exact(4);
                    four.map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
                }
                _ => {
                    let eight = view.data().chunks_exact(8);
                    eight.map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
                }
            };
            assert_eq!(found, tensor.to_f64(), "{name}");
        }
    }
}

/// The digests are plain BLAKE3 hashes of the files, as printed by `b3sum`.
#[test]
fn digests_are_those_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), &state(seed(), 1), 1).unwrap();
    let manifest = load(&path).unwrap().manifest;
    for file in &manifest.files {
        assert_eq!(file.blake3, unix::publish::hash_file(&path.join(&file.name)).unwrap());
        let bytes = std::fs::read(path.join(&file.name)).unwrap();
        for tensor in &file.tensors {
            let own = &bytes[tensor.start as usize..tensor.end as usize];
            assert_eq!(tensor.blake3, blake3::hash(own).to_hex().as_str());
        }
    }
}

#[test]
fn a_copy_elsewhere_under_another_name_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(seed(), 5);
    let path = write(folder.path(), &state, 1).unwrap();
    let other = folder.path().join("somewhere/the good one");
    copy(&path, &other);
    assert!(is_same(&load(&other).unwrap(), &state));
}

#[test]
fn an_older_one_of_the_same_update_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    write(folder.path(), &state(seed, 5), 1).unwrap();
    let new = state(seed + 1, 5);
    write(folder.path(), &new, 2).unwrap();
    assert_eq!(names(folder.path()), ["step-00000005"]);
    assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &new));
}

#[test]
fn nothing_there() {
    let folder = tempfile::tempdir().unwrap();
    assert!(load_newest(folder.path()).unwrap().is_none());
    assert!(load_newest(&folder.path().join("none")).unwrap().is_none());
    assert_eq!(load(&folder.path().join("none")).unwrap_err().exit, Exit::NoInput);
    assert_eq!(verify(&folder.path().join("none")).unwrap_err().exit, Exit::NoInput);
}

#[test]
fn names_that_cannot_be_stored_are_refused_and_leave_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let one = || ("a".to_string(), Tensor::scalar(1.0_f32));
    for (stem, tensors) in [("../x", vec![one()]), ("model", vec![one(), one()]), ("a/b", vec![])] {
        let state = State { tensors: [(stem.to_string(), tensors)].into(), ..State::default() };
        assert_eq!(write(folder.path(), &state, 1).unwrap_err().exit, Exit::Bug, "{stem}");
        assert!(names(folder.path()).is_empty());
    }
}

#[test]
fn statistics_are_those_of_the_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let state = state(seed(), 1);
    let path = write(folder.path(), &state, 1).unwrap();
    let manifest = load(&path).unwrap().manifest;
    let model = manifest.files.iter().find(|file| file.stem() == "model").unwrap();
    let mut found = Vec::new();
    let tell = |one| {
        found.push(one);
        Ok(())
    };
    statistics(&path, model, |name| name != "a.scale", tell).unwrap();
    let expected: Vec<&str> = vec!["core.0.weight", "core.0.bias", "no rows", "deep", "ν.große"];
    assert_eq!(found.iter().map(|s| s.tensor.as_str()).collect::<Vec<_>>(), expected);
    let values = state.tensors["model"][0].1.to_f64();
    let norm = values.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((found[0].norm.unwrap() - norm).abs() < 1e-12);
    assert_eq!(found[2].mean, None);
}
