//! Compiling kernels ahead of time, as on a login node, and the errors where that is impossible.

use crate::common::{Captured, shell};
use std::path::Path;
use tensor::kernel::{cache, compile};
use tensor::{Device, DeviceChoice};

fn warm(folder: &Path, words: &str) -> Captured {
    shell(folder, &format!("LONGHAUL_KERNEL_CACHE=cache {words}"))
}

#[test]
fn the_second_time_nothing_is_compiled() {
    if !test_support::require(compile::version().is_ok(), "NVRTC") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let architectures = ["sm_90a".into()];
    let all = cache::units(&architectures);
    // The real ones, which take minutes, are compiled by the tests of tensor.
    let sources = folder.path().join("sources");
    std::fs::create_dir(&sources).unwrap();
    for (source, ..) in &all {
        let text =
            format!("extern \"C\" __global__ void small_{}(int* x) {{ x[0] = 1; }}", source.name);
        std::fs::write(sources.join(format!("{}.cu", source.name)), text).unwrap();
    }
    let all = all.len();
    for (compiled, cached) in [(all, 0), (0, all)] {
        let command = "LONGHAUL_KERNEL_SOURCES=sources train-stage --warm-kernels sm_90a --json";
        let output = warm(folder.path(), command);
        // On a slow machine it reports its progress, one line per minute.
        let is_expected = ["kernel files", "LONGHAUL_KERNEL_SOURCES"];
        let stderr = output.stderr.lines();
        let stderr = stderr.filter(|line| !is_expected.iter().any(|word| line.contains(word)));
        assert_eq!((output.status, stderr.collect::<String>().as_str()), (Some(0), ""));
        let expected: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
        assert_eq!(expected, serde_json::json!({ "compiled": compiled, "cached": cached }));
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
        let output = warm(folder.path(), words);
        assert_eq!(output.status, Some(status), "{words}: {}", output.stderr);
        assert!(output.stderr.contains(says), "{words}: {}", output.stderr);
        assert_eq!(output.stdout, "", "{words}");
    }
    if compile::version().is_ok() {
        let refused = "touch cache/file && LONGHAUL_KERNEL_CACHE=cache/file/kernels \
                       train-stage --warm-kernels sm_80";
        let output = warm(folder.path(), &format!("true; mkdir -p cache && {refused}"));
        assert_eq!(output.status, Some(73), "{}", output.stderr);
        assert!(output.stderr.contains("is not used: "), "{}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    }
}

#[test]
fn a_missing_gpu_is_reported_before_any_work() {
    if DeviceChoice::Exactly(Device::Cuda(0)).open().is_ok() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = shell(
        folder.path(),
        "printf '%s\\n' 'data: {split: split.json, stats: stats.json}' \\
           'model: {patch: 8, latent: 4, hidden: 16, encoder_depth: 1, decoder_depth: 1}' \\
           'loss: {}' 'training: {updates: 20, batch_size: 8}' \\
           'optimizer: {method: {kind: adamw}, learning_rate: 1e-3}' > codec.yaml
         train-stage codec -c codec.yaml --run run --device cuda",
    );
    assert_eq!(output.status, Some(1), "{}", output.stderr);
    assert!(output.stderr.starts_with("train-stage: no GPU: "), "{}", output.stderr);
    assert_eq!(output.stderr.lines().count(), 1, "{}", output.stderr);
    assert!(!folder.path().join("run").exists());
}
