//! A run that meets a fault at a step of a save, of its log or of its status continues or is restarted, and ends with
//! the same bits as a run without faults.
//!
//! Each point is hit once with each fault, at a time chosen by a seed; under `make torture` at every time at which a
//! run reaches it.

mod disk;

use crate::common::{Captured, shell};
use learn::checkpoint::{list, load, load_newest};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use test_support::{Random, logged, seed, torture};
use unix::fail::POINTS;

const CODEC: &str = "data: {split: ../split.json, stats: ../stats.json, random_shift: true}
model: {patch: 8, latent: 4, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 8, batch_size: 4, log_every: 1, validate_every: 3, ema: 0.9, threads: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-2}
checkpoint: {every: 2, keep_last: 1, keep_best: 1}
";

/// Data and the outcome of a run without faults, made once.
struct Setup {
    folder: tempfile::TempDir,
    whole: Outcome,
}

fn setup() -> &'static Setup {
    static GROUND: OnceLock<Setup> = OnceLock::new();
    GROUND.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let output = shell(
            folder.path(),
            "ds-prep gen burgers --parameter 0.01 --samples 12 --grid 32 --frames 6 --seed 5 -o data
             ds-prep split data/*.hdf5 --seed 5 -o split.json
             ds-prep stats split.json -o stats.json
             mkdir whole",
        );
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        let output = train(&folder.path().join("whole"), "");
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        let whole = outcome(&folder.path().join("whole"));
        Setup { folder, whole }
    })
}

/// An empty folder for a run, beside the data.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(setup().folder.path()).unwrap()
}

/// One attempt at the run in `place`, with faults.
fn train(place: &Path, fail: &str) -> Captured {
    std::fs::write(place.join("codec.yaml"), CODEC).unwrap();
    shell(place, &format!("FAIL={fail} train-stage codec -c codec.yaml --run run"))
}

/// What must be equal: hashes of the tensors of the last checkpoint, and the log.
#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: BTreeMap<String, String>,
    log: Vec<String>,
}

fn outcome(place: &Path) -> Outcome {
    let last = load(&place.join("run/ckpt/step-00000008")).unwrap();
    let files = last.manifest.files.iter().map(|file| (file.name.clone(), file.blake3.clone()));
    Outcome { tensors: files.collect(), log: logged(&place.join("run")) }
}

/// Hits `point` with `fault` when it is reached for the `nth` time, and restarts until the run is finished; false when
/// the point was not reached that often.
fn hit(point: &str, nth: u64, fault: &str) -> bool {
    let place = place();
    let fail = format!("{point}:{nth}={fault}");
    let output = train(place.path(), &fail);
    if !output.stderr.contains("failpoint") {
        assert_eq!(output.status, Some(0), "{fail}: {}", output.stderr);
        return false;
    }
    assert!(fault != "kill" || output.status != Some(0), "{fail}: {}", output.stderr);
    assert!(!output.stderr.contains("panicked"), "{fail}: {}", output.stderr);
    nothing_is_lost(place.path(), &fail);
    if output.status != Some(0) {
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{fail}: {}\nthen: {}", output.stderr, again.stderr);
    }
    let whole = &setup().whole;
    let found = outcome(place.path());
    assert_eq!(found.tensors, whole.tensors, "{fail}");
    // Only the record that could not be written is missing.
    let lost = usize::from(point == "log.write" && fault != "kill");
    assert!(found.log.len() + lost >= whole.log.len(), "{fail}: {:?}", found.log);
    assert!(found.log.iter().all(|record| whole.log.contains(record)), "{fail}: {:?}", found.log);
    no_leftovers(place.path(), &fail);
    true
}

/// Asserts that all checkpoints and what `best` names are complete.
fn nothing_is_lost(place: &Path, fail: &str) {
    let folder = place.join("run/ckpt");
    load_newest(&folder).unwrap_or_else(|error| panic!("{fail}: {error}"));
    for entry in list(&folder).unwrap() {
        load(&entry.path).unwrap_or_else(|error| panic!("{fail}: {error}"));
    }
    for link in ["best", "latest"].map(|link| folder.join(link)) {
        assert!(!link.is_symlink() || load(&link).is_ok(), "{fail}: {}", link.display());
    }
}

fn hidden(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with('.')).collect()
}

/// Asserts that temporary folders of dead saves are gone. (A trash folder whose rename could not be synced may stay
/// until the next start.)
fn no_leftovers(place: &Path, fail: &str) {
    let found = hidden(&place.join("run/ckpt"));
    assert!(found.iter().all(|name| name.starts_with(".trash-")), "{fail}: {found:?}");
}

/// Hits every point with `fault`.
fn everywhere(fault: &str) {
    let mut random = Random(seed());
    let mut hits = 0;
    for point in POINTS {
        if torture() {
            let times = (1..).take_while(|nth| hit(point, *nth, fault)).count();
            assert!(times > 0, "{point} is never reached");
            println!("{point}: {times} times {fault}");
            hits += times;
            continue;
        }
        let nth = 1 + random.below(8) as u64;
        // Points that are reached rarely: try earlier times, the first as a last resort.
        let reached = [nth, 1 + nth / 4, 1].into_iter().any(|nth| hit(point, nth, fault));
        assert!(reached, "{point} is never reached");
        hits += 1;
    }
    println!("{hits} times {fault}");
}

#[test]
fn killed_at_any_point_it_ends_with_the_same_bits() {
    everywhere("kill");
}

#[test]
fn after_an_io_error_at_any_point_it_ends_with_the_same_bits() {
    everywhere("eio");
}

#[test]
fn after_a_full_disk_at_any_point_it_ends_with_the_same_bits() {
    everywhere("enospc");
}

/// The log has more updates than the restored copy; progress is judged by where each attempt resumes.
#[test]
fn restored_from_an_older_copy_it_makes_progress() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let start = |fail: &str| {
        let more = "-s training.attempts_without_progress=1 -s checkpoint.keep_last=99";
        shell(
            place.path(),
            &format!("FAIL={fail} train-stage codec -c codec.yaml --run run {more}"),
        )
    };
    assert_eq!(start("").status, Some(0));
    for entry in list(&place.path().join("run/ckpt")).unwrap().iter().filter(|e| e.step > 2) {
        std::fs::remove_dir_all(&entry.path).unwrap();
    }
    for _ in 0..2 {
        // One save, then killed in the next.
        let output = start("save.begin:2=kill");
        assert_eq!(output.status, Some(128 + 9), "{}", output.stderr);
    }
    let output = start("");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert_eq!(outcome(place.path()).tensors, setup().whole.tensors);
    // An attempt that dies at the same point as the one before makes no progress.
    std::fs::remove_dir_all(place.path().join("run")).unwrap();
    // The save runs in the background: an attempt may log one update more than the one before and then counts as
    // progress. The 8 updates of the run bound how often.
    let mut last = start("save.begin:1=kill");
    for _ in 0..10 {
        if last.status != Some(137) {
            break;
        }
        last = start("save.begin:1=kill");
    }
    assert_eq!(last.status, Some(1), "{}", last.stderr);
}

#[test]
fn killed_while_pruning_the_best_and_the_newest_stay() {
    let mut killed = 0;
    for point in ["save.after_latest", "save.before_prune", "save.after_trash", "save.after_prune"]
    {
        let times = (1..).take_while(|nth| hit(point, *nth, "kill")).count();
        assert!(times >= 2, "{point} is reached {times} times: nothing is pruned");
        killed += times;
    }
    println!("killed {killed} times");
}
