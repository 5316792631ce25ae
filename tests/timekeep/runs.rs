//! `timekeep status` and `interval`, based on run directories.

use std::fs;

use serde_json::json;

use super::place::Place;

#[test]
fn a_line_for_each_run() {
    let place = Place::new();
    place.status("a", "stopped", 100);
    place.status("b", "running", 200);
    place.status("c", "finished", 400);
    let output = place.see(&["status", "a", "b", "c"]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let lines: Vec<Vec<&str>> =
        output.stdout.lines().map(|line| line.split_ascii_whitespace().collect()).collect();
    assert_eq!(lines[0][..5], ["run", "task", "state", "progress", "left"]);
    assert_eq!(lines[1][..7], ["a", "codec", "stopped", "100/400", "25%", "03:00:00", "8"]);
    assert_eq!(lines[2][..6], ["b", "codec", "lost", "200/400", "50%", "01:00:00"]);
    assert_eq!(lines[3][2], "finished");
    let records = place.records(&["status", "a", "b", "c"]);
    let states: Vec<&str> = records.iter().map(|r| r["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["stopped", "lost", "finished"]);
    assert_eq!(records[0]["eta"], 10800.0);
    assert_eq!((&records[0]["restarts"], &records[0]["device_hours"]), (&1.into(), &8.0.into()));
}

#[test]
fn folders_without_a_run_are_reported_and_the_others_shown() {
    let place = Place::new();
    place.status("a", "stopped", 100);
    place.status("damaged", "stopped", 1);
    fs::write(place.path("damaged/status.json"), "{").unwrap();
    fs::create_dir(place.path("empty")).unwrap();
    let output = place.see(&["status", "absent", "damaged", "empty", "sbatch", "a"]);
    assert_eq!(output.status, Some(66));
    assert_eq!(output.stdout.lines().count(), 2, "{}", output.stdout);
    for part in ["absent: no such run", "damaged/status.json", "empty: it is not a run directory"] {
        assert!(output.stderr.contains(part), "{part}: {}", output.stderr);
    }
    assert_eq!(place.see(&["status", "damaged"]).status, Some(65));
}

#[test]
fn the_interval_that_a_log_suggests() {
    let place = Place::new();
    place.status("a", "running", 3);
    let mut log = unix::log::Log::open(&place.path("a/log.jsonl"), 1).unwrap();
    for (kind, fields) in [
        ("start", json!({"update": 0})),
        ("update", json!({"update": 1, "seconds": 1.0})),
        ("update", json!({"update": 2, "seconds": 3.0})),
        ("checkpoint", json!({"update": 2, "blocked_s": 0.4})),
        ("saved", json!({"update": 2, "seconds": 9.0})),
        ("checkpoint", json!({"update": 3, "blocked_s": 0.6})),
    ] {
        log.write(kind, &fields).unwrap();
    }
    let found = place.records(&["interval", "a", "--mtbf", "100d", "--nodes", "1000"]).remove(0);
    // 8640 s between failures of the job: sqrt(2 * 0.5 * 8640) = 92.95 s.
    let young = found["young"].as_f64().unwrap();
    assert!((young - 8640f64.sqrt()).abs() < 1e-9, "{found}");
    assert_eq!(found["updates"], 46, "of 2 s each: {found}");
    let by_hand = place.records(&["interval", "a", "--mtbf", "100d", "--cost", "0"]).remove(0);
    assert_eq!(by_hand["seconds"], 9.0, "a save takes as long: {by_hand}");

    let output = place.see(&["interval", "--cost", "20s", "--mtbf", "200d", "--nodes", "16"]);
    // M = 1 080 000 s, c = 20 s: 6572.67 (1 + 0.001014 + 0.000001) - 20.
    assert!(output.stdout.starts_with("every       6559 s (01:49:19)\n"), "{}", output.stdout);
    let output = place.see(&["interval", "--cost", "10m", "--mtbf", "5m"]);
    assert!(output.status == Some(0) && output.stderr.contains("most of the time is lost"));
    assert_eq!(place.see(&["interval", "--cost", "0s", "--mtbf", "1d"]).status, Some(2));
    assert_eq!(place.see(&["interval", "--mtbf", "1d"]).status, Some(2));
    fs::write(place.path("a/log.jsonl"), "").unwrap();
    let output = place.see(&["interval", "a", "--mtbf", "1d"]);
    assert!(output.status == Some(2) && output.stderr.contains("--cost"), "{}", output.stderr);
    assert_eq!(place.see(&["interval", "absent", "--mtbf", "1d"]).status, Some(66));
}
