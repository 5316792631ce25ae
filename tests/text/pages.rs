//! The small model in slurm/ocr-base, which reads headers of well logs.

use crate::common::shell;
use crate::records::done;
use report::evaluation::MetricsFile;
use serde_json::Value;
use std::path::Path;

/// Trained weights go through everything: rendering, images, the tower, NF4 and generation. An adapter that has not learned
/// leaves the model as it is.
#[test]
fn the_model_of_the_demo_reads_pages() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (base, config) = (root.join("slurm/ocr-base"), root.join("configs/ocr-adapt.yaml"));
    let (base, config) = (base.display(), config.display());
    done(
        folder,
        &format!(
            "(cd {base} && sha256sum --check SHA256SUMS)
             ds-prep gen headers --samples 60 --seed 4242 -o pages
             ds-prep import pages/pages.jsonl --columns pages/columns.yaml -o store
             ds-prep split store --train 20 --validation 10 --test 30 -o split.json
             ds-prep tokenize split.json --tokenizer {base} --max-length 512 -o tokens
             ckpt config {base} > base.yaml
             train-stage sft -c {config} -c base.yaml -s training.updates=1 -s training.validate_every=1 \
               -s optimizer.learning_rate=1e-12 --run run
             evaluate score run --data tokens --max-new-tokens 192 -o scores
             evaluate export run --format csv -o curves"
        ),
    );
    check_points(folder, &format!("{config} -c base.yaml"));
    let about = std::fs::read_to_string(folder.join("curves/run/run.csv")).unwrap();
    assert!(about.contains("\nname,ocr-base-r16-lr1e-12-1\n"), "{about}");
    let scores = MetricsFile::read(&folder.join("scores")).unwrap().scores;
    let score = |method: &str| scores.methods[method]["cer"].value;
    // 0.2 % on 200 pages; 30 pages have about 1,700 characters.
    assert!(score("sft") <= 0.02, "{}", score("sft"));
    assert!(score("most frequent answer") >= 0.6, "{}", score("most frequent answer"));
}

/// The result of every point, and what was found, for a run that can start and for one with three failures.
fn check_points(folder: &Path, config: &str) {
    let check = |words: &str| {
        let output = shell(folder, &format!("train-stage sft -c {config} --check --json {words}"));
        let all = output.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
        let points: Vec<Value> = all.filter(|line: &Value| line["point"].is_string()).collect();
        (output, points)
    };
    let found = |points: &[Value], point: &str| {
        let own = points.iter().find(|own| own["point"] == point);
        own.map(|own| [&own["result"], &own["found"]].map(|x| x.as_str().unwrap().to_string()))
            .unwrap_or_else(|| panic!("{point}: {points:?}"))
    };
    let (output, points) = check("--run new --device cpu -s cost.rate_per_hour=2 -s cost.budget=5");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let names: Vec<&str> = points.iter().map(|own| own["point"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "configuration",
            "data",
            "input files",
            "samples",
            "tokenizer",
            "images",
            "initial values",
            "resume",
            "run directory",
            "device",
            "memory",
            "disk space",
            "cost"
        ]
    );
    for (point, says) in [
        ("configuration", "sft: ocr-base-r16-lr0.008-340"),
        ("data", "20 samples for training, 10 for validation"),
        ("samples", "5 of 20 read"),
        ("tokenizer", "image "),
        ("images", "images of 30 of 30 records decode"),
        ("initial values", "parameters from"),
        ("initial values", "of them in 4 bits"),
        ("resume", "a new run"),
        ("memory", "an update needs "),
        ("device", "cpu, as asked: computes in f32; training.amp: products of bf16 ("),
        ("cost", "a budget of 5 is 02:30:00 at 2 an hour"),
    ] {
        let [result, text] = found(&points, point);
        assert!(result == "ok" && text.contains(says), "{point}: {result} {text}");
    }
    assert!(!folder.join("new").exists());
    let (output, points) = check(
        "--run run -s training.amp=true -s training.precision=f16 -s cost.budget=5 --accept-config-change",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    for (point, says) in [("resume", "accepted: "), ("device", "no effect"), ("cost", "no effect")]
    {
        let [result, text] = found(&points, point);
        assert!(result == "warning" && text.contains(says), "{point}: {result} {text}");
    }
    // Images that were damaged after they were imported, weights that are missing, and no place for the run.
    done(
        folder,
        "for file in store/images/shard-*; do
            half=$(($(stat -c %s $file) / 2))
            head -c $half /dev/zero | dd of=$file bs=$half seek=1 conv=notrunc iflag=fullblock status=none
        done",
    );
    let (output, points) = check("--run base.yaml/run -s init.from=none.safetensors");
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    for point in ["input files", "images", "initial values", "run directory"] {
        assert_eq!(found(&points, point)[0], "failed", "{point}");
    }
    for (point, result) in
        [("data", "ok"), ("device", "ok"), ("memory", "skipped"), ("cost", "skipped")]
    {
        assert_eq!(found(&points, point)[0], result, "{point}");
    }
    for says in ["the content has changed", "none.safetensors", "base.yaml/run"] {
        assert!(output.stderr.contains(says), "{says}: {}", output.stderr);
    }
}
