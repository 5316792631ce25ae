//! Compiling kernels ahead of time, as on a login node, and the errors where that is impossible.

mod common;

use common::{Seen, shell};
use std::path::Path;
use tensor::kernel::{cache, compile};
use tensor::{Device, DeviceChoice};

fn warm(folder: &Path, words: &str) -> Seen {
    shell(folder, &format!("LONGHAUL_KERNEL_CACHE=cache {words}"))
}

#[test]
fn the_second_time_nothing_is_compiled() {
    if !test_support::require(compile::version().is_ok(), "NVRTC") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let all = cache::units(&["sm_90a".into()]).len();
    for (compiled, cached) in [(all, 0), (0, all)] {
        let seen = warm(folder.path(), "train-stage --warm-kernels sm_90a --json");
        // On a slow machine it reports its progress, one line per minute.
        let talk = seen.stderr.lines().filter(|line| !line.contains("kernel files"));
        assert_eq!((seen.status, talk.collect::<String>().as_str()), (Some(0), ""));
        let told: serde_json::Value = serde_json::from_str(&seen.stdout).unwrap();
        assert_eq!(told, serde_json::json!({ "compiled": compiled, "cached": cached }));
    }
}

#[test]
fn obstacles_are_reported_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("train-stage --warm-kernels fast", 2, "\"fast\" is not an architecture"),
        ("train-stage --warm-kernels sm_70", 2, "sm_70 is too old for the kernels"),
        ("train-stage codec --warm-kernels sm_80", 2, "cannot be used with"),
        ("LONGHAUL_NVRTC=none train-stage --warm-kernels sm_80", 1, "LONGHAUL_NVRTC=none: "),
        ("LONGHAUL_NVRTC=. train-stage --warm-kernels sm_80", 1, "the folder has no libnvrtc.so"),
    ];
    for (words, status, says) in cases {
        let seen = warm(folder.path(), words);
        assert_eq!(seen.status, Some(status), "{words}: {}", seen.stderr);
        assert!(seen.stderr.contains(says), "{words}: {}", seen.stderr);
        assert_eq!(seen.stdout, "", "{words}");
    }
    if compile::version().is_ok() {
        let refused = "touch cache/file && LONGHAUL_KERNEL_CACHE=cache/file/kernels \
                       train-stage --warm-kernels sm_80";
        let seen = warm(folder.path(), &format!("true; mkdir -p cache && {refused}"));
        assert_eq!(seen.status, Some(73), "{}", seen.stderr);
        assert!(seen.stderr.contains("is not used: "), "{}", seen.stderr);
        assert_eq!(seen.stderr.lines().count(), 1, "{}", seen.stderr);
    }
}

#[test]
fn a_missing_gpu_is_reported_before_any_work() {
    if DeviceChoice::Exactly(Device::Cuda(0)).open().is_ok() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let seen = shell(
        folder.path(),
        "printf '%s\\n' 'data: {split: split.json, stats: stats.json}' \\
           'model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}' \\
           'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
           'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > codec.yaml
         train-stage codec -c codec.yaml --run run --device cuda",
    );
    assert_eq!(seen.status, Some(1), "{}", seen.stderr);
    assert!(seen.stderr.starts_with("train-stage: no GPU: "), "{}", seen.stderr);
    assert_eq!(seen.stderr.lines().count(), 1, "{}", seen.stderr);
    assert!(!folder.path().join("run").exists());
}
