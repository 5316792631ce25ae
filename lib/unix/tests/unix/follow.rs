//! A log that is read while it grows.

use std::fs::OpenOptions;
use std::io::Write;

use serde_json::{Map, Value, json};
use test_support::Random;
use unix::log::{Follow, Log, read};

fn records(log: &Follow<Map<String, Value>>) -> Vec<Map<String, Value>> {
    log.iter().cloned().collect()
}

/// A log of attempts that resume and rewind, with damaged lines, read while it grows by pieces of any length.
#[test]
fn reading_piece_by_piece_equals_reading_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, growing) = (folder.path().join("whole"), folder.path().join("growing"));
    for seed in 0..20 {
        let mut random = Random(seed);
        let _ = (std::fs::remove_file(&whole), std::fs::remove_file(&growing));
        let mut reached: usize = 0;
        for attempt in 1..=4 {
            let mut log = Log::open(&whole, attempt).unwrap();
            reached = random.below(reached + 1);
            log.write("start", &json!({"update": reached})).unwrap();
            for _ in 0..random.below(12) {
                reached += 1;
                log.write("update", &json!({"update": reached, "loss": 0.5})).unwrap();
                if random.below(6) == 0 {
                    reached = random.below(reached + 1);
                    log.write("rewind", &json!({"update": reached})).unwrap();
                }
            }
            OpenOptions::new().append(true).open(&whole).unwrap().write_all(b"{}\n\n").unwrap();
        }
        let bytes = std::fs::read(&whole).unwrap();
        let mut file = OpenOptions::new().create(true).append(true).open(&growing).unwrap();
        let mut log = Follow::new(&growing);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.len().min(1 + random.below(300)));
            file.write_all(piece).unwrap();
            rest = after;
            log.read(|record| record).unwrap();
            let expected = read(&growing).unwrap();
            assert_eq!(records(&log), expected.records, "seed {seed}");
            assert_eq!(log.superseded(), expected.superseded, "seed {seed}");
            assert_eq!(log.bad_lines(), expected.bad_lines, "seed {seed}");
        }
        assert_eq!(log.bad_lines(), 4);
    }
}

#[test]
fn a_log_that_was_replaced_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.jsonl");
    let mut log = Follow::new(&path);
    assert!(log.read(|record| record).is_err(), "there is no log yet");
    for update in [1, 2] {
        Log::open(&path, 1).unwrap().write("update", &json!({"update": update})).unwrap();
    }
    log.read(|record| record).unwrap();
    std::fs::rename(&path, folder.path().join("old")).unwrap();
    assert!(log.read(|record| record).is_err());
    Log::open(&path, 1).unwrap().write("update", &json!({"update": 7})).unwrap();
    log.read(|record| record).unwrap();
    let updates: Vec<Value> = records(&log).iter().map(|r| r["update"].clone()).collect();
    assert_eq!(updates, [7]);
}
