//! Checkpoints on real disks: round trips, damage, full disks, kills, retention.

mod damage;
mod disks;
mod kill;
mod power_cuts;
mod retention;
mod round_trip;
mod saving;
mod system_calls;

use std::path::Path;

use learn::checkpoint::{KeepRules, Loaded, State};
use serde_json::json;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor};
pub(crate) use test_support::seed;

/// A state with tensors of odd shapes and various dtypes, whose content depends on `seed` and `update`.
pub(crate) fn state(seed: u64, update: u64) -> State {
    let random = Philox::new(seed ^ update, Purpose::Test);
    let tensor = |name: &str, shape: &[usize], dtype: Dtype| {
        let sample =
            name.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31) + u64::from(byte));
        let mut values = vec![0.0_f32; shape.iter().product()];
        random.fill_normal(sample, &mut values);
        (name.to_string(), Tensor::from_slice(&values, shape).to_dtype(dtype))
    };
    let model = vec![
        tensor("core.0.weight", &[13, 7], Dtype::F32),
        tensor("core.0.bias", &[7], Dtype::F32),
        tensor("a.scale", &[], Dtype::F64),
        tensor("no rows", &[0, 5], Dtype::F32),
        tensor("deep", &[1, 3, 1, 2, 1, 5], Dtype::F64),
        tensor("ν.große", &[1], Dtype::F32),
    ];
    let optim = vec![tensor("core.0.weight.m", &[13, 7], Dtype::F32)];
    State {
        tensors: [
            ("model".to_string(), model),
            ("optim-0-of-1".to_string(), optim),
            ("buffers".to_string(), Vec::new()),
        ]
        .into(),
        update,
        progress: json!({"update": update, "seconds": 0.1 + 0.2, "best": null}),
        metrics: json!({"error": 1.0 / (1.0 + update as f64)}),
        seed,
        task: "codec".into(),
        config: json!({"model": {"kind": "x"}, "rate": 1e-4}),
        config_hash: "c0ffee".into(),
        data_hash: "da7a".into(),
        ..State::default()
    }
}

/// Rules that keep the last `last` checkpoints.
pub(crate) fn last(last: usize) -> KeepRules {
    KeepRules { last, best: 0, every: 0, metric: "error".into(), ..KeepRules::default() }
}

/// Shape, dtype and bits of a tensor.
type Bits = (Vec<usize>, Dtype, Vec<u64>);

fn bits(tensor: &Tensor) -> Bits {
    // f32 to f64 is exact and injective, except for the payload of NaNs.
    let bits = tensor.to_f64().into_iter().map(f64::to_bits).collect();
    (tensor.shape().to_vec(), tensor.dtype(), bits)
}

/// Whether `loaded` equals `state` bit for bit.
pub(crate) fn is_same(loaded: &Loaded, state: &State) -> bool {
    let manifest = &loaded.manifest;
    let all = state.tensors.iter().all(|(stem, tensors)| {
        let Some(found) = loaded.tensors(stem) else { return false };
        let form = |list: &[(String, Tensor)]| -> Vec<(String, Bits)> {
            list.iter().map(|(name, tensor)| (name.clone(), bits(tensor))).collect()
        };
        form(&found) == form(tensors)
    });
    all && manifest.files.len() == state.tensors.len()
        && (manifest.update, manifest.seed) == (state.update, state.seed)
        && manifest.progress == state.progress
        && manifest.metrics == state.metrics
        && manifest.config == state.config
        && manifest.config_hash == state.config_hash
        && manifest.data_hash == state.data_hash
        && manifest.task == state.task
}

/// Sorted names in a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |e: std::io::Result<std::fs::DirEntry>| e.expect("an entry").file_name();
    let mut names: Vec<String> = entries.map(|e| name(e).to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// A copy of a folder of files.
pub(crate) fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a folder");
    for name in names(from) {
        std::fs::copy(from.join(&name), to.join(&name)).expect("a copy");
    }
}
