//! Several jobs: arrays, pipelines, and jobs that compete for a run.

use std::path::Path;

use super::cluster::{Cluster, output};
use super::common::run::{Hold, newest_update, records, status, wait_until};
use super::{SLOW, digests, equals_undisturbed, starts};

/// Eight runs, two at a time; only one of them is requeued from outside.
pub fn array(cluster: &Cluster, folder: &Path) {
    let mut list = String::new();
    for seed in 1..=8 {
        let slow = if seed == 3 { format!("env {SLOW} ") } else { String::new() };
        list +=
            &format!("{slow}train-stage codec -c codec.yaml -s seed={seed} --run runs/{seed}\n");
    }
    std::fs::write(folder.join("runs.list"), list).unwrap();
    let array =
        cluster.stdout(folder, "sbatch --parsable --array=1-8%2 $SLURM/array.sbatch runs.list");
    let run = |seed: u64| folder.join(format!("runs/{seed}"));
    wait_until(|| newest_update(&run(3)) >= 6);
    cluster.stdout(folder, &format!("scontrol requeue {array}_3"));
    for task in 1..=8 {
        let job = format!("{array}_{task}");
        cluster.wait_for_success(&job, folder);
        assert_eq!(
            starts(&run(task)).len(),
            1 + usize::from(task == 3),
            "{}",
            output(folder, &job)
        );
    }
    // Each run counts as running from the start to the stop record in its log.
    let mut changes = Vec::new();
    for seed in 1..=8 {
        for record in records(&run(seed)) {
            let time = record["time"].as_str().unwrap().to_string();
            match record["kind"].as_str().unwrap() {
                "start" => changes.push((time, 1)),
                "stop" => changes.push((time, -1)),
                _ => {}
            }
        }
    }
    changes.sort();
    let at_work = changes.iter().scan(0, |sum, (_, change)| {
        *sum += change;
        Some(*sum)
    });
    assert!(at_work.max().unwrap() <= 2, "{changes:?}");
    cluster.stdout(folder, "train-stage codec -c codec.yaml --run undisturbed >&2");
    assert_eq!(digests(&run(3), 20), digests(&folder.join("undisturbed"), 20));
}

/// Codec, latents, operator, evaluation and gate: as five jobs, with interruptions of four kinds, and as one job.
pub fn pipeline(cluster: &Cluster, folder: &Path) {
    let operator = "seed: 4
data: {train: elsewhere/train, validation: elsewhere/validation}
model: {backbone: {kind: pdet_stack, hidden: 8, depth: 1, kernel_size: 3}}
loss: {horizons: [1, 2], validation_steps: 4}
training: {updates: 30, batch_size: 8, log_every: 1, validate_every: 9, validation_samples: 8, threads: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-3}
checkpoint: {every: 4}
";
    let pipeline = "folder: FOLDER
steps:
  - name: codec
    run: train-stage codec -c codec.yaml --run {folder}/codec
  - name: latents
    run: latent-cache make {folder}/codec --data split.json -o {folder}/latents
  - name: operator
    run: >
      train-stage operator -c operator.yaml --run {folder}/operator
      -s data.train={folder}/latents/train -s data.validation={folder}/latents/validation
    sbatch: --time=12
  - name: score
    run: >
      evaluate score {folder}/operator --data split.json --steps 4 --starts 2
      -o {folder}/score --summary {folder}/score/summary.json --force
    result: '{folder}/score/summary.json'
  - name: gate
    run: >
      evaluate gate {folder}/score --board board.jsonl --baseline any --first-passes
      --summary {folder}/gate/decision.json --force
    result: '{folder}/gate/decision.json'
";
    std::fs::write(folder.join("operator.yaml"), operator).unwrap();
    for (file, to) in [("pipeline.yaml", "jobs"), ("here.yaml", "here"), ("one.yaml", "one")] {
        std::fs::write(folder.join(file), pipeline.replace("FOLDER", to)).unwrap();
    }
    std::fs::write(folder.join("site"), format!("# slow\nSBATCH_TIMELIMIT=10\n{SLOW}\n")).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| pipeline_in_one_job(cluster, folder));
        pipeline_as_jobs(cluster, folder);
    });

    // The same without SLURM.
    equals_undisturbed(cluster, folder, "jobs/codec", 20);
    cluster.stdout(folder, "sh $SLURM/pipeline.sh --local here.yaml >&2");
    let results = |run: &str| {
        let text = std::fs::read(folder.join(run).join("summary.json")).unwrap();
        let summary: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(summary["state"], "done", "{summary}");
        summary["results"].clone()
    };
    let expected = results("here");
    assert_eq!(expected["score"]["steps"], 4, "{expected}");
    for run in ["jobs", "one"] {
        assert_eq!(
            digests(&folder.join(run).join("operator"), 30),
            digests(&folder.join("here/operator"), 30)
        );
        assert_eq!(results(run), expected);
    }
}

/// One job per step.
fn pipeline_as_jobs(cluster: &Cluster, folder: &Path) {
    let submitted = || -> Vec<String> {
        let ids = cluster.stdout(folder, "sh $SLURM/pipeline.sh --site site pipeline.yaml");
        ids.split(' ').map(str::to_string).collect()
    };
    let jobs = submitted();
    assert_eq!(jobs.len(), 5, "{jobs:?}");
    assert_eq!(cluster.field(&jobs[0], "TimeLimit"), "00:10:00", "of the site file");
    assert_eq!(cluster.field(&jobs[2], "TimeLimit"), "00:12:00", "of the step");
    // Jobs that are already in the queue are not submitted twice.
    assert_eq!(submitted(), jobs);

    let (codec, operator) = (folder.join("jobs/codec"), folder.join("jobs/operator"));
    wait_until(|| newest_update(&codec) >= 6);
    cluster.stdout(folder, &format!("scancel --signal=USR1 {}", jobs[0]));
    wait_until(|| newest_update(&codec) >= 12);
    cluster.stdout(folder, &format!("scontrol requeue {}", jobs[0]));
    wait_until(|| newest_update(&operator) >= 6);
    for later in &jobs[3..] {
        assert_eq!(cluster.field(later, "JobState"), "PENDING");
    }
    cluster.stdout(folder, &format!("scancel --signal=TERM {}", jobs[2]));
    wait_until(|| newest_update(&operator) >= 14);
    // The same command submits what was cancelled, and replaces the jobs that waited for it.
    cluster.stdout(folder, &format!("scancel {}", jobs[2]));
    cluster.wait_for(&jobs[2], &["CANCELLED"]);
    let again = submitted();
    assert_eq!(
        (&again[..2], again.len()),
        (&["done".to_string(), "done".into()][..], 5),
        "{again:?}"
    );
    assert!(again[2..].iter().all(|id| id != "done" && !jobs.contains(id)), "{again:?} {jobs:?}");
    for job in &again[2..] {
        cluster.wait_for(job, &["COMPLETED"]);
    }
    assert_eq!((starts(&codec).len(), starts(&operator).len()), (3, 3));
    let told = cluster.stdout(folder, "timekeep status jobs/*/");
    assert_eq!(told.matches("finished").count(), 5, "{told}");
    assert_eq!(submitted(), ["done"; 5]);
}

/// One job for all steps, which is requeued.
fn pipeline_in_one_job(cluster: &Cluster, folder: &Path) {
    let submit = "sbatch --parsable --export=ALL,SLOW $SLURM/pipeline.sh --local one.yaml";
    let job = cluster.stdout(folder, &submit.replace("SLOW", SLOW));
    let (codec, operator) = (folder.join("one/codec"), folder.join("one/operator"));
    wait_until(|| newest_update(&codec) >= 6);
    cluster.stdout(folder, &format!("scancel --batch --signal=USR1 {job}"));
    wait_until(|| newest_update(&operator) >= 6);
    cluster.stdout(folder, &format!("scontrol requeue {job}"));
    cluster.wait_for_success(&job, folder);
    assert_eq!((starts(&codec).len(), starts(&operator).len()), (2, 2));
}

/// Two jobs of one run: one trains, the other is requeued until the run is finished.
pub fn two_jobs_of_one_run(cluster: &Cluster, folder: &Path) {
    let command = "sbatch --parsable --export=ALL,FAIL=log.write:4=hold $SLURM/train.sbatch \
                   train-stage codec -c codec.yaml -s training.updates=12 --run run";
    // The first one waits in the middle of its run until the other has been refused.
    let hold = Hold::new(folder);
    let jobs = [cluster.stdout(folder, command), cluster.stdout(folder, command)];
    let is_refused = |job: &String| output(folder, job).contains("is in use by");
    wait_until(|| jobs.iter().any(is_refused));
    drop(hold);
    jobs.iter().for_each(|job| cluster.wait_for_success(job, folder));
    let stdout = jobs.each_ref().map(|job| output(folder, job));
    assert_eq!(jobs.iter().filter(|job| is_refused(job)).count(), 1, "{stdout:?}");
    // It is requeued with increasing delays: 30 s, 60 s, 120 s.
    let restarts = jobs.each_ref().map(|job| cluster.field(job, "Restarts"));
    let restarts: u32 = restarts.iter().map(|count| count.parse::<u32>().unwrap()).sum();
    assert!((1..=3).contains(&restarts), "{restarts}: {stdout:?}");
    assert_eq!(starts(&folder.join("run")), [0], "one start did all of it");
    equals_undisturbed(cluster, folder, "run", 12);
}

/// `timekeep cron` in a loop, two instances at once, for a run whose jobs keep dying: one job at a time, until it is
/// finished.
pub fn cron(cluster: &Cluster, folder: &Path) {
    let run = folder.join("run");
    let submit = format!(
        "timekeep submit run -- sbatch --parsable --no-requeue --job-name=cron --export=ALL,{SLOW} \
         $SLURM/train.sbatch train-stage codec -c codec.yaml -s training.updates=40 --run run"
    );
    let first = cluster.stdout(folder, &submit);
    assert_eq!(cluster.stdout(folder, &submit), first, "in the queue already");
    let mut interrupted = 0;
    let mut jobs = vec![first];
    while status_of(&run) != "finished" {
        cluster.stdout(folder, "timekeep cron run >&2 & timekeep cron run >&2; wait $!");
        let queued = cluster.stdout(folder, "squeue -h --name=cron -t PD,R -o %i");
        assert!(queued.lines().count() <= 1, "{queued}");
        jobs.extend(queued.lines().map(str::to_string));
        jobs.dedup();
        // First it stops with a checkpoint; then it is cancelled, and cron ignores it until it is submitted again.
        if interrupted < 2 && newest_update(&run) >= 4 * (interrupted + 1) {
            let word = if interrupted == 0 { "--signal=USR1" } else { "" };
            let job = jobs.last().unwrap().clone();
            cluster.stdout(folder, &format!("scancel {word} {job}"));
            if interrupted == 1 {
                cluster.wait_for(&job, &["CANCELLED"]);
                let told = cluster.stdout(folder, "timekeep cron run --json");
                let told: serde_json::Value = serde_json::from_str(&told).unwrap();
                assert_eq!(told["done"], "left", "{told}");
                assert!(told["why"].as_str().unwrap().contains("cancelled"), "{told}");
                jobs.push(cluster.stdout(folder, &submit));
            }
            interrupted += 1;
        }
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    assert_eq!((interrupted, jobs.len()), (2, 3), "{jobs:?}");
    let told = cluster.stdout(folder, "timekeep cron run --json");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["done"], &told["why"]), (&"left".into(), &"finished".into()));
    equals_undisturbed(cluster, folder, "run", 40);
}

fn status_of(run: &Path) -> String {
    let exists = run.join("status.json").exists();
    if exists { status(run)["state"].as_str().unwrap().into() } else { String::new() }
}
