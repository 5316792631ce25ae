//! Saving concurrently with training.

use std::time::Duration;

use learn::checkpoint::{Saver, load, load_newest};
use tensor::Tensor;

use super::*;

/// A state with `megabytes` MB in one tensor.
fn large(update: u64, megabytes: usize) -> State {
    let n = megabytes * 250_000 + 1;
    let tensors = vec![("w".to_string(), Tensor::full(&[n], update as f64, Dtype::F32))];
    State { tensors: [("model".to_string(), tensors)].into(), update, ..State::default() }
}

/// Training continues in the same memory that is being saved.
#[test]
fn later_updates_do_not_change_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(2), 1).unwrap();
    let mut weights = Tensor::full(&[1_000_003], 1.0, Dtype::F32);
    for update in 1..=5 {
        let tensors = vec![("w".to_string(), weights.clone())];
        let state =
            State { tensors: [("model".to_string(), tensors)].into(), update, ..State::default() };
        let saved = saver.save(state).unwrap();
        assert_eq!(saved.bytes, 4_000_012);
        assert_eq!(saved.previous.is_some(), update > 1);
        assert!(weights.is_unique(), "the next update would have to copy");
        weights.write::<f32>().fill(update as f32 + 1.0);
    }
    let done = saver.finish().unwrap().unwrap();
    assert_eq!((done.update, done.removed), (5, vec!["step-00000003".to_string()]));
    assert!(saver.finish().unwrap().is_none());
    for update in [4, 5] {
        let loaded = load(&folder.path().join(format!("step-{update:08}"))).unwrap();
        let values = loaded.tensors("model").unwrap();
        assert!(values[0].1.read::<f32>().iter().all(|x| *x == update as f32));
    }
    assert_eq!(names(folder.path()), ["latest", "step-00000004", "step-00000005"]);
    assert_eq!(
        std::fs::read_link(folder.path().join("latest")).unwrap(),
        Path::new("step-00000005")
    );
}

/// Many requests at once: they are served one at a time, each is reported, none is lost.
#[test]
fn saves_wait_for_each_other_and_none_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(100), 1).unwrap();
    let mut ended = Vec::new();
    // Made in advance, so that the requests follow each other immediately.
    let states: Vec<State> = (1..=12).map(|update| large(update, 3)).collect();
    for state in states {
        let saved = saver.save(state).unwrap();
        ended.extend(saved.previous.map(|done| done.unwrap().update));
    }
    assert!(saver.waits() > 0, "writing 3 MB with fsync is slower than asking for it");
    ended.extend(saver.finish().unwrap().map(|done| done.update));
    assert_eq!(ended, (1..=12).collect::<Vec<u64>>());
    for update in 1..=12 {
        load(&folder.path().join(format!("step-{update:08}"))).unwrap();
    }
}

/// Files that are written with O_DIRECT, with unaligned ends.
#[test]
fn large_files_arrive_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    for update in 1..=2 {
        let mut all = state(5, update);
        for (stem, megabytes) in [("ema", 17), ("optim-0-of-1", 35)] {
            let values: Vec<f32> =
                (0..megabytes * 250_000 + 1).map(|i| (i as u64 * update) as f32).collect();
            let tensors = vec![
                ("w".to_string(), Tensor::from_slice(&values, &[values.len()])),
                ("scale".to_string(), Tensor::full(&[3], update as f64, Dtype::F64)),
            ];
            all.tensors.insert(stem.into(), tensors);
        }
        saver.save(all.clone()).unwrap();
        saver.finish().unwrap().unwrap();
        assert!(is_same(&load_newest(folder.path()).unwrap().unwrap(), &all));
    }
}

/// Reserving memory in advance only changes the duration of the first save.
#[test]
fn reserved_memory_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    saver.reserve(&large(0, 8)).unwrap();
    assert!(saver.finish().unwrap().is_none(), "nothing was saved");
    saver.reserve(&large(0, 8)).unwrap();
    assert!(saver.save(large(1, 8)).unwrap().previous.is_none());
    assert_eq!(saver.finish().unwrap().unwrap().update, 1);
    let loaded = load_newest(folder.path()).unwrap().unwrap().tensors("model").unwrap();
    assert!(loaded[0].1.read::<f32>().iter().all(|x| *x == 1.0));
}

#[test]
fn polling_reports_once_and_never_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    assert!(saver.poll().is_none());
    saver.save(large(1, 1)).unwrap();
    let done = loop {
        match saver.poll() {
            Some(done) => break done.unwrap(),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!((done.update, done.bytes), (1, 1_000_004));
    assert!(done.took > Duration::ZERO);
    assert!(saver.poll().is_none());
    assert!(saver.save(large(2, 1)).unwrap().previous.is_none());
}

/// Dropping the saver waits, so that an early return does not lose a checkpoint.
#[test]
fn dropping_the_saver_finishes_the_save() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    saver.save(large(9, 2)).unwrap();
    drop(saver);
    assert_eq!(load_newest(folder.path()).unwrap().unwrap().manifest.update, 9);
}

#[test]
fn leftovers_of_killed_saves_are_removed_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    for name in
        [".tmp-step-00000001-node-1-0", ".trash-step-00000002-node-1-0", "step-notes", "mine"]
    {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        std::fs::write(folder.path().join(name).join("x"), "x").unwrap();
    }
    std::os::unix::fs::symlink("x", folder.path().join(".tmp-latest-node-1-0")).unwrap();
    Saver::new(folder.path(), last(1), 1).unwrap();
    assert_eq!(names(folder.path()), ["mine", "step-notes"]);
}

/// If the record of attempts is lost, the next save is still the newest.
#[test]
fn a_lost_attempt_count_does_not_make_new_saves_older() {
    let folder = tempfile::tempdir().unwrap();
    learn::checkpoint::write(folder.path(), &large(50, 1), 4).unwrap();
    let mut saver = Saver::new(folder.path(), last(2), 1).unwrap();
    saver.save(large(40, 1)).unwrap();
    saver.finish().unwrap();
    let newest = load_newest(folder.path()).unwrap().unwrap().manifest;
    assert_eq!((newest.update, newest.attempt), (40, 5));
}

/// An owner that was taken over publishes and removes nothing.
#[test]
fn an_older_owner_saves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (run, leases) = (folder.path().join("ckpt"), folder.path().join("lease"));
    let lease = unix::lease::Lease::take(&leases, || Ok(1), &|| false).unwrap();
    let fenced = |update| State { fence: Some(lease.fence().clone()), ..state(1, update) };
    let rules =
        KeepRules { last: 1, best: 0, every: 0, metric: "error".into(), ..KeepRules::default() };
    let mut saver = Saver::new(&run, rules, 1).unwrap();
    saver.save(fenced(1)).unwrap();
    saver.finish().unwrap();
    let before = names(&run);
    std::fs::write(leases.join("attempt-00000002.json"), "").unwrap();
    saver.save(fenced(2)).unwrap();
    let error = saver.finish().unwrap_err();
    assert_eq!(error.exit, unix::Exit::Again, "{error}");
    // Even if the save had already started.
    let error = learn::checkpoint::write(&run, &fenced(3), 1).unwrap_err();
    assert_eq!(error.exit, unix::Exit::Again, "{error}");
    assert_eq!(names(&run), before);
}
