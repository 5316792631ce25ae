use super::*;

/// The update (from 1) that reads the large sample, and the regular checkpoint before it.
const SPIKE: u64 = 31;
const BACK: u64 = 28;
/// Forward/backward passes per update: computations are counted in these.
const PASSES: u64 = 2;

fn rewinding(folder: &Path, name: &str, seed: u64, faults: Value) -> Run {
    Run::new(folder, name, seed, faults, json!({"on_spike": "rewind"}))
}

fn large_sample(seed: u64) -> Value {
    json!({"large_sample": sample_of(seed, SPIKE)})
}

#[test]
fn a_spike_is_recorded_and_the_run_continues() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let run = Run::new(temporary.path(), "record", seed, large_sample(seed), json!({}));
    assert_eq!(run.start(), 0);
    let spikes = run.records("spike", false);
    let spike = &spikes[0];
    assert_eq!((spikes.len(), &spike["update"], &spike["of"]), (1, &json!(SPIKE), &json!("loss")));
    assert!(spike["value"].as_f64() > spike["limit"].as_f64(), "{spike}");
    assert_eq!(run.outcome().progress["steps"], 60, "the update was done");
}

#[test]
fn a_rewind_is_the_same_however_often_the_run_is_interrupted() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let new = |name: &str| rewinding(temporary.path(), name, seed, large_sample(seed));
    let whole = new("whole");
    assert_eq!(whole.start(), 0);
    // Best validations make checkpoints at other updates too; the rewind used a regular one.
    let rewinds = whole.records("rewind", true);
    let rewind = &rewinds[0];
    assert_eq!(
        (rewinds.len(), &rewind["update"], &rewind["spike_at"]),
        (1, &json!(BACK), &json!(SPIKE))
    );
    assert_eq!(rewind["spike"]["of"], "loss");
    let skipped_samples = (SPIKE - BACK + 4) * PASSES * BATCH;
    assert_eq!(rewind["skipped_samples"], skipped_samples);
    // Updates that were repeated used other samples, and their last record counts.
    let (all, standing) = (whole.records("update", true), whole.records("update", false));
    assert_eq!((all.len() as u64, standing.len()), (60 + SPIKE - 1 - BACK, 60));
    for update in BACK + 1..SPIKE {
        let twice: Vec<&Value> = all.iter().filter(|r| r["update"] == update).collect();
        assert_eq!(twice.len(), 2);
        assert_ne!(twice[0]["loss"], twice[1]["loss"], "update {update}");
        assert_eq!(standing[update as usize - 1]["loss"], twice[1]["loss"]);
    }
    let outcome = whole.outcome();
    let progress = |key: &str| outcome.progress[key].as_u64().unwrap();
    assert_eq!((progress("update"), progress("steps"), progress("rewinds")), (60, 60, 1));
    assert_eq!((progress("samples"), progress("skipped_samples")), (240, skipped_samples));

    let again = new("again");
    assert_eq!(again.start(), 0);
    assert!(again.outcome() == outcome, "seed {seed}: not repeatable");

    // Before, during and after the spike and the rewind: killed, or stopped with a checkpoint that is not a regular
    // one. Whatever was repeated before, computation 2·SPIKE is that of the spike.
    let first = PASSES * (BACK - 1);
    let random = Philox::new(seed, Purpose::Test);
    let long = std::env::var_os("TORTURE").is_some();
    // In the last update a stop request comes too late.
    for at in 1..PASSES * (60 + SPIKE - BACK - 1) {
        let near = at >= first && at <= PASSES * (SPIKE + 4);
        if !long && (!near && random.below(0, at, 16) > 0 || near && random.below(0, at, 5) > 0) {
            continue;
        }
        for how in ["kill", "term"] {
            let run = new(&format!("{how}-{at}"));
            let ended = run.start_and_die(&format!("{how}:{at}"));
            assert_eq!(ended, (how == "term").then_some(75), "{how} at {at}");
            // Interrupted again soon after, so that an attempt rewinds that started behind the checkpoint.
            run.start_and_die(&format!("{how}:{}", 1 + random.below(1, at, 12)));
            assert_eq!(run.start_and_die("none:0"), Some(0));
            assert!(run.outcome() == outcome, "seed {seed}: {how} at {at}: ended differently");
        }
    }
}

#[test]
fn checkpoints_behind_a_rewind_are_gone() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let run = rewinding(temporary.path(), "run", seed, large_sample(seed));
    // Stopped within update 30: this leaves a checkpoint from which nothing may start after the rewind.
    let term = format!("term:{}", PASSES * 30);
    assert_eq!(run.start_and_die(&term), Some(75));
    assert_eq!(*run.checkpoints().last().unwrap(), 30);
    assert!(run.checkpoints().contains(&BACK), "{:?} with keep_last 1", run.checkpoints());
    // The second attempt computes the two passes of the spike, rewinds, and is killed after one more update.
    assert_eq!(run.start_and_die(&format!("kill:{}", 2 * PASSES + 1)), None);
    let left = run.checkpoints();
    assert!(left.contains(&BACK) && left.iter().all(|step| *step <= BACK), "{left:?}");
    let rewind = &run.records("rewind", true)[0];
    assert!(rewind["superseded"].as_array().unwrap().contains(&json!("step-00000030")), "{rewind}");
    let [latest, best] = ["latest", "best"].map(|link| run.folder.join("ckpt").join(link));
    assert!(latest.exists());
    // If no validated checkpoint is left, there is no best one.
    assert!(best.exists() || std::fs::symlink_metadata(&best).is_err(), "best names nothing");
}

#[test]
fn a_checkpoint_left_over_from_before_a_rewind_does_no_harm() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let whole = rewinding(temporary.path(), "whole", seed, large_sample(seed));
    assert_eq!(whole.start(), 0);
    // As when its removal failed, or a backup was restored: beside newer ones, and alone.
    for alone in [false, true] {
        let run = rewinding(temporary.path(), &format!("alone-{alone}"), seed, large_sample(seed));
        assert_eq!(run.start_and_die(&format!("term:{}", PASSES * 30)), Some(75));
        let (folder, old) = (run.folder.join("ckpt"), "step-00000030");
        let aside = run.folder.join("aside");
        std::fs::create_dir(&aside).unwrap();
        for file in std::fs::read_dir(folder.join(old)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), aside.join(file.file_name())).unwrap();
        }
        // Back at update 28 after 2 computations; stopped at 29, below the one that was set aside.
        assert_eq!(run.start_and_die(&format!("term:{}", 2 * PASSES)), Some(75));
        assert_eq!(*run.checkpoints().last().unwrap(), 29);
        if alone {
            for step in run.checkpoints() {
                std::fs::remove_dir_all(folder.join(format!("step-{step:08}"))).unwrap();
            }
        }
        std::fs::rename(&aside, folder.join(old)).unwrap();
        assert_eq!(run.start(), u8::from(alone));
        match alone {
            false => assert!(run.outcome() == whole.outcome(), "seed {seed}"),
            true => assert!(run.status().reason.unwrap().contains("no good checkpoint before it")),
        }
    }
}

#[test]
fn a_spike_before_the_first_checkpoint_goes_back_to_the_beginning() {
    let temporary = tempfile::tempdir().unwrap();
    let seed = seed();
    let faults = json!({"large_sample": sample_of(seed, 12)});
    let mut outcomes = Vec::new();
    for name in ["first", "second"] {
        let mut run = rewinding(temporary.path(), name, seed, faults.clone());
        run.config["checkpoint"]["every"] = json!(50);
        if name == "second" {
            assert_eq!(run.start_and_die("term:20"), Some(75));
        }
        assert_eq!(run.start(), 0);
        let rewinds = run.records("rewind", true);
        assert_eq!((rewinds.len(), &rewinds[0]["update"]), (1, &json!(0)));
        outcomes.push(run.outcome());
    }
    assert!(outcomes[0] == outcomes[1], "seed {seed}");
}

#[test]
fn a_spike_that_comes_again_and_again_ends_the_run() {
    let temporary = tempfile::tempdir().unwrap();
    let run = rewinding(temporary.path(), "run", seed(), json!({"large_pass": PASSES * SPIKE}));
    assert_eq!(run.start(), 1);
    assert_eq!(run.records("rewind", true).len(), 3);
    let status = run.status();
    assert_eq!((status.state, status.update), (State::Failed, SPIKE - 1));
    let reason = status.reason.unwrap();
    assert!(reason.contains("spike.rewinds allows 3"), "{reason}");
    assert_eq!(*run.checkpoints().last().unwrap(), BACK + 2, "the best validation, at 30");
}
