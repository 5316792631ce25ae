//! Work that is interrupted before it is done, on every attempt.

use std::path::Path;
use std::process::Command;

use super::world;
use crate::common::{run, shell};

/// Stopped before it has done anything: it waits at its first status until the signal was sent.
fn stopped_at_once(words: &[&str]) -> (Option<i32>, String) {
    let hold = run::Hold::new(world());
    let mut command = Command::new("env");
    command.arg("FAIL=status.write:1=hold").args(words).current_dir(world());
    let mut child = run::spawn(world(), command);
    child.wait_for_handlers();
    child.signal("USR1");
    child.wait_for_delivery();
    drop(hold);
    child.end()
}

#[test]
fn work_that_a_limit_stops_every_time_finally_fails() {
    let programs = Path::new(env!("CARGO_BIN_EXE_evaluate")).parent().unwrap();
    let program = |name: &str| programs.join(name).display().to_string();
    let (evaluate, latent_cache) = (program("evaluate"), program("latent-cache"));
    let evaluation = [&evaluate, "score", "codec", "--data", "data/split.json", "-o", "short"];
    let latents = [&latent_cache, "make", "codec", "--data", "data/split.json", "-o", "never"];
    for (words, folder, advice) in
        [(&evaluation[..], "short", "--steps"), (&latents[..], "never", "--shard")]
    {
        for _ in 0..2 {
            assert_eq!(stopped_at_once(words).0, Some(75));
        }
        let (status, stderr) = stopped_at_once(words);
        assert_eq!(status, Some(1), "{stderr}");
        assert!(stderr.contains("longer time limit") && stderr.contains(advice), "{stderr}");
        assert_eq!(run::status(&world().join(folder))["state"], "failed", "{stderr}");
        // Started once more with more time, it completes.
        let output = shell(world(), &words.join(" "));
        assert_eq!(output.status, Some(0), "{}", output.stderr);
    }
}

#[test]
fn latents_that_make_progress_may_be_killed_any_number_of_times() {
    // Each attempt stores one or two shards and dies; there are 16 shards.
    let make = "FAIL=publish.renamed:6=kill latent-cache make codec --data data/split.json \
                --shard 1 -o killed";
    let mut attempts = 0;
    loop {
        let output = shell(world(), &format!("{make} || exit $?"));
        attempts += 1;
        assert!(attempts < 40, "{}", output.stderr);
        match output.status {
            Some(0) => break,
            status => assert_eq!(status, Some(137), "{}", output.stderr),
        }
    }
    assert!(attempts > 4, "{attempts}");
    assert_eq!(shell(world(), "latent-cache verify killed/train").status, Some(0));
}
