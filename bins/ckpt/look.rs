//! The subcommands that only read checkpoints.

use learn::checkpoint::{self, Manifest, Statistics, VerifyReport};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::cli::Output;
use unix::out::Out;
use unix::text::summary;
use unix::{Error, Exit, Result, note};

/// Lists the checkpoints of a run.
pub fn ls(run: &Path, output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    for listed in checkpoint::listing(run)? {
        if output.json { out.row(&listed)? } else { out.row(&listed.row())? }
    }
    out.finish()
}

/// Shows a manifest, and statistics of the tensors whose names are `wanted`.
pub fn show(path: &Path, wanted: impl Fn(&str) -> bool, output: Output) -> Result<Exit> {
    let path = checkpoint::one_in(path)?;
    let manifest = checkpoint::manifest_of(&path)?;
    let mut out = Out::stdout(output);
    out.item(&head(&path, &manifest), lines(&head(&path, &manifest)))?;
    let mut shown = 0;
    for file in &manifest.files {
        let tell = |found: Statistics| {
            shown += 1;
            out.row(&found)
        };
        checkpoint::statistics(&path, file, &wanted, tell)?;
    }
    out.finish()?;
    if shown == 0 && manifest.files.iter().any(|file| !file.tensors.is_empty()) {
        return Err(Error::usage(format!("{}: no tensor matches the name", path.display())));
    }
    Ok(Exit::Done)
}

/// Returns the manifest without its tensor tables, which follow as rows.
fn head(path: &Path, manifest: &Manifest) -> Map<String, Value> {
    let mut head = Map::from_iter([("path".to_string(), json!(path))]);
    if let Ok(Value::Object(fields)) = serde_json::to_value(manifest) {
        head.extend(fields);
    }
    let file = |f: &checkpoint::FileEntry| json!({"bytes": f.bytes, "blake3": f.blake3});
    let files = manifest.files.iter().map(|f| (f.name.clone(), file(f)));
    head.insert("files".into(), Value::Object(files.collect()));
    head
}

/// Formats one line per field, with the paths of nested fields; omits the configuration, which has its own file.
fn lines(head: &Map<String, Value>) -> String {
    let mut lines = Vec::new();
    for (name, value) in head.iter().filter(|(name, _)| *name != "config") {
        match value {
            Value::Object(fields) => {
                lines.extend(
                    fields.iter().map(|(field, value)| line(&format!("{name}.{field}"), value)),
                );
            }
            value => lines.push(line(name, value)),
        }
    }
    lines.join("\n") + "\n"
}

fn line(name: &str, value: &Value) -> String {
    format!("{name}: {}", summary(value))
}

/// Verifies checkpoints against their checksums.
pub fn verify(paths: &[PathBuf], output: Output) -> Result<Exit> {
    let mut out = Out::stdout(output);
    let (mut checked, mut damaged, mut missing) = (0, 0, None);
    for path in paths {
        let found = checkpoint::all_in(path).and_then(|all| match all.is_empty() {
            true => Err(Error::open(path, "it contains no checkpoint")),
            false => Ok(all),
        });
        for checkpoint in found.unwrap_or_else(|error| {
            note!("{error}");
            missing = Some(error.exit);
            Vec::new()
        }) {
            let report = checkpoint::verify(&checkpoint)?;
            checked += 1;
            damaged += usize::from(!report.damage.is_empty());
            print_report(&mut out, &report)?;
        }
    }
    out.finish()?;
    if damaged > 0 {
        note!("{damaged} of {checked} checkpoints are damaged");
        return Ok(Exit::Data);
    }
    Ok(missing.unwrap_or(Exit::Done))
}

/// Prints the report as a JSON line, or as one row per problem.
fn print_report(out: &mut Out, report: &VerifyReport) -> Result<()> {
    if out.is_json() {
        return out.row(report);
    }
    let name = report.path.display().to_string();
    if report.damage.is_empty() {
        let state = format!("good: {} tensors in {} files", report.tensors, report.files);
        return out.row(&json!({"checkpoint": name, "file": null, "tensor": null, "state": state}));
    }
    report.damage.iter().try_for_each(|damage| {
        let (file, tensor) = (&damage.file, &damage.tensor);
        out.row(
            &json!({"checkpoint": name, "file": file, "tensor": tensor, "state": damage.problem}),
        )
    })
}

/// Describes the change of a field; for long lists of equal length, the number of differing elements and the first one.
fn change(a: &Value, b: &Value) -> String {
    if let (Value::Array(a), Value::Array(b)) = (a, b)
        && a.len() == b.len()
        && a.len() > 8
    {
        let mut differ = a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b);
        if let Some((at, (was, is))) = differ.next() {
            let count = 1 + differ.count();
            let (was, is) = (summary(was), summary(is));
            return format!("{count} of {} elements differ, first [{at}]: {was} -> {is}", a.len());
        }
    }
    format!("{} -> {}", summary(a), summary(b))
}

/// Prints one line per differing field, then one row per tensor.
pub fn diff(a: &Path, b: &Path, output: Output) -> Result<Exit> {
    let found = checkpoint::diff(&checkpoint::one_in(a)?, &checkpoint::one_in(b)?)?;
    let mut out = Out::stdout(output);
    for field in &found.fields {
        let not_counted = if field.circumstance { " (not counted)" } else { "" };
        let text = format!("{}: {}{not_counted}", field.field, change(&field.a, &field.b));
        out.item(field, text)?;
    }
    found.tensors.iter().try_for_each(|tensor| out.row(tensor))?;
    out.finish()?;
    Ok(if found.is_empty() { Exit::Done } else { Exit::Failure })
}
