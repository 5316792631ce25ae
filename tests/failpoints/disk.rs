//! Disks that are full, fail or become read-only.

use super::{CODEC, hidden, nothing_is_lost, outcome, place, setup, train};
use crate::common::run::{Hold, wait_until};
use crate::common::{Captured, shell};
use learn::checkpoint::list;
use std::path::Path;

fn warnings(output: &Captured) -> Vec<&str> {
    output.stderr.lines().filter(|line| line.contains("warning")).collect()
}

#[test]
fn disk_full_during_a_save_costs_a_warning() {
    // A save writes four files, so the sixth belongs to the second save; the run is killed when the third begins, to
    // inspect it.
    for step in
        ["save.begin:2", "save.after_create:2", "save.after_shard:6", "save.after_manifest:2"]
    {
        let place = place();
        let fail = format!("{step}=enospc,save.begin:3=kill");
        let output = train(place.path(), &fail);
        let expected = warnings(&output);
        assert_eq!(expected.len(), 1, "{fail}: {}", output.stderr);
        assert!(
            expected[0].contains("checkpoint not saved") && expected[0].contains("No space"),
            "{expected:?}"
        );
        let folder = place.path().join("run/ckpt");
        let steps: Vec<u64> = list(&folder).unwrap().iter().map(|entry| entry.step).collect();
        assert_eq!(steps, [2], "{fail}");
        assert_eq!(hidden(&folder), Vec::<String>::new(), "{fail}");
        nothing_is_lost(place.path(), &fail);
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{}", again.stderr);
        assert_eq!(outcome(place.path()), setup().whole, "{fail}");
    }
}

/// The content of the run's `status.json`.
fn stands(place: &Path) -> serde_json::Value {
    let text = std::fs::read(place.join("run/status.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn disk_full_at_a_stop_it_resumes_from_an_older_checkpoint() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let output = shell(
        place.path(),
        "FAIL=save.begin:2+=enospc train-stage codec -c codec.yaml --run run \\
             -s training.updates=1000000 -s checkpoint.failed_saves=1000000 &
         until [ -e run/ckpt/latest ]; do kill -0 $! || exit 1; sleep 0.01; done
         kill -TERM $!
         wait $!",
    );
    assert_eq!(output.status, Some(75), "{}", output.stderr);
    assert!(
        warnings(&output).last().unwrap().contains("checkpoint not saved"),
        "{}",
        output.stderr
    );
    assert_eq!(stands(place.path())["state"], "stopped");
}

#[test]
fn disk_full_at_the_end_is_an_error_reported_once() {
    let place = place();
    std::fs::write(
        place.path().join("codec.yaml"),
        CODEC.replace("every: 2,", "every: 2, failed_saves: 99,"),
    )
    .unwrap();
    let output =
        shell(place.path(), "FAIL=save.begin:2+=enospc train-stage codec -c codec.yaml --run run");
    assert!(output.status.is_some_and(|status| status == 73 || status == 74), "{}", output.stderr);
    let lines = output.stderr.lines().filter(|line| line.contains("No space left on device"));
    assert_eq!(lines.filter(|line| !line.contains("warning")).count(), 1, "{}", output.stderr);
    let stands = stands(place.path());
    assert_eq!(stands["state"], "failed", "{stands}");
    let again = train(place.path(), "");
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    assert_eq!(outcome(place.path()).tensors, setup().whole.tensors);
}

/// The update after which training must have stopped: three failed saves, two updates apart, the last of which is known
/// when the fourth is due. Validations with a new best add saves and only make it stop sooner.
const GIVEN_UP: u64 = 2 + 4 * 2 + 1;

#[test]
fn a_permanently_failed_disk_ends_the_run() {
    for fault in ["enospc", "eio"] {
        let place = place();
        std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
        let command = "train-stage codec -c codec.yaml --run run -s training.updates=40";
        let output = shell(place.path(), &format!("FAIL=save.begin:2+={fault} {command}"));
        assert_eq!(output.status, Some(74), "{}", output.stderr);
        assert!(output.stderr.contains("saves failed (checkpoint.failed_saves)"));
        let stands = stands(place.path());
        assert_eq!(
            (&stands["state"], &stands["blocked"]),
            (&"failed".into(), &false.into()),
            "{stands}"
        );
        assert!(stands["reason"].as_str().unwrap().contains("checkpoint.failed_saves"), "{stands}");
        assert!(stands["update"].as_u64().unwrap() <= GIVEN_UP, "{stands}");
        nothing_is_lost(place.path(), fault);
        // Two failures in a row do not stop the run, nor do failures before a successful save.
        let output = shell(
            place.path(),
            &format!(
                "FAIL=save.begin:1={fault},save.begin:2={fault},save.begin:4={fault} {command}"
            ),
        );
        assert_eq!(output.status, Some(0), "{}", output.stderr);
    }
}

/// The disk of the checkpoints becomes read-only, as Linux does to a file system with errors.
#[test]
fn a_read_only_disk_ends_the_run_with_73() {
    let place = place();
    std::fs::write(place.path().join("codec.yaml"), CODEC).unwrap();
    let ckpt = place.path().join("run/ckpt");
    std::fs::create_dir_all(&ckpt).unwrap();
    let mount = format!("mount -t tmpfs -o size=64m tmpfs '{}' 2>&1", ckpt.display());
    if !test_support::require_mount(shell(place.path(), &mount).status == Some(0)) {
        return;
    }
    // It cannot be remounted while a file is open for writing.
    let output = shell(
        place.path(),
        "timeout 300 \\
             train-stage codec -c codec.yaml --run run -s training.updates=100000000 -s checkpoint.every=50 &
         until [ -e run/ckpt/latest ]; do kill -0 $! || exit 1; sleep 0.01; done
         until mount -o remount,ro run/ckpt 2>/dev/null; do kill -0 $! || exit 1; sleep 0.01; done
         wait $!",
    );
    let umount = shell(place.path(), "umount -l run/ckpt");
    assert_eq!(output.status, Some(73), "{}", output.stderr);
    assert!(output.stderr.contains("checkpoint.failed_saves"), "{}", output.stderr);
    assert_eq!(stands(place.path())["state"], "failed");
    assert_eq!(umount.status, Some(0), "{}", umount.stderr);
}

#[test]
fn disk_full_for_the_log_and_the_status_costs_a_warning_each() {
    let place = place();
    let output = train(place.path(), "log.write:4+=enospc,status.write:2+=enospc");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let expected = warnings(&output);
    assert_eq!(expected.len(), 2, "{}", output.stderr);
    for name in ["log.jsonl", "status.json"] {
        assert_eq!(expected.iter().filter(|line| line.contains(name)).count(), 1, "{expected:?}");
    }
    assert_eq!(outcome(place.path()).tensors, setup().whole.tensors);
}

/// A disk that is really full: a save is held after one of its files was written, while the rest of a small disk is
/// filled.
#[test]
fn disk_filled_during_a_save_costs_warnings_and_nothing_else() {
    let place = place();
    let small = place.path().join("run");
    std::fs::create_dir(&small).unwrap();
    let mount = format!("mount -t tmpfs -o size=400k tmpfs '{}' 2>&1", small.display());
    if !test_support::require_mount(shell(place.path(), &mount).status == Some(0)) {
        return;
    }
    let output = std::thread::scope(|scope| {
        // It is held after the first file of the second save was written, until the disk is full.
        let hold = Hold::new(place.path());
        let run = scope.spawn(|| train(place.path(), "save.after_shard:5=hold"));
        let saving = |name: &String| name.starts_with(".tmp-step-00000003");
        wait_until(|| hidden(&small.join("ckpt")).iter().any(saving) || run.is_finished());
        let fill = shell(&small, "cat /dev/zero > filler 2>/dev/null || true");
        assert_eq!(fill.status, Some(0), "{}", fill.stderr);
        drop(hold);
        run.join().unwrap()
    });
    // Its end could not be recorded: an error, with everything before it intact.
    let looked = std::panic::catch_unwind(|| {
        assert!(
            output.status.is_some_and(|status| status == 73 || status == 74),
            "{}",
            output.stderr
        );
        let expected = warnings(&output);
        assert!(
            expected.iter().any(|line| line.contains("No space left on device")),
            "{expected:?}"
        );
        let steps: Vec<u64> =
            list(&small.join("ckpt")).unwrap().iter().map(|entry| entry.step).collect();
        assert_eq!(steps, [2], "{}", output.stderr);
        assert_eq!(hidden(&small.join("ckpt")), Vec::<String>::new());
        nothing_is_lost(place.path(), "a full disk");
        std::fs::remove_file(small.join("filler")).unwrap();
        let again = train(place.path(), "");
        assert_eq!(again.status, Some(0), "{}", again.stderr);
        let (found, whole) = (outcome(place.path()), &setup().whole);
        assert_eq!(found.tensors, whole.tensors);
        assert!(found.log.iter().all(|record| whole.log.contains(record)), "{:?}", found.log);
    });
    assert_eq!(shell(place.path(), "umount -l run").status, Some(0));
    looked.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}
