//! `hpo` on disks that are full or read-only, with damaged journals, and with clocks that are wrong.

use crate::common::{make_clock, shell};
use crate::records::done;
use std::fs;
use std::path::Path;

const STUDY: &str = "command: [sh, trial.sh, '{x}']
metric: loss
trials: 6
space: {x: {kind: float, low: 0, high: 10}}
";
const TRIAL: &str = "hpo tell $HPO_STUDY $HPO_TRIAL $1 --step 1
hpo tell $HPO_STUDY $HPO_TRIAL $1 --final\n";

fn prepare() -> tempfile::TempDir {
    let temporary = tempfile::tempdir().unwrap();
    fs::write(temporary.path().join("study.yaml"), STUDY).unwrap();
    fs::write(temporary.path().join("trial.sh"), TRIAL).unwrap();
    temporary
}

/// Whether namespaces can be created, in which file systems are mounted and processes are those of another machine.
fn may_unshare(folder: &Path) -> bool {
    let script = "unshare --map-root-user --pid --fork --mount-proc sh -c 'mount -t tmpfs t /mnt'";
    let may = shell(folder, script).status == Some(0);
    if !may {
        test_support::skip("no namespaces can be created here (requires root or user namespaces)");
    }
    may
}

/// The trials, which must all be complete, with what does not depend on the time.
fn complete(folder: &Path, study: &str) -> String {
    let listed = done(folder, &format!("hpo trials {study} --json --state complete")).stdout;
    assert_eq!(listed.lines().count(), 6, "{listed}");
    listed
}

/// Asserts that each journal has one end, which is that of a trial that ran once more at most.
fn ended_once(folder: &Path, study: &str) {
    for number in 0..6 {
        let journal = folder.join(format!("{study}/trials/{number:05}/trial.jsonl"));
        let text = fs::read_to_string(&journal).unwrap();
        assert_eq!(text.matches("\"kind\":\"end\"").count(), 1, "{number}: {text}");
    }
}

#[test]
fn a_full_or_read_only_disk_is_one_error_and_the_study_goes_on_later() {
    let temporary = prepare();
    let folder = temporary.path();
    let script = "mkdir disk && mount -t tmpfs -o size=256k tmpfs disk
        hpo new disk/study -c study.yaml && hpo worker disk/study --trials 2 || test $? = 75
        says() { tail -n 1 said | grep -q \"^hpo: .*disk/study/.*$1\" || { cat said; exit 1; }; }
        fails() { status=$1; shift; \"$@\" 2> said && exit 1 || test $? = $status || { cat said; exit 1; }; }
        hpo ask disk/study
        head -c 300k /dev/zero > disk/filler || true
        fails 73 hpo worker disk/study; says 'No space left\\|free'
        fails 73 hpo ask disk/study; says 'No space left\\|free'
        hpo trials disk/study --json > full; rm disk/filler
        mount -o remount,ro disk
        fails 73 hpo worker disk/study; says 'Read-only'
        fails 73 hpo tell disk/study 2 1; says 'Read-only'
        hpo status disk/study; hpo best disk/study
        mount -o remount,rw disk; hpo tell disk/study 2 1
        hpo worker disk/study; cp -r disk/study study; test $(grep -c complete full) = 2";
    let script = script.replace("'", "'\\''");
    let mounted = format!("exec unshare --map-root-user --mount sh -euc '{script}'");
    if !may_unshare(folder) {
        return;
    }
    done(folder, &mounted);
    complete(folder, "study");
    ended_once(folder, "study");
}

#[test]
fn damaged_lines_of_a_journal_cost_only_themselves() {
    let temporary = prepare();
    let folder = temporary.path();
    done(folder, "hpo new study -c study.yaml && hpo worker study");
    let expected = complete(folder, "study");
    let path = folder.join("study/trials/00002/trial.jsonl");
    let whole = fs::read(&path).unwrap();
    let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
    let [start, value, end] = lines[..] else { panic!("{}", String::from_utf8_lossy(&whole)) };
    let binary: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let other_digit = if value[value.len() - 4] == b'0' { b'1' } else { b'0' };
    let other_sum = [&value[..value.len() - 4], &[other_digit], b"\"}\n"].concat();
    let damaged: [(&str, Vec<u8>, bool); 6] = [
        ("twice", [start, start, start, value, value, end, end, start].concat(), false),
        ("binary", [start, &binary, b"\n", value, end, &binary, b"\n"].concat(), true),
        ("checksum", [start, &other_sum, value, end].concat(), true),
        ("long", [start, &vec![b'x'; 3 << 20], b"\n", value, end].concat(), true),
        ("torn", [start, value, end, &start[..40]].concat(), false),
        ("without its newline", [start, value, &end[..end.len() - 1]].concat(), false),
    ];
    for (name, bytes, warns) in damaged {
        fs::write(&path, bytes).unwrap();
        assert_eq!(complete(folder, "study"), expected, "{name}");
        let again = done(folder, "hpo worker study");
        assert_eq!(
            again.stderr.contains("trial.jsonl: skipped"),
            warns,
            "{name}: {}",
            again.stderr
        );
    }
    // Without its end a trial is open, and ends with the same value.
    fs::write(&path, [start, value, &end[..end.len() / 2]].concat()).unwrap();
    done(folder, "hpo worker study");
    let value =
        |text: &str| text.lines().nth(2).unwrap().split("\"step\"").next().unwrap().to_string();
    assert_eq!(value(&complete(folder, "study")), value(&expected));
    ended_once(folder, "study");
    // Without its start nobody knows its parameters: the worker names the file, and writes nothing.
    fs::write(&path, [&start[5..], lines[1], end].concat()).unwrap();
    let refused = shell(folder, "hpo worker study");
    assert_eq!(refused.status, Some(65), "{}", refused.stderr);
    let advice =
        "00002/trial.jsonl: its first record is damaged; move the folder of the trial away";
    assert!(refused.stderr.contains(advice), "{}", refused.stderr);
    done(folder, "mv study/trials/00002 aside && hpo worker study");
    complete(folder, "study");

    // A retry that cannot be read any more is found in the journal, not only in the snapshot.
    done(folder, "hpo new many -c study.yaml -s trials=18 && hpo worker many");
    let snapshot = fs::read_to_string(folder.join("many/snapshot.json")).unwrap();
    let failed = snapshot.replacen("\"state\":\"complete\"", "\"state\":\"failed\"", 1);
    fs::write(folder.join("many/snapshot.json"), failed).unwrap();
    assert_eq!(done(folder, "hpo trials many --ids --state failed").stdout, "0\n");
    fs::write(folder.join("many/retried.jsonl"), "{\"trial\":0,\"crc\":\"00000000\"}\n").unwrap();
    let found = done(folder, "hpo trials many --ids --state failed");
    assert_eq!(found.stdout, "");
    assert!(found.stderr.contains("retried.jsonl: skipped 1 damaged"), "{}", found.stderr);
}

/// A worker on another machine: a PID namespace is one for the leases.
const ELSEWHERE: &str =
    "unshare --map-root-user --pid --fork --kill-child --mount-proc hpo worker study";

#[test]
fn workers_with_wrong_clocks_run_every_trial_once() {
    let temporary = prepare();
    let folder = temporary.path();
    if !may_unshare(folder) {
        return;
    }
    make_clock(folder);
    let trial = format!("echo >> ran-$HPO_TRIAL\nsleep 0.3\n{TRIAL}");
    fs::write(folder.join("trial.sh"), trial).unwrap();
    let script = format!(
        "LD_PRELOAD=$PWD/clock.so SHIFT=86400 hpo new study -c study.yaml
         for shift in 0 86400 -86400; do
             LD_PRELOAD=$PWD/clock.so SHIFT=$shift {ELSEWHERE} & all=\"${{all-}} $!\"
         done
         for worker in $all; do wait $worker; done"
    );
    done(folder, &script);
    complete(folder, "study");
    ended_once(folder, "study");
    let mut days = std::collections::BTreeSet::new();
    for number in 0..6 {
        assert_eq!(fs::read(folder.join(format!("ran-{number}"))).unwrap(), b"\n", "{number}");
        let journal = folder.join(format!("study/trials/{number:05}/trial.jsonl"));
        days.insert(fs::read_to_string(journal).unwrap()[..20].to_string());
    }
    assert!(days.len() > 1, "one clock wrote all journals: {days:?}");
}

#[test]
fn a_trial_is_taken_over_though_its_last_heartbeat_lies_in_the_future() {
    let temporary = prepare();
    let folder = temporary.path();
    if !may_unshare(folder) {
        return;
    }
    let trial = format!("test -e began || {{ touch began; sleep 300; }}\n{TRIAL}");
    fs::write(folder.join("trial.sh"), trial).unwrap();
    let script = format!(
        "export LONGHAUL_HEARTBEAT=0.3
         hpo new study -c study.yaml
         {ELSEWHERE} & killed=$!
         until [ -e began ]; do sleep 0.01; done
         kill -9 $killed; wait $killed || true
         touch -d '1 day' study/trials/00000/claim/attempt-*.json study/trials/00000/command/attempt-*.json
         timeout 100 hpo worker study"
    );
    done(folder, &script);
    complete(folder, "study");
    ended_once(folder, "study");
}

/// The trials of a study with one command for all, as JSON.
fn trials_after(trial: &str, script: &str) -> String {
    let temporary = prepare();
    let folder = temporary.path();
    fs::write(folder.join("trial.sh"), trial).unwrap();
    let output = shell(folder, &format!("{script}\nhpo trials study --json"));
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    output.stdout
}

#[test]
fn a_value_told_after_a_request_to_stop_is_kept() {
    let trial = "trap 'hpo tell $HPO_STUDY $HPO_TRIAL 1.5 --final; exit 143' TERM
        touch started; while :; do sleep 0.05; done";
    let listed = trials_after(
        trial,
        "hpo new study -c study.yaml -s trials=1
         hpo worker study & worker=$!
         until [ -e started ]; do sleep 0.05; done
         kill -TERM $worker; wait $worker || true",
    );
    assert!(listed.contains("\"complete\",\"value\":1.5"), "{listed}");
}

#[test]
fn a_trial_that_could_not_write_is_tried_again() {
    let trial = "test -e tried || { touch tried; echo full >&2; exit 74; }
        hpo tell $HPO_STUDY $HPO_TRIAL $1 --final";
    let listed = trials_after(trial, "hpo new study -c study.yaml -s trials=1; hpo worker study");
    assert!(listed.contains("\"complete\"") && listed.contains("\"attempts\":2"), "{listed}");
}

/// The second trial is worse than the first; its worker is killed when it has recorded the value and not yet the decision.
#[test]
fn the_pruner_is_asked_about_the_value_of_a_killed_worker() {
    let trial = "test -e told-$HPO_TRIAL || hpo tell $HPO_STUDY $HPO_TRIAL $HPO_TRIAL --step 1
        touch told-$HPO_TRIAL; test $HPO_TRIAL = 0 || sleep 20
        hpo tell $HPO_STUDY $HPO_TRIAL $HPO_TRIAL --final";
    let new = "hpo new study -c study.yaml -s trials=2 -s 'pruner={kind: percentile, startup: 1}'";
    let undisturbed = trials_after(trial, &format!("{new}; hpo worker study"));
    assert!(undisturbed.contains("\"pruned\""), "{undisturbed}");
    // The journals have start, value, kept, end; start, value and, unwritten, end.
    let killed = trials_after(
        trial,
        &format!(
            "{new}; FAIL=log.write:7=kill hpo worker study || echo $? > status
             grep -q 137 status; ! grep -q pruned study/trials/00001/trial.jsonl
             hpo worker study"
        ),
    );
    assert!(killed.contains("\"pruned\""), "{killed}");
}
