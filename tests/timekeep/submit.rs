//! `timekeep submit` and `cron`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use super::place::Place;
use super::{Captured, script, see};

#[test]
fn submitted_once_and_again_only_when_it_stopped() {
    let place = Place::new();
    fs::write(place.path("site"), "# here\nSITE=ours\n").unwrap();
    let output = place.see(&["submit", "--site", "site", "a", "--", "sbatch", "x y", "$HOME"]);
    assert_eq!((output.status, output.stdout.as_str()), (Some(0), "101\n"), "{}", output.stderr);
    let here = place.folder.path().canonicalize().unwrap();
    assert_eq!(place.submissions(), [format!("{} ours x y $HOME", here.display())]);

    place.queue("101|PENDING|Priority\\n7|RUNNING|None\\n");
    let output = place.see(&["submit", "a", "--", "sbatch", "other"]);
    assert_eq!((output.status, output.stdout.as_str()), (Some(0), "101\n"), "{}", output.stderr);
    assert!(output.stderr.contains("in the queue: PENDING (Priority)"), "{}", output.stderr);
    assert!(output.stderr.contains("the earlier command is kept"), "{}", output.stderr);
    fs::write(place.path("bad"), b"A=\xff\n").unwrap();
    let output = place.see(&["submit", "--site", "bad", "a", "--", "sbatch"]);
    assert_eq!(output.status, Some(78), "{}", output.stderr);
    assert_eq!(place.cron(), ("left".into(), "in the queue: PENDING (Priority)".into()));

    // The command that submitted the last job counts, run from its original folder.
    place.queue("");
    place.status("a", "stopped", 50);
    let mut elsewhere = place.command(&["cron", &here.join("a").display().to_string()]);
    assert_eq!(see(elsewhere.current_dir("/")).status, Some(0));
    assert_eq!(place.submissions()[1], place.submissions()[0]);

    for (state, why) in [("finished", "finished"), ("failed", "failed: signal SIGUSR1")] {
        place.status("a", state, 60);
        assert_eq!(place.cron(), ("left".into(), why.into()));
    }
    assert_eq!(place.submissions().len(), 2);
}

#[test]
fn jobs_without_progress_are_not_submitted_for_ever() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).status, Some(0));
    for attempt in 1..6 {
        assert_eq!(place.see(&["cron", "a"]).status, Some(0));
        // Each of the attempts started without making progress.
        place.start("a", "stopped", 0, attempt);
    }
    assert_eq!(place.submissions().len(), 3);
    let (done, why) = place.cron();
    assert!(done == "left" && why.starts_with("3 jobs made no progress"), "{why}");
    assert!(why.contains("newest: job 103"), "{why}");
    // Told to, it tries again; and further on it goes on.
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "104\n");
    place.status("a", "stopped", 1);
    assert_eq!(place.cron().0, "submitted");
}

#[test]
fn cancelled_and_forgotten_jobs_are_left_alone() {
    let place = Place::new();
    place.status("a", "stopped", 50);
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "101\n");
    for (program, text) in [
        ("scontrol", "test \"$*\" = \"show job -o 101\" && echo JobId=101 JobState=CANCELLED"),
        ("scontrol", "exit 1"), // forgotten by SLURM, and remembered
    ] {
        script(&place.path(program), text);
        let (done, why) = place.cron();
        assert!(done == "left" && why.starts_with("job 101 was cancelled"), "{done}: {why}");
    }
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "102\n");
    script(&place.path("sacct"), "echo 'CANCELLED by 1000'");
    assert!(place.cron().1.starts_with("job 102 was cancelled"));
    script(&place.path("sacct"), "echo COMPLETED");
    place.status("a", "stopped", 60);
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "103\n");
    place.status("a", "stopped", 70);
    assert_eq!(place.cron().0, "submitted");

    place.status("a", "stopped", 80);
    assert_eq!(place.see(&["submit", "--forget", "a"]).status, Some(0));
    assert!(place.cron().1.contains("--forget"));
    // Submitted again, it is managed by cron again, even if that needs no new job.
    place.queue("104|RUNNING|None\\n");
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "104\n");
    place.queue("");
    script(&place.path("scontrol"), "echo JobId=104 JobState=FAILED");
    place.status("a", "stopped", 80);
    assert_eq!(place.cron().0, "submitted");
    assert_eq!(place.see(&["submit", "--forget", "a"]).status, Some(0));
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "106\n");
    place.status("a", "stopped", 90);
    assert_eq!(place.cron().0, "submitted");
    place.status("b", "stopped", 1);
    assert_eq!(place.see(&["submit", "--forget", "b"]).status, Some(66));
    assert_eq!(place.see(&["submit", "--forget", "a", "--", "sbatch"]).status, Some(2));
}

#[test]
fn a_job_that_waits_for_a_failed_one_is_replaced() {
    let place = Place::new();
    let submit = |after: &str| place.see(&["submit", "a", "--", "sbatch", after]);
    assert_eq!(submit("--dependency=afterok:7").stdout, "101\n");
    // It now waits for another job, or for one that can no longer succeed; otherwise it stays queued.
    for (reason, after, job) in [
        ("Dependency", "--dependency=afterok:7", "101\n"),
        ("Dependency", "--dependency=afterok:8", "102\n"),
        ("DependencyNeverSatisfied", "--dependency=afterok:8", "103\n"),
        ("DependencyNeverSatisfied", "--test", "104\n"),
        ("Priority", "--test", "104\n"),
    ] {
        script(&place.path("scancel"), "echo $1 >> cancelled");
        let last = 100 + place.submissions().len();
        place.queue(&format!("{last}|PENDING|{reason}\\n"));
        let output = submit(after);
        assert_eq!(output.stdout, job, "{reason} {after}: {}", output.stderr);
    }
    assert_eq!(fs::read_to_string(place.path("cancelled")).unwrap(), "101\n102\n103\n");
    place.queue("104|PENDING|DependencyNeverSatisfied\\n");
    script(&place.path("scancel"), "echo no >&2; exit 1");
    let output = submit("--test");
    assert_eq!(output.status, Some(1));
    assert!(output.stderr.contains("`scancel 104`"), "{}", output.stderr);
}

#[test]
fn a_replaced_job_is_recorded_as_cancelled_also_when_the_new_submission_fails() {
    let place = Place::new();
    let submit = |after: &str| place.see(&["submit", "a", "--", "sbatch", after]);
    assert_eq!(submit("--dependency=afterok:7").stdout, "101\n");
    place.queue("101|PENDING|DependencyNeverSatisfied\\n");
    script(&place.path("scancel"), "printf '' > queued");
    script(&place.path("squeue"), "cat queued");
    fs::write(place.path("queued"), "101|PENDING|DependencyNeverSatisfied\n").unwrap();
    script(&place.path("sbatch"), "echo Invalid account >&2; exit 1");
    let output = submit("--dependency=afterok:8");
    assert_eq!((output.status, output.stdout.as_str()), (Some(1), ""), "{}", output.stderr);
    assert_eq!(place.records(&["status", "a"])[0]["job"], json!(null));
    // cron only knows the old command, which waits for the job that failed.
    let (done, why) = place.cron();
    assert!(done == "left" && why.starts_with("job 101 was cancelled"), "{done}: {why}");
}

#[test]
fn an_array_that_waits_in_vain_is_replaced_as_a_whole() {
    let place = Place::new();
    let submit = |after: &str| place.see(&["submit", "a", "--", "sbatch", after]);
    assert_eq!(submit("--dependency=afterok:7").stdout, "101\n");
    script(&place.path("scancel"), "echo $1 >> cancelled");
    // One task is running, or waits for something else.
    place.queue("101_1|PENDING|DependencyNeverSatisfied\\n101_2|RUNNING|None\\n");
    assert_eq!(submit("--dependency=afterok:8").stdout, "101\n");
    assert!(!place.path("cancelled").exists());
    let lines = "101_1|PENDING|DependencyNeverSatisfied\\n101_[2-9]|PENDING|Dependency\\n";
    place.queue(lines);
    assert_eq!(submit("--dependency=afterok:8").stdout, "102\n");
    assert_eq!(fs::read_to_string(place.path("cancelled")).unwrap(), "101\n");
    // A task of an array.
    let task = |after: &str| place.see(&["submit", "b", "--", "sh", "-c", "echo 120_4", after]);
    assert_eq!(task("--dependency=afterok:7").stdout, "120_4\n");
    place.queue("120_3|RUNNING|None\\n120_4|PENDING|DependencyNeverSatisfied\\n");
    assert_eq!(task("--dependency=afterok:7").stdout, "120_4\n");
    assert_eq!(fs::read_to_string(place.path("cancelled")).unwrap(), "101\n120_4\n");
}

#[test]
fn a_held_job_is_shown_with_what_to_do() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).stdout, "101\n");
    place.status("a", "stopped", 50);
    place.queue("101|PENDING|JobHeldUser\\n");
    let what_to_do = "scontrol release 101";
    let note = |output: Captured| {
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        output.stdout
    };
    assert!(note(place.see(&["status", "a"])).contains(what_to_do));
    assert!(place.cron().1.contains(what_to_do), "{:?}", place.cron());
    // Also if the run has failed, and if timekeep did not submit the job.
    place.queue("101|PENDING|job_requeued_in_held_state\\n");
    place.status("a", "failed", 50);
    let (done, why) = place.cron();
    assert!(done == "left" && why.starts_with("failed: signal SIGUSR1; job 101"), "{why}");
    assert!(why.contains(what_to_do), "{why}");
    assert!(note(place.see(&["status", "a"])).contains(what_to_do));
    // Without waiting jobs, squeue is not asked.
    script(&place.path("squeue"), "echo asked >> asked; exit 1");
    place.status("a", "finished", 50);
    assert_eq!(place.see(&["status", "a"]).stderr, "");
    assert!(!place.path("asked").exists());
}

#[test]
fn cron_submits_with_the_exported_environment() {
    let place = Place::new();
    let setup = place.path("setup.sh").display().to_string();
    let sbatch = "echo \"$LONGHAUL_SETUP $LONGHAUL_MARGIN $SBATCH_QOS ${OTHER-}\" >> seen
        echo $((100 + $(wc -l < seen)))";
    script(&place.path("sbatch"), sbatch);
    fs::write(place.path("site"), "LONGHAUL_MARGIN=9m\n").unwrap();
    let mut submit = place.command(&["submit", "--site", "site", "a", "--", "sbatch"]);
    submit.envs([("LONGHAUL_SETUP", &*setup), ("LONGHAUL_MARGIN", "8m"), ("SBATCH_QOS", "long")]);
    assert_eq!(see(submit.env("OTHER", "secret")).status, Some(0));
    place.status("a", "stopped", 50);
    assert_eq!(place.cron().0, "submitted");
    let lines = fs::read_to_string(place.path("seen")).unwrap();
    assert_eq!(lines, format!("{setup} 9m long secret\n{setup} 9m long \n"));
    let record = fs::read_to_string(place.path("a/submit.json")).unwrap();
    assert!(!record.contains("secret"), "{record}");
}

#[test]
fn cron_skips_folders_without_a_run() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "b", "--", "sbatch"]).stdout, "101\n");
    place.status("b", "stopped", 50);
    fs::create_dir(place.path("a")).unwrap();
    fs::write(place.path("c"), "").unwrap();
    let records = place.records(&["cron", "a", "b", "c"]);
    let done: Vec<&str> = records.iter().map(|record| record["done"].as_str().unwrap()).collect();
    assert_eq!(done, ["left", "submitted", "left"]);
    assert_eq!(records[0]["why"], "not a run directory");
    assert_eq!(place.see(&["cron", "absent"]).status, Some(66));
}

#[test]
fn a_failed_start_is_reported_and_left_alone() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).status, Some(0));
    let record = place.records(&["status", "a"]).remove(0);
    assert_eq!((&record["state"], &record["job"]), (&json!("new"), &json!("101")));
    let config = "data: {split: absent.json, stats: absent.json}
model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 20, batch_size: 8}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
";
    fs::write(place.path("codec.yaml"), config).unwrap();
    for (more, status, reason) in
        [("seed=1", 66, "absent.json"), ("training.no_such_key=1", 78, "no_such_key")]
    {
        let mut start = Command::new(env!("CARGO_BIN_EXE_train-stage"));
        start.args(["codec", "-c", "codec.yaml", "--run", "a", "-s", more]);
        let output = see(start.current_dir(place.folder.path()));
        assert_eq!(output.status, Some(status), "{}", output.stderr);
        let record = place.records(&["status", "a"]).remove(0);
        assert_eq!(record["state"], "failed", "{record}");
        assert!(record["reason"].as_str().unwrap().contains(reason), "{record}");
        let (done, why) = place.cron();
        assert!(done == "left" && why.starts_with("failed: "), "{done}: {why}");
    }
    assert_eq!(place.submissions().len(), 1);
}

#[test]
fn concurrent_submissions_submit_once() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).status, Some(0));
    place.status("a", "stopped", 50);
    // Every submitted job is running.
    let submitted = place.path("submitted");
    let lines = format!(
        "i=100; cat {} 2>/dev/null | while read -r _; do i=$((i + 1)); test $i -eq 101 || \
         echo \"$i|RUNNING|None\"; done",
        submitted.display()
    );
    script(&place.path("squeue"), &lines);
    for _ in 0..5 {
        let children: Vec<_> =
            (0..6).map(|_| place.command(&["cron", "a"]).spawn().unwrap()).collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        assert_eq!(place.submissions().len(), 2);
    }
}

#[test]
fn without_knowing_the_queue_nothing_is_submitted() {
    let place = Place::new();
    assert_eq!(place.see(&["submit", "a", "--", "sbatch"]).status, Some(0));
    place.status("a", "stopped", 50);
    for text in ["exit 1", "echo slurm_load_jobs error: busy"] {
        script(&place.path("squeue"), text);
        for words in [&["cron", "a"][..], &["submit", "a", "--", "sbatch"]] {
            let output = place.see(words);
            assert_eq!(output.status, Some(75), "{words:?}");
            assert!(output.stderr.contains("nothing was submitted"), "{}", output.stderr);
        }
    }
    assert_eq!(place.submissions().len(), 1);
}

#[test]
fn a_failed_submission_is_reported_and_the_others_are_made() {
    let place = Place::new();
    let moody =
        ["sh", "-c", "test -e mood && echo 7 || { echo sbatch: Invalid account >&2; exit 1; }"];
    let submit = [&["submit", "a", "--"], &moody[..]].concat();
    let output = place.see(&submit);
    assert_eq!((output.status, output.stdout.as_str()), (Some(1), ""));
    assert!(output.stderr.contains("Invalid account"), "{}", output.stderr);
    // A command that submitted no job must not be recorded for cron.
    assert!(!place.path("a/submit.json").exists());
    fs::write(place.path("mood"), "").unwrap();
    assert_eq!(place.see(&submit).stdout, "7\n");
    let record = fs::read(place.path("a/submit.json")).unwrap();
    for command in ["true", "no-such-program"] {
        assert_eq!(place.see(&["submit", "a", "--", command]).status, Some(1));
        assert_eq!(fs::read(place.path("a/submit.json")).unwrap(), record);
    }
    fs::remove_file(place.path("mood")).unwrap();

    fs::write(place.path("site"), "A=1\n").unwrap();
    assert_eq!(place.see(&["submit", "b", "--", "sbatch"]).status, Some(0));
    assert_eq!(place.see(&["submit", "--site", "site", "d", "--", "sbatch"]).status, Some(0));
    fs::write(place.path("site"), "module load x\n").unwrap();
    for run in ["a", "b", "c", "d"] {
        place.status(run, "stopped", 50);
    }
    let output = place.see(&["cron", "a", "b", "c", "d"]);
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stdout.contains("submitted") && output.stdout.contains("no submit.json"));
    assert!(
        output.stderr.contains("timekeep: d: ") && output.stderr.contains("site:1"),
        "{}",
        output.stderr
    );
    assert_eq!(place.submissions().len(), 3);
    let damaged = Path::new("a/submit.json");
    fs::write(place.folder.path().join(damaged), "[]").unwrap();
    assert_eq!(place.see(&["cron", "a"]).status, Some(65));
}
