//! R1, R3, R8: a run that meets a fault at a step of a save, of its log or of its status, goes on or is
//! started again, and ends with the same bits as one that met none.
//!
//! Each point is hit once with each fault, at a time that a seed chooses; under `make torture` at every
//! time at which a run reaches it.

mod common;

use common::run::{Hold, wait_until};
use common::{Seen, shell};
use learn::checkpoint::{list, load, load_newest};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use unix::fail::POINTS;

const CODEC: &str = "data: {split: ../split.json, stats: ../stats.json, shift: true}
model: {patch: 8, latent: 4, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 8, batch_size: 4, log_every: 1, validate_every: 3, ema: 0.9, threads: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-2}
checkpoint: {every: 2, keep_last: 1, keep_best: 1}
";

/// Data, and a run that met no fault, made once.
struct Ground {
    folder: tempfile::TempDir,
    whole: Outcome,
}

fn ground() -> &'static Ground {
    static GROUND: OnceLock<Ground> = OnceLock::new();
    GROUND.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let seen = shell(
            folder.path(),
            "ds-prep gen burgers --parameter 0.01 --samples 12 --grid 32 --frames 6 --seed 5 -o data
             ds-prep split data/*.hdf5 --seed 5 -o split.json
             ds-prep stats split.json -o stats.json
             mkdir whole",
        );
        assert_eq!(seen.status, Some(0), "{}", seen.stderr);
        let seen = train(&folder.path().join("whole"), "");
        assert_eq!(seen.status, Some(0), "{}", seen.stderr);
        let whole = outcome(&folder.path().join("whole"));
        Ground { folder, whole }
    })
}

/// An empty folder for a run, beside the data.
fn place() -> tempfile::TempDir {
    tempfile::tempdir_in(ground().folder.path()).unwrap()
}

/// A start of the run in `place`, with faults.
fn train(place: &Path, fail: &str) -> Seen {
    std::fs::write(place.join("codec.yaml"), CODEC).unwrap();
    shell(place, &format!("FAIL={fail} train-stage codec -c codec.yaml --run run"))
}

/// What must be the same: hashes of the tensors of the last checkpoint, and the log.
#[derive(Debug, PartialEq)]
struct Outcome {
    tensors: BTreeMap<String, String>,
    log: Vec<String>,
}

fn outcome(place: &Path) -> Outcome {
    let last = load(&place.join("run/ckpt/step-00000008")).unwrap();
    let files = last.manifest.files.iter().map(|file| (file.name.clone(), file.blake3.clone()));
    let mut log = Vec::new();
    for mut record in unix::log::read(&place.join("run/log.jsonl")).unwrap().records {
        if record["kind"] == "update" || record["kind"] == "validation" {
            for key in ["time", "attempt", "seconds", "stall"] {
                record.remove(key);
            }
            log.push(serde_json::to_string(&record).unwrap());
        }
    }
    Outcome { tensors: files.collect(), log }
}

/// Hits `point` the `nth` time with `fault`; starts again until the run is finished; false when the
/// point was not reached so often.
fn hit(point: &str, nth: u64, fault: &str) -> bool {
    let place = place();
    let fail = format!("{point}:{nth}={fault}");
    let seen = train(place.path(), &fail);
    if !seen.stderr.contains("failpoint") {
        assert_eq!(seen.status, Some(0), "{fail}: {}", seen.stderr);
        return false;
    }
    assert!(fault != "kill" || seen.status != Some(0), "{fail}: {}", seen.stderr);
    assert!(!seen.stderr.contains("panicked"), "{fail}: {}", seen.stderr);
    nothing_is_lost(place.path(), &fail);
    if seen.status != Some(0) {
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{fail}: {}\nthen: {}", seen.stderr, again.stderr);
    }
    let whole = &ground().whole;
    let found = outcome(place.path());
    assert_eq!(found.tensors, whole.tensors, "{fail}");
    // A record that could not be written is missing, and no other.
    let lost = usize::from(point == "log.write" && fault != "kill");
    assert!(found.log.len() + lost >= whole.log.len(), "{fail}: {:?}", found.log);
    assert!(found.log.iter().all(|record| whole.log.contains(record)), "{fail}: {:?}", found.log);
    no_leftovers(place.path(), &fail);
    true
}

/// All checkpoints are whole, and so is what `best` names.
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

/// Temporary folders of dead saves are gone. (A trash folder whose rename could not be made durable may
/// stay until the next start.)
fn no_leftovers(place: &Path, fail: &str) {
    let found = hidden(&place.join("run/ckpt"));
    assert!(found.iter().all(|name| name.starts_with(".trash-")), "{fail}: {found:?}");
}

/// A fresh seed, printed when a test fails.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = now.as_nanos() as u64 | 1;
    println!("seed {seed}");
    seed
}

fn torture() -> bool {
    std::env::var_os("TORTURE").is_some()
}

/// Every point with `fault`.
fn everywhere(fault: &str) {
    let mut random = seed();
    let mut hits = 0;
    for point in POINTS {
        if torture() {
            let times = (1..).take_while(|nth| hit(point, *nth, fault)).count();
            assert!(times > 0, "{point} is never reached");
            println!("{point}: {times} times {fault}");
            hits += times;
            continue;
        }
        // xorshift64 (Marsaglia 2003)
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let nth = 1 + random % 8;
        // Points that are reached seldom: an earlier time, the first for certain.
        let reached = [nth, 1 + nth / 4, 1].into_iter().any(|nth| hit(point, nth, fault));
        assert!(reached, "{point} is never reached");
        hits += 1;
    }
    println!("{hits} times {fault}");
}

#[test]
fn r01_killed_at_any_point_it_ends_with_the_same_bits() {
    everywhere("kill");
}

#[test]
fn r01_after_an_io_error_at_any_point_it_ends_with_the_same_bits() {
    everywhere("eio");
}

#[test]
fn r01_after_a_full_disk_at_any_point_it_ends_with_the_same_bits() {
    everywhere("enospc");
}

fn warnings(seen: &Seen) -> Vec<&str> {
    seen.stderr.lines().filter(|line| line.contains("warning")).collect()
}

#[test]
fn r03_disk_full_during_a_save_costs_a_warning() {
    // Four files a save, so the sixth is in the second; and killed as the third begins, to look.
    for step in
        ["save.begin:2", "save.after_create:2", "save.after_shard:6", "save.after_manifest:2"]
    {
        let place = place();
        let fail = format!("{step}=enospc,save.begin:3=kill");
        let seen = train(place.path(), &fail);
        let told = warnings(&seen);
        assert_eq!(told.len(), 1, "{fail}: {}", seen.stderr);
        assert!(
            told[0].contains("checkpoint not saved") && told[0].contains("No space"),
            "{told:?}"
        );
        let folder = place.path().join("run/ckpt");
        let steps: Vec<u64> = list(&folder).unwrap().iter().map(|entry| entry.step).collect();
        assert_eq!(steps, [2], "{fail}");
        assert_eq!(hidden(&folder), Vec::<String>::new(), "{fail}");
        nothing_is_lost(place.path(), &fail);
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{}", again.stderr);
        assert_eq!(outcome(place.path()), ground().whole, "{fail}");
    }
}

/// What `status.json` says of the run.
fn stands(place: &Path) -> serde_json::Value {
    let text = std::fs::read(place.join("run/status.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn r03_disk_full_at_a_stop_it_can_go_on_from_an_older_checkpoint() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let seen = shell(
        place.path(),
        "FAIL=save.begin:2+=enospc train-stage codec -c codec.yaml --run run \\
             -o training.updates=1000000 -o checkpoint.failed_saves=1000000 &
         until [ -e run/ckpt/latest ]; do kill -0 $! || exit 1; sleep 0.01; done
         kill -TERM $!
         wait $!",
    );
    assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    assert!(warnings(&seen).last().unwrap().contains("checkpoint not saved"), "{}", seen.stderr);
    assert_eq!(stands(place.path())["state"], "stopped");
}

#[test]
fn r03_disk_full_at_the_end_is_an_error_told_once() {
    let place = place();
    std::fs::write(
        place.path().join("codec.yaml"),
        CODEC.replace("every: 2,", "every: 2, failed_saves: 99,"),
    )
    .unwrap();
    let seen =
        shell(place.path(), "FAIL=save.begin:2+=enospc train-stage codec -c codec.yaml --run run");
    assert!(seen.status.is_some_and(|status| status == 73 || status == 74), "{}", seen.stderr);
    let lines = seen.stderr.lines().filter(|line| line.contains("No space left on device"));
    assert_eq!(lines.filter(|line| !line.contains("warning")).count(), 1, "{}", seen.stderr);
    let stands = stands(place.path());
    assert_eq!(stands["state"], "failed", "{stands}");
    let again = train(place.path(), "");
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    assert_eq!(outcome(place.path()).tensors, ground().whole.tensors);
}

/// Updates after which nothing more may be trained: three failed saves, two updates apart, of which the last is
/// known when the fourth is due; validations that are the best add saves and only end it sooner.
const GIVEN_UP: u64 = 2 + 4 * 2 + 1;

#[test]
fn r03_a_disk_that_has_failed_for_good_ends_the_run() {
    for fault in ["enospc", "eio"] {
        let place = place();
        std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
        let command = "train-stage codec -c codec.yaml --run run -o training.updates=40";
        let seen = shell(place.path(), &format!("FAIL=save.begin:2+={fault} {command}"));
        assert_eq!(seen.status, Some(74), "{}", seen.stderr);
        assert!(seen.stderr.contains("saves failed (checkpoint.failed_saves)"));
        let stands = stands(place.path());
        assert_eq!(
            (&stands["state"], &stands["held"]),
            (&"failed".into(), &false.into()),
            "{stands}"
        );
        assert!(stands["reason"].as_str().unwrap().contains("checkpoint.failed_saves"), "{stands}");
        assert!(stands["update"].as_u64().unwrap() <= GIVEN_UP, "{stands}");
        nothing_is_lost(place.path(), fault);
        // Two failures in a row are no reason to stop, nor is what happened before a save that worked.
        let seen = shell(
            place.path(),
            &format!(
                "FAIL=save.begin:1={fault},save.begin:2={fault},save.begin:4={fault} {command}"
            ),
        );
        assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    }
}

/// The disk of the checkpoints becomes read-only, as Linux does to a file system with errors.
#[test]
fn r03_a_read_only_disk_ends_the_run_with_73() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let ckpt = place.path().join("run/ckpt");
    std::fs::create_dir_all(&ckpt).unwrap();
    let mount = format!("mount -t tmpfs -o size=64m tmpfs '{}' 2>&1", ckpt.display());
    if shell(place.path(), &mount).status != Some(0) {
        eprintln!("SKIPPED: mounting a tmpfs needs root; the read-only disk was not tested");
        return;
    }
    // It cannot be remounted while a file is open for writing.
    let seen = shell(
        place.path(),
        "train-stage codec -c codec.yaml --run run -o training.updates=100000000 -o checkpoint.every=50 &
         until [ -e run/ckpt/latest ]; do kill -0 $! || exit 1; sleep 0.01; done
         until mount -o remount,ro run/ckpt 2>/dev/null; do kill -0 $! || exit 1; sleep 0.01; done
         wait $!",
    );
    let umount = shell(place.path(), "umount -l run/ckpt");
    assert_eq!(seen.status, Some(73), "{}", seen.stderr);
    assert!(seen.stderr.contains("checkpoint.failed_saves"), "{}", seen.stderr);
    assert_eq!(stands(place.path())["state"], "failed");
    assert_eq!(umount.status, Some(0), "{}", umount.stderr);
}

#[test]
fn r03_disk_full_for_the_log_and_the_status_costs_a_warning_each() {
    let place = place();
    let seen = train(place.path(), "log.write:4+=enospc,status.write:2+=enospc");
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    let told = warnings(&seen);
    assert_eq!(told.len(), 2, "{}", seen.stderr);
    for name in ["log.jsonl", "status.json"] {
        assert_eq!(told.iter().filter(|line| line.contains(name)).count(), 1, "{told:?}");
    }
    assert_eq!(outcome(place.path()).tensors, ground().whole.tensors);
}

/// The log knows more updates than the copy; what counts is where each attempt resumed.
#[test]
fn r21_restored_from_an_older_copy_it_makes_progress() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let start = |fail: &str| {
        let more = "-o training.attempts_without_progress=1 -o checkpoint.keep_last=99";
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
        // One save, and killed in the next.
        let seen = start("save.begin:2=kill");
        assert_eq!(seen.status, Some(128 + 9), "{}", seen.stderr);
    }
    let seen = start("");
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    assert_eq!(outcome(place.path()).tensors, ground().whole.tensors);
    // The same death at the same place twice is no progress.
    std::fs::remove_dir_all(place.path().join("run")).unwrap();
    for status in [137, 137, 1] {
        let seen = start("save.begin:1=kill");
        assert_eq!(seen.status, Some(status), "{}", seen.stderr);
    }
}

#[test]
fn r08_killed_while_pruning_the_best_and_the_newest_stay() {
    let mut killed = 0;
    for point in ["save.after_latest", "save.before_prune", "save.after_trash", "save.after_prune"]
    {
        let times = (1..).take_while(|nth| hit(point, *nth, "kill")).count();
        assert!(times >= 2, "{point} is reached {times} times: nothing is pruned");
        killed += times;
    }
    println!("killed {killed} times");
}

/// A disk that is really full: a save is held with one of its files written, and the rest of a small disk
/// is filled under it.
#[test]
fn r03_disk_filled_during_a_save_costs_warnings_and_nothing_else() {
    let place = place();
    let small = place.path().join("run");
    std::fs::create_dir(&small).unwrap();
    let mount = format!("mount -t tmpfs -o size=400k tmpfs '{}' 2>&1", small.display());
    if shell(place.path(), &mount).status != Some(0) {
        eprintln!("SKIPPED: mounting a tmpfs needs root; the full disk was not tested");
        return;
    }
    let seen = std::thread::scope(|scope| {
        // It is held with the first file of the second save written, until the disk is full.
        let hold = Hold::new(place.path());
        let run = scope.spawn(|| train(place.path(), "save.after_shard:5=hold"));
        let saving = |name: &String| name.starts_with(".tmp-step-00000003");
        wait_until(|| hidden(&small.join("ckpt")).iter().any(saving) || run.is_finished());
        let fill = shell(&small, "cat /dev/zero > filler 2>/dev/null || true");
        assert_eq!(fill.status, Some(0), "{}", fill.stderr);
        drop(hold);
        run.join().unwrap()
    });
    // It could not keep its end: an error, with everything before it whole.
    let looked = std::panic::catch_unwind(|| {
        assert!(seen.status.is_some_and(|status| status == 73 || status == 74), "{}", seen.stderr);
        let told = warnings(&seen);
        assert!(told.iter().any(|line| line.contains("No space left on device")), "{told:?}");
        let steps: Vec<u64> =
            list(&small.join("ckpt")).unwrap().iter().map(|entry| entry.step).collect();
        assert_eq!(steps, [2], "{}", seen.stderr);
        assert_eq!(hidden(&small.join("ckpt")), Vec::<String>::new());
        nothing_is_lost(place.path(), "a full disk");
        std::fs::remove_file(small.join("filler")).unwrap();
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{}", again.stderr);
        let (found, whole) = (outcome(place.path()), &ground().whole);
        assert_eq!(found.tensors, whole.tensors);
        assert!(found.log.iter().all(|record| whole.log.contains(record)), "{:?}", found.log);
    });
    assert_eq!(shell(place.path(), "umount -l run").status, Some(0));
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
