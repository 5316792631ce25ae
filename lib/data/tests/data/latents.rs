//! Latent stores: resumed, damaged, repaired, refused.

use crate::common::manifest;
use data::fields::latents::{
    FillCounts, Key, LatentLayout, LatentStore, TrajectoryBatch, write_latents,
};
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use std::os::unix::fs::FileExt;
use std::path::Path;
use unix::{Error, Exit, Result};

const LAYOUT: LatentLayout =
    LatentLayout { frames: 5, tokens: 3, rows: 1, dim: 2, shard_samples: 5 };

/// In place of a codec: values that encode trajectory, frame, token and channel.
fn encode(batch: &TrajectoryBatch) -> Result<Vec<f32>> {
    let trajectories = batch.values.chunks_exact(batch.shape.trajectory_len());
    Ok(trajectories
        .flat_map(|u| u.chunks_exact(16))
        .flat_map(|frame| (0..6).map(|i| frame[i] + i as f32))
        .collect())
}

fn set(folder: &Path) -> TrajectorySet {
    let (path, _) = manifest(folder, &[0.01, 0.1], 5);
    TrajectorySet::open(&path, SplitName::Train, Verify::Sizes).unwrap()
}

fn make(folder: &Path, set: &TrajectorySet, codec: &str) -> Result<FillCounts> {
    write_latents(folder, &Key::new(codec, "n", "f32", set), LAYOUT, set, 2, encode)
}

#[test]
fn latents_come_back_as_they_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let set = set(folder.path());
    let store = folder.path().join("store");
    assert_eq!(make(&store, &set, "c").unwrap(), FillCounts { kept: 0, made: 5 });
    let store = LatentStore::open(&store, Some(&Key::new("c", "n", "f32", &set))).unwrap();
    store.verify().unwrap();
    assert_eq!((store.len(), store.layout()), (24, LAYOUT));
    let mut all: [Vec<f64>; 2] = Default::default();
    for i in 0..24 {
        let mut values = vec![0.0; 80];
        set.read(i, &mut values).unwrap();
        for (j, frame) in store.sample(i).chunks_exact(6).enumerate() {
            for (k, z) in frame.iter().enumerate() {
                assert_eq!(*z, values[j * 16 + k] + k as f32);
                all[k % 2].push(f64::from(*z));
            }
        }
        assert_eq!(store.frames(i, 2..4), &store.sample(i)[12..24]);
        assert_eq!(store.parameter(i), *set.entry(i).parameter);
        if i % 5 == 0 {
            assert_eq!(store.sample(i).as_ptr() as usize % 64, 0, "shard {}", i / 5);
        }
    }
    for (found, all) in store.channels().iter().zip(all) {
        let n = all.len() as f64;
        let mean = all.iter().sum::<f64>() / n;
        let variance = all.iter().map(|z| (z - mean).powi(2)).sum::<f64>() / n;
        assert!((found.mean - mean).abs() < 1e-12 && (found.std - variance.sqrt()).abs() < 1e-12);
    }
}

#[test]
fn an_interrupted_store_goes_on_and_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let set = set(folder.path());
    let (whole, broken) = (folder.path().join("whole"), folder.path().join("broken"));
    make(&whole, &set, "c").unwrap();
    let key = Key::new("c", "n", "f32", &set);
    let stopped = write_latents(&broken, &key, LAYOUT, &set, 3, |batch| match batch.first {
        13.. => Err(Error::new(Exit::Again, "told to stop")),
        _ => encode(batch),
    });
    assert_eq!(stopped.unwrap_err().exit, Exit::Again);
    let error = LatentStore::open(&broken, None).unwrap_err();
    assert!(error.to_string().contains("2 of 5 shards"), "{error}");
    assert_eq!(make(&broken, &set, "c").unwrap(), FillCounts { kept: 2, made: 3 });
    for entry in std::fs::read_dir(&whole).unwrap() {
        let name = entry.unwrap().file_name();
        let read = |folder: &Path| std::fs::read(folder.join(&name)).unwrap();
        assert!(read(&whole) == read(&broken), "{name:?} differs");
    }
    assert_eq!(make(&broken, &set, "c").unwrap(), FillCounts { kept: 5, made: 0 });
}

#[test]
fn damage_is_found_named_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let set = set(folder.path());
    let store = folder.path().join("store");
    make(&store, &set, "c").unwrap();
    let shard = |n: usize| store.join(format!("shard-{n:05}.safetensors"));
    let open = |n| std::fs::OpenOptions::new().write(true).open(shard(n)).unwrap();
    let whole = std::fs::read(shard(1)).unwrap();
    for n in [1, 3] {
        open(n).write_all_at(&[0x5a; 3], whole.len() as u64 - 77).unwrap();
    }
    let error = LatentStore::open(&store, None).unwrap().verify().unwrap_err();
    assert_eq!(error.exit, Exit::Data);
    let text = error.to_string();
    assert!(text.contains("shard-00001") && text.contains("shard-00003"), "{text}");
    assert!(!text.contains("shard-00002"), "{text}");
    assert_eq!(make(&store, &set, "c").unwrap(), FillCounts { kept: 3, made: 2 });
    LatentStore::open(&store, None).unwrap().verify().unwrap();
    assert_eq!(std::fs::read(shard(1)).unwrap(), whole);

    open(4).set_len(100).unwrap();
    let error = LatentStore::open(&store, None).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("shard-00004"), "{error}");
    std::fs::remove_file(shard(2)).unwrap();
    assert_eq!(LatentStore::open(&store, None).unwrap_err().exit, Exit::NoInput);
    assert_eq!(make(&store, &set, "c").unwrap(), FillCounts { kept: 3, made: 2 });
    LatentStore::open(&store, None).unwrap().verify().unwrap();
}

#[test]
fn stale_latents_are_refused_by_readers_and_made_again_by_the_writer() {
    let folder = tempfile::tempdir().unwrap();
    let set = set(folder.path());
    let store = folder.path().join("store");
    make(&store, &set, "c").unwrap();
    let key = Key::new("d", "n", "f32", &set);
    let error = LatentStore::open(&store, Some(&key)).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("another codec"), "{error}");
    assert_eq!(make(&store, &set, "d").unwrap(), FillCounts { kept: 0, made: 5 });
    LatentStore::open(&store, Some(&key)).unwrap().verify().unwrap();
    let other = LatentLayout { shard_samples: LAYOUT.shard_samples + 1, ..LAYOUT };
    assert_eq!(write_latents(&store, &key, other, &set, 2, encode).unwrap().kept, 0);
    std::fs::write(store.join("index.json"), "{torn").unwrap();
    assert_eq!(make(&store, &set, "d").unwrap(), FillCounts { kept: 0, made: 5 });
}

#[test]
fn a_codec_that_returns_nonsense_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let set = set(folder.path());
    let key = Key::new("c", "n", "f32", &set);
    let outcome = |latents: Vec<f32>| {
        let store = folder.path().join("store");
        write_latents(&store, &key, LAYOUT, &set, 1, |_| Ok(latents.clone())).unwrap_err()
    };
    assert_eq!(outcome(vec![0.0; 29]).exit, Exit::Bug);
    let error = outcome([vec![0.0; 29], vec![f32::NAN]].concat());
    assert!(error.exit == Exit::Data && error.to_string().contains("latent 29"), "{error}");
}
