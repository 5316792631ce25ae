//! Secrets planted wherever a program takes an argument, in uses that succeed and in uses that fail.

use std::os::unix::fs::PermissionsExt;

use super::secrets::files;
use super::*;

/// Scripts in which `$V` is a secret, the value of `PLANTED_KEY`.
const PLACES: [&str; 54] = [
    // Names of outputs, and of inputs that exist.
    r#"ds-prep gen burgers --parameter 0.01 --samples 3 --grid 64 --frames 9 -o "$V""#,
    r#"ds-prep split raw/* --json -o "$V.json"; ds-prep check "$V.json"; ds-prep show "$V.json""#,
    r#"ds-prep stats split.json -o "$V.json"; ds-prep show "$V.json" --json"#,
    r#"cp raw/*0.01* "$V.hdf5"; ds-prep show "$V.hdf5"; ds-prep import "$V.hdf5" -o imported-a"#,
    r#"ds-prep import raw/*0.01* -o "$V"; ds-prep show "$V" --json"#,
    r#"cp codec.yaml "$V.yaml"; train-stage codec -c "$V.yaml" --run new-a"#,
    r#"train-stage codec -c codec.yaml --run "$V"; timekeep status "$V"; timekeep status "$V" --json"#,
    r#"cp split.json "$V"; train-stage codec -c codec.yaml -s data.split="$V" --run new-b"#,
    r#"cp split.json "$V"; train-stage codec -c codec.yaml -s data.split="$V" --run new-c --check"#,
    r#"ckpt show new-b; ckpt show new-b --json; ckpt diff run new-b; ckpt diff run new-b --json"#,
    r#"latent-cache make run --data split.json -o "$V"; latent-cache verify "$V""#,
    r#"cp -r run "$V"; ckpt ls "$V"; ckpt show "$V" --json; ckpt verify "$V"; ckpt diff "$V" run"#,
    r#"ckpt export run -o "$V"; ckpt import "$V" --like run -o imported-b"#,
    r#"evaluate score new-op --data split.json --steps 2 -o "$V""#,
    // Variables of a configuration.
    r#"cp split.json "$V"; train-stage codec -c codec.yaml -s 'data.split=${PLANTED_KEY}' --run new-d"#,
    r#"train-stage codec -c codec.yaml -s 'data.split=${PLANTED_KEY}' --run new-d"#,
    r#"train-stage codec -c codec.yaml -s 'data.split=${PLANTED_KEY}' --run run"#,
    r#"train-stage codec -c codec.yaml -s 'training.updates=${PLANTED_KEY}' --run new-e"#,
    r#"train-stage codec -c codec.yaml -s 'model.kind=a${PLANTED_KEY}b' --run new-f --check"#,
    r#"unset PLANTED_KEY; keep "X_TOKEN=\"$V\"" .env
       train-stage codec -c codec.yaml -s 'data.split=${X_TOKEN}' --run new-g; rm .env"#,
    r#"unset PLANTED_KEY; keep "X_PASSWD='$V" .env; cp split.json "'$V"
       train-stage codec -c codec.yaml -s 'data.split=${X_PASSWD}' --run new-h; rm .env"#,
    r#"unset PLANTED_KEY; keep "export $V" .env
       train-stage codec -c codec.yaml -s 'data.split=${X_KEY}' --run new-i; rm .env"#,
    r#"unset PLANTED_KEY
       train-stage codec -c codec.yaml -s 'data.split=${X_SECRET:-'"$V"'}' --run new-j"#,
    r#"unset PLANTED_KEY; keep "X_KEY='$V'" .env
       train-stage codec -c "$V" --run new-env-a; train-stage codec -c codec.yaml -s "$V=1" --run new-env-b; rm .env"#,
    r#"unset PLANTED_KEY; keep "X_KEY='$V'" .env
       ckpt ls "$V"; ds-prep show "$V"; evaluate score "$V" --data split.json -o report; hpo show "$V"; rm .env"#,
    // Values and keys in configurations.
    r#"keep "data: {split: '$V', stats: stats.json}" x.yaml; train-stage codec -c x.yaml --run new-k"#,
    r#"keep "$V: 1" y.yaml; train-stage codec -c y.yaml --run new-l"#,
    r#"keep "a: [b, c: $V" z.yaml; train-stage codec -c z.yaml --run new-m"#,
    r#"train-stage codec -c codec.yaml --run new-n -s "data.split=$V""#,
    r#"train-stage codec -c codec.yaml --run new-o -s "training.updates=$V""#,
    r#"train-stage codec -c codec.yaml --run new-p -s "$V=1""#,
    r#"train-stage codec -c codec.yaml --run new-q -s "$V""#,
    // Command-line arguments that name nothing.
    r#"ds-prep check "$V"; ds-prep show "$V"; ds-prep stats "$V" -o other; ds-prep audit "$V""#,
    r#"ds-prep import "$V" -o imported-c; ds-prep plot "$V" -o picture.png; ds-prep split "$V" -o other"#,
    r#"ds-prep "$V"; train-stage "$V"; ckpt "$V"; latent-cache "$V"; evaluate "$V"; timekeep "$V""#,
    r#"train-stage codec -c "$V" --run new-r; train-stage codec -c codec.yaml --run new-s --device "$V""#,
    r#"latent-cache make "$V" --data split.json -o other"#,
    r#"evaluate score "$V" --data split.json -o report"#,
    r#"evaluate score run --data "$V" -o report"#,
    r#"ckpt ls "$V"; ckpt show run --tensor "$V"; ckpt verify "$V"; ckpt diff run "$V""#,
    r#"ckpt import weights.safetensors --like run --map "$V=x" -o imported-d"#,
    // Commands.
    r#"timekeep run --json -- true "$V"; timekeep run -- "$V"; timekeep run --margin "$V" -- true"#,
    r#"unset PLANTED_KEY; timekeep run --json -- env WANDB_API_KEY="$V" false"#,
    r#"unset PLANTED_KEY; timekeep run --json -- true --api-key "$V""#,
    r#"timekeep submit new-t -- "$V"; timekeep submit new-u -- sh -c 'echo "$0" >&2; exit 1' "$V""#,
    r#"timekeep submit new-v -- echo "$V"; timekeep submit new-w -- sh -c 'echo 12' "$V""#,
    r#"unset PLANTED_KEY; timekeep submit new-x -- sh -c 'echo 12' --export=ALL,WANDB_API_KEY="$V""#,
    r#"timekeep status "$V"; timekeep submit --forget "$V"; timekeep interval "$V" --mtbf 1d"#,
    // Site files.
    r#"unset PLANTED_KEY; keep "export WANDB_API_KEY=$V" site
       timekeep submit --site site new-y -- sh -c 'echo 12'"#,
    r#"unset PLANTED_KEY; keep "LONGHAUL_MARGIN=$V" site
       timekeep submit --site site new-y -- sh -c 'echo 12'"#,
    r#"unset PLANTED_KEY; keep "WANDB_API_KEY=$V" site
       timekeep submit --site site new-z -- sh -c 'echo "$WANDB_API_KEY"; exit 1'"#,
    // SLURM and other variables of the environment.
    r#"export SLURM_JOB_ID=12 SLURM_JOB_NAME="$V" SLURM_JOB_END_TIME="$V" SLURM_CLUSTER_NAME="$V"
       train-stage codec -c codec.yaml --run new-slurm; timekeep left"#,
    r#"export LONGHAUL_MARGIN="$V"; timekeep run --help; timekeep run -- true"#,
    r#"export LONGHAUL_NVRTC="$V" LONGHAUL_HEARTBEAT="$V" LONGHAUL_KERNEL_CACHE="$V"
       train-stage codec -c codec.yaml --run new-env; train-stage --warm-kernels sm_80"#,
];

/// A value for each place. Some need escaping in Rust, JSON or URLs.
fn value(place: usize) -> String {
    let special = ["-", "é", "q\"t", "s p", "%41"];
    format!("5ecret{}{place:02}-end", special[place % special.len()])
}

#[test]
fn planted_secrets_are_on_no_stream_and_in_no_file_that_others_can_read() {
    let copy = copy();
    let folder = copy.path();
    // `keep` writes a secret the way a careful user does. The SLURM commands know no job.
    let before = "set +e; PATH=$PWD/bin:$PATH; keep() { (umask 077; echo \"$1\" > \"$2\"); }";
    let setup = "mkdir bin; for name in squeue scontrol sacct; do
        echo 'exit 1' > bin/$name; chmod +x bin/$name; done
        train-stage operator -c operator.yaml --run new-op";
    assert_eq!(shell(folder, setup).status, Some(0));
    for (place, script) in PLACES.iter().enumerate() {
        let value = value(place);
        let output =
            shell(folder, &format!("{before}; V='{value}'; export PLANTED_KEY=\"$V\"\n{script}"));
        let streams = output.stdout + &output.stderr;
        assert!(!streams.contains("internal error"), "{script}:\n{streams}");
        for form in [value.clone(), format!("{value:?}").trim_matches('"').to_string()] {
            assert!(!streams.contains(&form), "{form} of {script}:\n{streams}");
        }
    }
    let values: Vec<String> = (0..PLACES.len()).map(value).collect();
    let mut kept = 0;
    for path in files(folder) {
        let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned();
        let Some(place) = values.iter().position(|value| {
            text.contains(value) || text.contains(format!("{value:?}").trim_matches('"'))
        }) else {
            continue;
        };
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{} has the value of {}", path.display(), PLACES[place]);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let records = ["status.json", "log.jsonl", "env.json", "metrics.json", "metrics.csv"];
        assert!(!records.contains(&name.as_str()), "{} holds a secret", path.display());
        kept += 1;
    }
    // The manifest with paths, submit.json and others do need to contain it.
    assert!(kept >= 4, "{kept}");
}
