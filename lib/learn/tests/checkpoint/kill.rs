//! Killed at any moment, the newest complete checkpoint loads, and no confirmed save is lost.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use learn::checkpoint::{Saver, list, load, load_newest};
use tensor::random::{Philox, Purpose};

use super::*;

const ROUNDS: u64 = 60;

#[test]
fn killed_at_random_moments_the_newest_good_one_loads() {
    let folder = tempfile::tempdir().unwrap();
    let seed = seed();
    let random = Philox::new(seed, Purpose::Test);
    let test = std::env::current_exe().unwrap();
    let (mut reached, mut interrupted) = (0, 0);
    for round in 0..ROUNDS {
        let mut child = Command::new(&test)
            .args(["kill::child_that_saves_for_ever", "--exact", "--ignored", "--nocapture"])
            .env("CHECKPOINT_FOLDER", folder.path())
            .env("CHECKPOINT_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // Once it is running, any moment within the next saves.
        for line in lines.by_ref() {
            if line.unwrap().starts_with("saved") {
                break;
            }
        }
        std::thread::sleep(Duration::from_micros(random.below(0, round, 30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        interrupted += u64::from(names(folder.path()).iter().any(|name| name.starts_with('.')));
        // Every save that it confirmed is on the disk.
        let told = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("saved ")?.parse().ok());
        let told: u64 = told.max().unwrap_or(0);
        let newest = load_newest(folder.path()).unwrap().unwrap();
        assert!(is_same(&newest, &state(seed, newest.manifest.update)), "round {round}");
        assert!(newest.manifest.update >= told.max(reached + 1), "round {round}");
        reached = newest.manifest.update;
        // None of the others is incomplete either.
        for entry in list(folder.path()).unwrap() {
            load(&entry.path).unwrap();
        }
    }
    println!("{ROUNDS} kills, {interrupted} of them within a save, {reached} checkpoints");
    assert!(interrupted > ROUNDS / 10, "the kills came at the wrong time");
    Saver::new(folder.path(), last(2), 1).unwrap();
    let left = names(folder.path());
    assert!(left.iter().all(|name| !name.starts_with('.')), "{left:?}");
}

/// Not a test of its own: the process that the test above kills.
#[test]
#[ignore = "run by killed_at_random_moments_the_newest_good_one_loads"]
fn child_that_saves_for_ever() {
    let Some(folder) = std::env::var_os("CHECKPOINT_FOLDER") else { return };
    let seed = std::env::var("CHECKPOINT_SEED").unwrap().parse().unwrap();
    let newest = load_newest(Path::new(&folder)).unwrap();
    let update = newest.map_or(0, |newest| newest.manifest.update);
    let rules =
        KeepRules { last: 2, best: 1, every: 0, metric: "error".into(), ..KeepRules::default() };
    let mut saver = Saver::new(Path::new(&folder), rules, 1).unwrap();
    for update in update + 1..update + 10_000 {
        saver.save(state(seed, update)).unwrap();
        let done = saver.finish().unwrap().unwrap();
        println!("saved {}", done.update);
    }
}
