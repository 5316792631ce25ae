//! `timekeep left`: which commands it asks, and how it uses the answers.

use std::fs;
use std::process::Stdio;

use super::{in_seconds, path_with, script, see, timekeep};

#[test]
fn left_by_slurms_end_time() {
    let end = [("SLURM_JOB_ID", "12".to_string()), ("SLURM_JOB_END_TIME", in_seconds(3600))];
    let output = see(timekeep(&["left"]).envs(end.clone()));
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""));
    let (seconds, rest) = output.stdout.split_once(' ').unwrap();
    assert!((3000..=3600).contains(&seconds.parse::<u64>().unwrap()), "{}", output.stdout);
    assert!(rest.starts_with("s left (") && rest.ends_with("says SLURM_JOB_END_TIME\n"));

    let output =
        see(timekeep(&["left", "--json"]).envs(end).env("LONGHAUL_END_TIME", in_seconds(1000)));
    let record: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(record["source"], "LONGHAUL_END_TIME");
    assert!((500..=1000).contains(&record["left"].as_u64().unwrap()), "{record}");
}

#[test]
fn left_without_any_limit() {
    let output = see(&mut timekeep(&["left"]));
    assert_eq!((output.status, output.stdout.as_str()), (Some(0), "unlimited\n"));
    let output = see(&mut timekeep(&["left", "--json"]));
    assert_eq!(output.stdout, "{\"left\":null,\"source\":null}\n");
}

#[test]
fn left_asks_squeue_once_and_about_this_task_only() {
    let folder = tempfile::tempdir().unwrap();
    let asked = folder.path().join("asked");
    let squeue = folder.path().join("squeue");
    script(&folder.path().join("scontrol"), "exit 1");
    script(&squeue, &format!("echo \"$@\" >> {}; echo 1-02:03:04", asked.display()));
    let job =
        [("SLURM_JOB_ID", "120"), ("SLURM_ARRAY_JOB_ID", "120"), ("SLURM_ARRAY_TASK_ID", "7")];
    let left = || {
        let mut command = timekeep(&["left"]);
        command.envs(job).env("PATH", path_with(folder.path()));
        command
    };
    let output = see(&mut left());
    assert!(output.stdout.starts_with("93783 s left"), "{}{}", output.stdout, output.stderr);
    assert!(output.stdout.ends_with("says squeue\n"), "{}", output.stdout);
    assert_eq!(fs::read_to_string(&asked).unwrap(), "-h -j 120_7 -o %L\n");

    // If the end time is given, squeue is not asked.
    let output = see(left().env("LONGHAUL_END_TIME", in_seconds(1000)));
    assert!(output.stdout.contains("LONGHAUL_END_TIME"), "{}", output.stdout);
    assert_eq!(fs::read_to_string(&asked).unwrap().lines().count(), 1);

    script(&squeue, "echo UNLIMITED");
    assert_eq!(see(&mut left()).stdout, "unlimited\n");
    for (text, hint) in [
        ("echo INVALID", "INVALID"),
        ("echo 'slurm_load_jobs error' >&2; exit 1", "failed"),
        ("head -c 1000 /dev/zero", "not a time"),
        ("cat /dev/zero", "failed"),
        (":", "not a time"),
    ] {
        script(&squeue, text);
        let output = see(&mut left());
        assert_eq!((output.status, output.stdout.as_str()), (Some(75), "unknown\n"), "{text}");
        let expected = output.stderr.starts_with("timekeep: end of the job unknown: squeue");
        assert!(expected && output.stderr.contains(hint), "{text}: {}", output.stderr);
    }
    fs::remove_file(&squeue).unwrap();
    let output = see(left().env("PATH", folder.path()));
    assert!(output.stderr.contains("squeue: No such file"), "{}", output.stderr);
}

#[test]
fn scontrol_is_asked_where_squeue_fails() {
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("squeue"), "exit 1");
    let scontrol = folder.path().join("scontrol");
    script(
        &scontrol,
        "test \"$*\" = 'show job -o 12' || exit 1
        echo JobId=12 JobName=a=b RunTime=00:59:00 TimeLimit=1-00:00:00 TimeMin=N/A",
    );
    let left = || {
        let mut command = timekeep(&["left"]);
        command.env("SLURM_JOB_ID", "12").env("PATH", path_with(folder.path()));
        command
    };
    let output = see(&mut left());
    // A day minus 59 minutes and the time since then.
    let seconds: u64 = output.stdout.split(' ').next().unwrap().parse().unwrap();
    assert!((82_000..=82_860).contains(&seconds), "{}", output.stdout);
    assert!(output.stdout.ends_with("says scontrol\n"), "{}", output.stdout);
    for text in ["echo nonsense", "echo RunTime=x TimeLimit=y", "head -c 100000 /dev/urandom"] {
        script(&scontrol, text);
        let output = see(&mut left());
        assert_eq!((output.status, output.stdout.as_str()), (Some(75), "unknown\n"), "{text}");
        assert!(output.stderr.contains("; scontrol answered"), "{text}: {}", output.stderr);
    }
}

#[test]
fn a_squeue_that_hangs_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    script(&folder.path().join("squeue"), "exec sleep 600");
    script(&folder.path().join("scontrol"), "exit 1");
    let mut command = timekeep(&["left"]);
    command.env("SLURM_JOB_ID", "12").env("PATH", path_with(folder.path()));
    let start = std::time::Instant::now();
    let output = see(&mut command);
    assert!(start.elapsed().as_secs() < 300, "{:?}", start.elapsed());
    assert_eq!((output.status, output.stdout.as_str()), (Some(75), "unknown\n"));
    assert!(output.stderr.contains("squeue did not answer within 10 s"), "{}", output.stderr);
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut left = timekeep(&["left", "--json"]);
    let child = left.stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}
