//! Which checkpoints are kept.

use std::fs;

use learn::checkpoint::{Saver, list, load};
use learn::score::Direction;
use serde_json::Value;
use tensor::random::{Philox, Purpose};

use super::*;

fn with_error(seed: u64, update: u64, error: Value) -> State {
    State { metrics: json!({ "error": error }), ..state(seed, update) }
}

fn save_all(folder: &Path, rules: KeepRules, errors: &[Value]) {
    let mut saver = Saver::new(folder, rules, 1).unwrap();
    for (at, error) in errors.iter().enumerate() {
        saver.save(with_error(1, at as u64 + 1, error.clone())).unwrap();
        saver.finish().unwrap();
    }
}

fn steps(folder: &Path) -> Vec<u64> {
    list(folder).unwrap().iter().map(|entry| entry.step).collect()
}

#[test]
fn the_last_the_best_and_every_nth_stay() {
    let errors = [5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 8.0, 7.0].map(Value::from);
    let rules = |last, best, every| KeepRules {
        last,
        best,
        every,
        metric: "error".into(),
        ..KeepRules::default()
    };
    let cases = [
        (rules(2, 1, 0), vec![2, 7, 8]),
        (rules(1, 2, 0), vec![2, 4, 8]),
        (rules(1, 0, 3), vec![3, 6, 8]),
        (rules(0, 0, 0), vec![8]),
        (rules(1, 1, 3), vec![2, 3, 6, 8]),
    ];
    for (rules, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        save_all(folder.path(), rules.clone(), &errors);
        assert_eq!(steps(folder.path()), expected, "{rules:?}");
        let best = fs::read_link(folder.path().join("best")).ok();
        assert_eq!(best.is_some(), rules.best > 0);
        assert!(best.is_none_or(|best| best == Path::new("step-00000002")));
    }
}

#[test]
fn without_a_finite_metric_there_is_no_best() {
    let folder = tempfile::tempdir().unwrap();
    let rules =
        KeepRules { last: 1, best: 2, every: 0, metric: "error".into(), ..KeepRules::default() };
    save_all(folder.path(), rules, &[Value::Null, json!("low"), Value::Null]);
    assert_eq!(steps(folder.path()), [3]);
    assert!(fs::read_link(folder.path().join("best")).is_err());
}

/// Whatever the rules, the metrics and the damage: after every save the new checkpoint exists, and `best` names a good
/// one with the best value.
#[test]
fn the_last_good_and_the_best_are_never_removed() {
    let seed = seed();
    let random = Philox::new(seed, Purpose::Test);
    for round in 0..12 {
        let folder = tempfile::tempdir().unwrap();
        let draw = |at: u64, n: u64| random.below(round, at, n);
        let rules = KeepRules {
            last: draw(0, 3) as usize,
            best: 1 + draw(1, 2) as usize,
            every: draw(2, 4),
            metric: "error".into(),
            direction: [Direction::Minimize, Direction::Maximize][draw(3, 2) as usize],
            anchor: 0,
        };
        let direction = rules.direction;
        let mut saver = Saver::new(folder.path(), rules, 1).unwrap();
        for update in 1..=10u64 {
            let error = draw(100 + update, 6);
            let error = if error == 0 { Value::Null } else { json!(error) };
            saver.save(with_error(seed, update, error)).unwrap();
            let done = saver.finish().unwrap().unwrap();
            load(&done.path).unwrap();
            let entries = list(folder.path()).unwrap();
            let good = entries.iter().filter(|entry| entry.is_good());
            let metric =
                |e: &&learn::checkpoint::Entry| e.manifest().and_then(|m| m.metric("error"));
            let best = good.filter_map(|e| metric(&e)).reduce(match direction {
                Direction::Minimize => f64::min,
                Direction::Maximize => f64::max,
            });
            let link = fs::read_link(folder.path().join("best")).ok();
            if let Some(link) = &link {
                let named = load(&folder.path().join(link)).unwrap();
                assert_eq!(named.manifest.metric("error"), best, "round {round}");
            }
            // Occasionally damage an older one.
            let older: Vec<_> = entries.iter().filter(|e| e.path != done.path).collect();
            let victim = older.get(draw(200 + update, 8) as usize);
            let named = |path: &Path| link.as_ref().is_some_and(|link| path.ends_with(link));
            if let Some(victim) = victim.filter(|victim| !named(&victim.path)) {
                fs::write(victim.path.join("model.safetensors"), b"").unwrap();
            }
        }
    }
}

/// Users may point `best` anywhere: the checkpoint it names is kept, whatever the rules.
#[test]
fn what_best_names_is_never_removed() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    for update in 1..=5 {
        saver.save(state(1, update)).unwrap();
        saver.finish().unwrap();
        if update == 2 {
            std::os::unix::fs::symlink("step-00000002", folder.path().join("best")).unwrap();
        }
    }
    assert_eq!(steps(folder.path()), [2, 5]);
}

/// A copy that follows links turns them into folders; old checkpoints must be pruned nevertheless.
#[test]
fn a_folder_in_place_of_a_link_does_not_stop_the_pruning() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["latest", "best"] {
        fs::create_dir_all(folder.path().join(name).join("inside")).unwrap();
    }
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    for update in 1..=3 {
        saver.save(state(1, update)).unwrap();
        saver.finish().unwrap();
    }
    assert_eq!(steps(folder.path()), [3]);
    assert!(folder.path().join("latest/inside").is_dir(), "nor is anything of it lost");
}

/// Damaged checkpoints do not count as kept, and are not removed, so that users can inspect them.
#[test]
fn damaged_checkpoints_do_not_count_as_kept() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = Saver::new(folder.path(), last(2), 1).unwrap();
    for update in 1..=4 {
        saver.save(state(1, update)).unwrap();
        saver.finish().unwrap();
        if update == 3 {
            fs::remove_file(folder.path().join("step-00000003/manifest.json")).unwrap();
        }
    }
    // 2 is the second newest good one.
    let good: Vec<u64> =
        list(folder.path()).unwrap().iter().filter(|e| e.is_good()).map(|e| e.step).collect();
    assert_eq!(good, [2, 4]);
    assert_eq!(steps(folder.path()), [2, 4, 3]);
}

/// Links in place of folders, and folders with other names, are not ours to remove.
#[test]
fn only_own_folders_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = learn::checkpoint::write(elsewhere.path(), &state(1, 1), 1).unwrap();
    std::os::unix::fs::symlink(&path, folder.path().join("step-00000001")).unwrap();
    copy(&path, &folder.path().join("golden"));
    let mut saver = Saver::new(folder.path(), last(1), 1).unwrap();
    for update in 2..=4 {
        saver.save(state(1, update)).unwrap();
    }
    saver.finish().unwrap();
    assert_eq!(steps(folder.path()), [1, 4]);
    load(&path).unwrap();
    load(&folder.path().join("golden")).unwrap();
}
