//! Verification of input files, sealed statistics, disjoint splits.

use crate::common::manifest;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats::Stats;
use data::inputs::{InputFile, Verifier, verify_all};
use data::provenance::shared;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unix::disk::RealDisk;
use unix::lease::{FencedDisk, Lease};
use unix::{Error, Exit, Result};

fn files(folder: &Path) -> Vec<InputFile> {
    let file = |name: &str| {
        let path = folder.join(name);
        fs::write(&path, name.repeat(1000)).unwrap();
        InputFile::read_at_start(&path, &unix::publish::hash_file(&path).unwrap())
    };
    ["a", "b", "c"].map(file).into()
}

fn settle(inputs: &[InputFile], cache: &Path) -> Result<Verifier> {
    let mut verifier = Verifier::start(inputs.to_vec(), Some((cache.into(), Arc::new(RealDisk))))?;
    assert!(verifier.wait_and_recheck(|_| true)?);
    Ok(verifier)
}

/// Waits until the timestamps of these files are older than the verifier's slack.
fn let_timestamps_age(inputs: &[InputFile], cache: &Path) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while settle(inputs, cache).unwrap().summary().cached < inputs.len() {
        assert!(Instant::now() < deadline, "the cache is never used");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn unchanged_files_are_hashed_once_and_changed_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (inputs, cache) = (files(folder.path()), folder.path().join("inputs.json"));
    // Files this new may change again within one clock tick, so they are hashed each time.
    let mut verifier = settle(&inputs, &cache).unwrap();
    assert!(verifier.summary().hashed >= 3 && verifier.summary().cached == 0);
    let_timestamps_age(&inputs, &cache);
    assert!(verifier.wait_and_recheck(|_| true).unwrap());
    let hashed = verifier.summary().hashed;
    assert!(verifier.wait_and_recheck(|_| true).unwrap());
    assert_eq!(verifier.summary().hashed, hashed, "metadata vouch for them by now");

    // A file rewritten with the same bytes is hashed and accepted.
    fs::write(&inputs[1].path, "b".repeat(1000)).unwrap();
    let again = settle(&inputs, &cache).unwrap().summary();
    assert!(again.hashed >= 1 && again.cached == 2, "{again:?}");

    // A flipped bit with the old mtime is revealed by the ctime.
    let file = fs::OpenOptions::new().write(true).open(&inputs[0].path).unwrap();
    let before = file.metadata().unwrap();
    file.write_all_at(b"c", 500).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(file.metadata().unwrap().mtime_nsec(), before.mtime_nsec());
    for error in
        [settle(&inputs, &cache).unwrap_err(), verifier.wait_and_recheck(|_| true).unwrap_err()]
    {
        assert_eq!(error.exit, Exit::Data);
        assert!(error.to_string().contains(inputs[0].path.to_str().unwrap()), "{error}");
    }
    // Another file under the same name.
    fs::rename(&inputs[2].path, &inputs[0].path).unwrap();
    fs::write(&inputs[2].path, "c".repeat(1000)).unwrap();
    let errors = verify_all(&inputs);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(settle(&inputs, &cache).unwrap_err().exit, Exit::Data);
    fs::remove_file(&inputs[0].path).unwrap();
    assert_eq!(settle(&inputs, &cache).unwrap_err().exit, Exit::NoInput);
}

#[test]
fn a_cache_only_verifies_the_recorded_hash() {
    let folder = tempfile::tempdir().unwrap();
    let (mut inputs, cache) = (files(folder.path()), folder.path().join("inputs.json"));
    let_timestamps_age(&inputs, &cache);
    let whole = fs::read_to_string(&cache).unwrap();
    // An attempt that was taken over does not replace its successor's cache.
    let runs = folder.path().join("lease");
    let lease = Lease::take(&runs, || Ok(1), &|| false).unwrap();
    let verify = || {
        let disk = Arc::new(FencedDisk::new(lease.fence().clone()));
        let mut verifier = Verifier::start(inputs.clone(), Some((cache.clone(), disk))).unwrap();
        assert!(verifier.wait_and_recheck(|_| true).unwrap());
        verifier.save();
        cache.exists()
    };
    fs::remove_file(&cache).unwrap();
    assert!(verify());
    fs::remove_file(&cache).unwrap();
    fs::write(runs.join("attempt-00000002.json"), "{}").unwrap();
    assert!(!verify());
    for damaged in
        ["", "{", "[]", &whole.replace("longhaul-inputs", "x"), &whole[..whole.len() / 2]]
    {
        fs::write(&cache, damaged).unwrap();
        assert_eq!(settle(&inputs, &cache).unwrap().summary().cached, 0, "{damaged}");
    }
    // The manifest records another hash, as after a second `split` of other files.
    inputs[0].blake3 = inputs[1].blake3.clone();
    assert_eq!(settle(&inputs, &cache).unwrap_err().exit, Exit::Data);
}

#[test]
fn a_wait_for_the_verifier_can_be_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut inputs = files(folder.path());
    let large = folder.path().join("large");
    fs::File::create(&large).unwrap().set_len(1 << 40).unwrap(); // hours to hash, and no bytes on the disk
    inputs.push(InputFile::read_at_start(&large, "0"));
    let mut verifier = Verifier::start(inputs, None).unwrap();
    assert!(!verifier.wait_and_recheck(|_| false).unwrap());
    let stop = || Err(Error::new(Exit::Again, "told to stop"));
    assert_eq!(verifier.finish(stop).unwrap_err().exit, Exit::Again);
}

#[test]
fn a_set_names_its_files_and_splits_share_no_trajectory() {
    let folder = tempfile::tempdir().unwrap();
    let (path, split) = manifest(folder.path(), &[0.01, 0.1], 6);
    let sets = SplitName::ALL.map(|name| TrajectorySet::open(&path, name, Verify::Sizes).unwrap());
    for set in &sets {
        let files: Vec<PathBuf> = set.input_files().into_iter().map(|file| file.path).collect();
        let data = (0..2).map(|number| split.file_path(number, &path));
        assert_eq!(files, std::iter::once(path.clone()).chain(data).collect::<Vec<_>>());
        assert!(verify_all(&set.input_files()).is_empty());
        for other in &sets {
            let common = shared(&set.provenance(), &other.provenance()).is_some();
            assert_eq!(common, set.name() == other.name());
        }
    }
    // Two files of the same size were swapped: their parameters differ.
    let [a, b] = [0, 1].map(|number| split.file_path(number, &path));
    let aside = folder.path().join("aside");
    for (from, to) in [(&a, &aside), (&b, &a), (&aside, &b)] {
        fs::rename(from, to).unwrap();
    }
    let error = TrajectorySet::open(&path, SplitName::Train, Verify::Sizes).unwrap_err();
    assert!(error.exit == Exit::Data && error.to_string().contains("split.json"), "{error}");
}

#[test]
fn statistics_are_sealed_and_consistent() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = manifest(folder.path(), &[0.01, 0.1], 7);
    let set = TrajectorySet::open(&path, SplitName::Train, Verify::Sizes).unwrap();
    let (stats, file) = (Stats::of(&set).unwrap(), folder.path().join("stats.json"));
    let refused = |words: &[&str]| {
        let error = Stats::load(&file, &set).unwrap_err();
        assert_eq!(error.exit, Exit::Data, "{error}");
        for word in words.iter().chain(&["stats.json"]) {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    };
    // An edit breaks the seal.
    let text = stats.text().unwrap();
    fs::write(&file, text.replacen("\"std\":", "\"std\":1", 1)).unwrap();
    refused(&["seal", "edited or damaged", "ds-prep stats"]);
    fs::write(&file, format!("{}}}", text.split(",\n\"seal\"").next().unwrap())).unwrap();
    refused(&["seal"]);
    // Sealed again, but not the statistics of this split.
    let with = |change: &dyn Fn(&mut Stats), words: &[&str]| {
        let mut changed = stats.clone();
        change(&mut changed);
        changed.save(&file).unwrap();
        refused(words);
    };
    with(&|stats| stats.channels[0].std = 0.0, &["channels[0].std", "is 0"]);
    with(&|stats| stats.channels[0].std = -1.0, &["channels[0].std", "below 0"]);
    with(&|stats| stats.overall.std = -1e-9, &["overall.std"]);
    with(&|stats| stats.regimes[1].statistics.std = -1.0, &["regimes[1].std"]);
    with(&|stats| stats.channels[0].count -= 1, &["channels[0].count"]);
    with(&|stats| stats.overall.count += 1, &["overall.count"]);
    with(&|stats| stats.regimes[0].statistics.count = 7, &["regimes"]);
    with(&|stats| stats.trajectories = 9, &["trajectories is 9, the training split has 24"]);
    with(&|stats| stats.channels.push(stats.overall), &["channels"]);
    with(&|stats| stats.files[0] = stats.files[1].clone(), &["made from split"]);
    with(&|stats| stats.split = "0".into(), &["made from split 0"]);
    stats.save(&file).unwrap();
    assert_eq!(Stats::load(&file, &set).unwrap().0, stats);
}
