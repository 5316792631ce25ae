//! The small model in slurm/ocr-base, which reads headers of well logs.

use crate::records::done;
use report::evaluation::MetricsFile;
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
    let about = std::fs::read_to_string(folder.join("curves/run/run.csv")).unwrap();
    assert!(about.contains("\nname,ocr-base-r16-lr1e-12-1\n"), "{about}");
    let scores = MetricsFile::read(&folder.join("scores")).unwrap().scores;
    let score = |method: &str| scores.methods[method]["cer"].value;
    // 0.2 % on 200 pages; 30 pages have about 1,700 characters.
    assert!(score("sft") <= 0.02, "{}", score("sft"));
    assert!(score("most frequent answer") >= 0.6, "{}", score("most frequent answer"));
}
