//! Refuses tokenizers that would take disproportionate memory or time, before the library reads them.

use serde_json::{Map, Value};

/// Ids below this may be sparse.
const SPARSE: u64 = 1 << 16;
/// Maximum factor by which a normalizer may lengthen a text.
const MAX_GROWTH: f64 = 64.0;
/// Maximum number of special tokens added to a text.
const MAX_ADDED: usize = 64;

/// Checks the content of tokenizer.json. Errors: the problem.
pub(super) fn check(file: &Map<String, Value>) -> Result<(), String> {
    let model = file.get("model").and_then(Value::as_object).ok_or("it has no model")?;
    if let Some(ids) = model.get("vocab").and_then(Value::as_object) {
        require_dense(ids.values())?;
    }
    let entries = model.get("vocab").map_or(0, |vocab| match vocab {
        Value::Object(ids) => ids.len(),
        Value::Array(pieces) => pieces.len(),
        _ => 0,
    });
    let added = file.get("added_tokens").and_then(Value::as_array);
    let added: Vec<&Value> =
        added.into_iter().flatten().filter_map(|token| token.get("id")).collect();
    require_few(added.iter().copied(), entries + added.len())?;
    if model.get("dropout").is_some_and(|dropout| !dropout.is_null() && dropout != 0.0) {
        return Err("BPE dropout, which makes token ids random, is not supported".into());
    }
    let growth = file.get("normalizer").map_or(1.0, growth);
    if growth > MAX_GROWTH {
        return Err(format!(
            "its normalizer may make a text {growth:.0} times longer; at most {MAX_GROWTH} times is supported"
        ));
    }
    file.get("post_processor").map_or(Ok(()), require_small_template)
}

/// Checks that the largest id is not far above the number of ids, because tables have a row for every id up to it.
pub(super) fn require_dense<'a>(
    ids: impl Iterator<Item = &'a Value> + Clone,
) -> Result<(), String> {
    let count = ids.clone().count();
    require_few(ids, count)
}

fn require_few<'a>(ids: impl Iterator<Item = &'a Value>, count: usize) -> Result<(), String> {
    let largest = ids.map(|id| id.as_u64().unwrap_or(u64::MAX)).max().unwrap_or(0);
    match largest < SPARSE || largest < 4 * count as u64 {
        true => Ok(()),
        false => Err(format!("an id of {largest} among {count} tokens is not supported")),
    }
}

/// Computes an upper bound on the factor by which a normalizer lengthens a text, up to an additive constant.
fn growth(normalizer: &Value) -> f64 {
    let text = |value: &Value| value.as_str().map_or(0, str::len) as f64;
    match normalizer["type"].as_str() {
        Some("Sequence") => {
            let parts = normalizer["normalizers"].as_array();
            parts.into_iter().flatten().map(growth).product()
        }
        Some("Replace") => {
            let pattern = &normalizer["pattern"];
            // A regular expression may match a single byte, or the empty string between two bytes.
            let shortest = text(&pattern["String"]).max(1.0);
            let between = if pattern["String"].is_string() { 0.0 } else { 1.0 };
            (text(&normalizer["content"]) / shortest + between).max(1.0)
        }
        Some("Prepend") => 1.0 + text(&normalizer["prepend"]) / 64.0,
        _ => 1.0,
    }
}

/// Checks that a post-processor repeats no text and adds few tokens, all of them known.
fn require_small_template(processor: &Value) -> Result<(), String> {
    if let Some(parts) = processor["processors"].as_array() {
        return match parts.len() <= MAX_ADDED {
            true => parts.iter().try_for_each(require_small_template),
            false => Err("its post_processor has too many parts".into()),
        };
    }
    for (key, texts) in [("single", [1, 0]), ("pair", [1, 1])] {
        let Some(pieces) = processor[key].as_array() else { continue };
        let of = |name: &str| {
            let own = pieces.iter().filter(|piece| piece["Sequence"]["id"] == name);
            own.count()
        };
        if [of("A"), of("B")] != texts || pieces.len() > MAX_ADDED {
            return Err(format!(
                "its post_processor must have each text once for {key}, and at most {MAX_ADDED} parts"
            ));
        }
        for piece in pieces.iter().filter_map(|piece| piece["SpecialToken"]["id"].as_str()) {
            let token = &processor["special_tokens"][piece];
            let ids = token["ids"].as_array().map_or(0, Vec::len);
            let tokens = token["tokens"].as_array().map_or(0, Vec::len);
            if ids == 0 || ids > MAX_ADDED || ids != tokens {
                let piece = unix::text::quote(piece);
                return Err(format!("its post_processor adds {piece}, which special_tokens lacks"));
            }
        }
    }
    Ok(())
}
