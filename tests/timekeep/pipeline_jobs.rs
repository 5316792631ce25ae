//! `pipeline.sh` with fake programs: what it checks, plans and submits. With a real SLURM: tests/slurm.

use std::fs;

use super::pipeline::{pipeline, summary, timekeep_with_path};
use super::script;

const STAGES: &str = "folder: runs
steps:
  - name: codec
    run: train-stage codec -c c.yaml --run {folder}/codec
  - name: operator
    run: train-stage operator -c o.yaml --run {folder}/operator -s data.train={folder}/codec/x
    sbatch: --nodes=2
  - name: small
    run: evaluate score {folder}/operator --data split.json --steps=4 --stride 2 -o {folder}/small
  - name: side
    after: [codec]
    run: evaluate analyze {folder}/codec
";

/// A folder with [`STAGES`]: `sbatch` appends its arguments to `submitted`, the programs theirs to `checked`.
fn stages() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, text) in
        [("c.yaml", ""), ("o.yaml", ""), ("split.json", ""), ("pipeline.yaml", STAGES)]
    {
        fs::write(folder.path().join(file), text).unwrap();
    }
    script(&folder.path().join("squeue"), "");
    script(
        &folder.path().join("sbatch"),
        "echo \"$LONGHAUL_STEP $*\" >>submitted; echo $((100 + $(wc -l <submitted)))",
    );
    for program in ["train-stage", "evaluate"] {
        let text = format!(
            "echo {program} \"$@\" >>checked
            case \"$*\" in *--dry-run*) echo '{{\"updates\":20,\"seconds\":5400.0,\"cost\":0}}' ;; esac"
        );
        script(&folder.path().join(program), &text);
    }
    folder
}

#[test]
fn a_job_waits_for_those_of_the_steps_before_it() {
    let place = stages();
    let folder = place.path();
    let output = pipeline(folder, &["pipeline.yaml", "--account=us"], &[]);
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (Some(0), "101 102 103 104\n"),
        "{}",
        output.stderr
    );
    let text = fs::read_to_string(folder.join("submitted")).unwrap();
    let submitted: Vec<&str> = text.lines().collect();
    for (job, parts) in [
        (0, ["pipeline.yaml:codec ", "--job-name=codec", "--output=runs/codec/slurm-%j.out"]),
        (
            1,
            [
                "--dependency=afterok:101 ",
                "--account=us --nodes=2 ",
                "train.sbatch train-stage operator",
            ],
        ),
        (2, ["--dependency=afterok:102 ", "LONGHAUL_ON_FAILURE=hold", "data split.json --steps=4"]),
        (3, ["--dependency=afterok:101 ", "pipeline.yaml:side ", "evaluate analyze runs/codec"]),
    ] {
        for part in parts {
            assert!(submitted[job].contains(part), "{part}: {}", submitted[job]);
        }
    }
    assert!(!submitted[0].contains("--dependency"), "{}", submitted[0]);
    let checked = fs::read_to_string(folder.join("checked")).unwrap();
    assert_eq!(
        checked,
        "train-stage codec -c c.yaml --run runs/codec --check\n\
         evaluate check --config o.yaml --data split.json --steps 4 --stride 2\n"
    );
    assert_eq!(summary(&folder.join("runs"))["state"], "unfinished");

    // A step that is up to date is not submitted, and the next one does not wait for it.
    let word = timekeep_with_path(folder, &["run", "--step", "pipeline.yaml:codec"]);
    assert_eq!(word.status, Some(0), "{}", word.stderr);
    fs::remove_file(folder.join("submitted")).unwrap();
    let output = pipeline(folder, &["pipeline.yaml"], &[]);
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (Some(0), "done 101 102 103\n"),
        "{}",
        output.stderr
    );
    let text = fs::read_to_string(folder.join("submitted")).unwrap();
    assert!(!text.lines().next().unwrap().contains("--dependency"), "{text}");

    // The message of sbatch is shown completely.
    script(&folder.join("sbatch"), "echo 'no such option: x' >&2; echo 'Try --help' >&2; exit 1");
    let output = pipeline(folder, &["pipeline.yaml"], &[]);
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("no such option: x; Try --help"), "{}", output.stderr);
}

#[test]
fn nothing_is_submitted_if_a_step_could_not_work() {
    let place = stages();
    let folder = place.path();
    for (options, variables) in [
        (&["--time=5"][..], &[][..]),
        (&["-t", "4:30"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "3")]),
        (&["--time=00:20:00"], &[("LONGHAUL_MARGIN", "20m")]),
    ] {
        let output = pipeline(folder, &[&["pipeline.yaml"], options].concat(), variables);
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{options:?}");
        assert!(output.stderr.contains("time limit"), "{}", output.stderr);
    }
    // sbatch treats zero as no limit.
    for (options, variables) in [
        (&["--time=0"][..], &[][..]),
        (&["-t", " 0:00 "], &[]),
        (&["--time=INFINITE"], &[]),
        (&[], &[("SBATCH_TIMELIMIT", "0")]),
        (&["--time= 60 "], &[("LONGHAUL_MARGIN", " 20m\t")]),
    ] {
        let output =
            pipeline(folder, &[&["--check", "pipeline.yaml"], options].concat(), variables);
        assert_eq!(output.status, Some(0), "{options:?} {variables:?}: {}", output.stderr);
    }
    for program in ["train-stage", "evaluate"] {
        script(&folder.join(program), "echo too few frames >&2; exit 2");
        let output = pipeline(folder, &["pipeline.yaml"], &[]);
        assert_eq!((output.status, output.stdout.as_str()), (Some(2), ""), "{}", output.stderr);
        assert!(output.stderr.contains("too few frames\npipeline.sh: step"), "{}", output.stderr);
        script(&folder.join(program), "");
    }
    assert!(!folder.join("runs").exists() && !folder.join("submitted").exists());
}

#[test]
fn a_dry_run_shows_time_and_cost() {
    let place = stages();
    let folder = place.path();
    let site = folder.join("site");
    fs::write(&site, "LONGHAUL_RATE_PER_HOUR=2\n").unwrap();
    let output = pipeline(folder, &["--dry-run", "--site", "site", "pipeline.yaml"], &[]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let lines: Vec<String> = output
        .stdout
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = [
        "step state hours cost",
        "codec ready 1.500 3.00 estimated",
        "operator waiting - - unknown until the steps before it are done: codec",
        "small waiting - - unknown until the steps before it are done: operator",
        "side waiting - - unknown until the steps before it are done: codec",
        "total 1.500 3.00 and 3 unknown",
    ];
    assert_eq!(lines, expected);
    let status = r#"{"task":"codec","state":"finished","update":1,"updates":1,"best":null,"reason":null,
                     "cost":{"hours":0.25,"device_hours":0.25}}"#;
    fs::create_dir_all(folder.join("runs/codec")).unwrap();
    fs::write(folder.join("runs/codec/status.json"), status).unwrap();
    assert_eq!(
        timekeep_with_path(folder, &["run", "--step", "pipeline.yaml:codec"]).status,
        Some(0)
    );
    let output = pipeline(folder, &["--dry-run", "pipeline.yaml"], &[]);
    assert!(output.stdout.contains("measured"), "{}", output.stdout);
    assert!(output.stdout.lines().nth(1).unwrap().contains(" 0.250 "), "{}", output.stdout);
}
