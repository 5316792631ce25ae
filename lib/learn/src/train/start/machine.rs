//! Compares the program and machine with those that wrote a checkpoint.

use crate::checkpoint::Loaded;
use crate::config::Training;
use crate::train::Progress;
use crate::train::step::numerics::Products;
use serde_json::{Map, Value, json};
use tensor::Device;
use tensor::product::bf16;
use unix::{Result, cli, host};

/// Maximum size of `env.json` in bytes.
const MAX_BYTES: u64 = 100_000_000;

/// Returns the facts for `env.json` that may affect the last bits of a result.
/// Errors: 2 when products round their operands and LONGHAUL_CPU is no level.
pub(in crate::train) fn facts(
    device: Device,
    training: &Training,
    progress: &Progress,
) -> Result<Value> {
    let mut facts = json!({"device": device.to_string(), "vectors": tensor::simd::level()});
    if Products::new(training, true, device, progress.amp_on_cpu).is_bf16() {
        facts["bf16_products"] = json!(bf16::level()?.name());
    }
    Ok(facts)
}

/// Describes the differences from the attempt that wrote the checkpoint, e.g. "version 0.1.0, now 0.2.0"; None if there
/// are none. `facts` describes this attempt.
pub(in crate::train) fn differences(found: &Loaded, facts: &Value) -> Option<String> {
    let (manifest, program) = (&found.manifest, cli::program());
    let mut pairs = vec![
        ("version", json!(manifest.version), json!(program.version)),
        ("commit", json!(manifest.commit), json!(program.commit)),
    ];
    if let Some(was) = entry_of(found) {
        let mut now = facts.clone();
        now["cpu"] = json!(host::cpu_model());
        for key in ["cpu", "vectors", "device", "bf16_products"] {
            let of = |value: Option<&Value>| value.cloned().unwrap_or_default();
            pairs.push((key, of(was.get(key)), of(now.get(key))));
        }
    }
    let text = |value: &Value| value.as_str().unwrap_or("unknown").to_string();
    let differ: Vec<String> = pairs
        .iter()
        .filter(|(_, was, now)| was != now)
        .map(|(key, was, now)| format!("{key} {}, now {}", text(was), text(now)))
        .collect();
    (!differ.is_empty()).then(|| differ.join("; "))
}

/// Returns the entry in `env.json` for the attempt that wrote the checkpoint; None if it cannot be read.
fn entry_of(found: &Loaded) -> Option<Map<String, Value>> {
    // The checkpoint's path is RUN/ckpt/step-N.
    let path = found.path().parent()?.parent()?.join("env.json");
    let is_small = std::fs::metadata(&path).is_ok_and(|found| found.len() <= MAX_BYTES);
    let text = std::fs::read(path).ok().filter(|_| is_small)?;
    let entries: Vec<Map<String, Value>> = serde_json::from_slice(&text).ok()?;
    let attempt = json!(found.manifest.attempt);
    entries.into_iter().find(|entry| entry.get("attempt") == Some(&attempt))
}
