//! Differences between two checkpoints, in tensors and in manifest fields.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use tensor::Tensor;
use unix::{Error, Result};

use super::find::manifest_of;
use super::manifest::{FileEntry, Manifest, TensorEntry};
use super::problem::Problem;
use super::tensor_file::TensorFile;

/// Fields that record when, where and how fast a checkpoint was written. They are shown, but do not make two
/// checkpoints different.
const CIRCUMSTANCES: [&str; 8] = [
    "created",
    "version",
    "commit",
    "host",
    "attempt",
    "world",
    "progress.seconds",
    "progress.device_seconds",
];

/// Kind of difference between two versions of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// Different values.
    Changed,
    /// Present only in the second checkpoint.
    Added,
    /// Present only in the first checkpoint.
    Removed,
    /// Different shape or dtype.
    Reshaped,
}

/// A tensor that differs between the two checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TensorDifference {
    /// Stem of the file that contains the tensor.
    pub file: String,
    /// Name of the tensor.
    pub tensor: String,
    /// Kind of difference.
    pub change: Change,
    /// ‖a-b‖/‖a‖, summed in f64; None when a is zero or a value is not finite.
    pub relative: Option<f64>,
    /// max |a-b|; None when a value is not finite.
    pub max_abs: Option<f64>,
    /// Dtype and shape in the first checkpoint, e.g. `F32 [2, 3]`; None when the tensor is absent.
    pub a: Option<String>,
    /// Dtype and shape in the second checkpoint; None when the tensor is absent.
    pub b: Option<String>,
}

/// A manifest field that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FieldDifference {
    /// Path of the field, e.g. `config.seed`.
    pub field: String,
    /// Value in the first checkpoint; null when absent.
    pub a: Value,
    /// Value in the second checkpoint; null when absent.
    pub b: Value,
    /// Whether the field only records when, where and how fast the checkpoint was written.
    pub circumstance: bool,
}

/// All differences between two checkpoints.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Differing manifest fields, in manifest order.
    pub fields: Vec<FieldDifference>,
    /// Differing tensors, largest relative change first.
    pub tensors: Vec<TensorDifference>,
}

impl Difference {
    /// Whether the checkpoints are equal except for the circumstances of writing.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty() && self.fields.iter().all(|field| field.circumstance)
    }
}

/// Compares two checkpoints, holding one pair of tensors in memory at a time. Values are compared bitwise, so equal
/// NaNs are equal.
///
/// Errors: 66 when a checkpoint is missing; 65 when one is damaged.
pub fn diff(a: &Path, b: &Path) -> Result<Difference> {
    let (manifests, mut found) = ((manifest_of(a)?, manifest_of(b)?), Difference::default());
    for (field, a, b) in value_differences("", &described(&manifests.0)?, &described(&manifests.1)?)
    {
        let circumstance = CIRCUMSTANCES.contains(&&*field);
        found.fields.push(FieldDifference { field, a, b, circumstance });
    }
    let mut stems: BTreeMap<&str, [Option<&FileEntry>; 2]> = BTreeMap::new();
    for (side, manifest) in [&manifests.0, &manifests.1].into_iter().enumerate() {
        for file in &manifest.files {
            stems.entry(file.stem()).or_default()[side] = Some(file);
        }
    }
    for (stem, files) in stems {
        let sides = [Side::open(a, files[0])?, Side::open(b, files[1])?];
        compare(stem, &sides, &mut found.tensors)?;
    }
    // Differences without a relative size sort first.
    let size = |d: &TensorDifference| d.relative.unwrap_or(f64::INFINITY);
    found.tensors.sort_by(|a, b| size(b).total_cmp(&size(a)));
    Ok(found)
}

/// Returns the manifest without its file list, because tensors are compared separately.
fn described(manifest: &Manifest) -> Result<Value> {
    let mut value = serde_json::to_value(manifest).map_err(Error::bug)?;
    if let Value::Object(fields) = &mut value {
        fields.shift_remove("files");
    }
    Ok(value)
}

/// Returns the fields that differ, as paths that start with `path`, with both values; an absent value is null.
pub(crate) fn value_differences(path: &str, a: &Value, b: &Value) -> Vec<(String, Value, Value)> {
    let (Value::Object(left), Value::Object(right)) = (a, b) else {
        let same = a == b;
        return if same { Vec::new() } else { vec![(path.into(), a.clone(), b.clone())] };
    };
    let more = right.keys().filter(|key| !left.contains_key(*key));
    let field = |key: &String| {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        value_differences(&path, &a[key], &b[key])
    };
    left.keys().chain(more).flat_map(field).collect()
}

/// One of the two checkpoints being compared, with the open file of the current stem; `file` is None if it has no such
/// file.
struct Side<'a> {
    folder: &'a Path,
    file: Option<(TensorFile, &'a FileEntry)>,
}

impl<'a> Side<'a> {
    fn open(folder: &'a Path, entry: Option<&'a FileEntry>) -> Result<Self> {
        let open = |entry| Ok((TensorFile::open(folder, entry)?, entry));
        let file = entry.map(open).transpose();
        Ok(Self { folder, file: file.map_err(|problem: Problem| problem.error(folder))? })
    }

    fn entries(&self) -> &'a [TensorEntry] {
        self.file.as_ref().map_or(&[], |(_, entry)| &entry.tensors)
    }

    /// Reads a tensor and verifies it against the hash in the manifest.
    fn read(&self, wanted: &TensorEntry) -> Result<Tensor> {
        let error_of = |problem: Problem| problem.error(self.folder);
        let Some((file, entry)) = &self.file else {
            return Err(Error::bug(format!("{} is in no file", wanted.name)));
        };
        let mut hasher = blake3::Hasher::new();
        let see = |piece: &[u8]| {
            hasher.update(piece);
        };
        let tensor = file.tensor(&wanted.name, see).map_err(error_of)?;
        let same = hasher.finalize().to_hex().as_str() == wanted.blake3;
        let changed = || Problem::changed(format!("{}: tensor {}", entry.name, wanted.name));
        if same { Ok(tensor) } else { Err(error_of(changed())) }
    }
}

fn compare(stem: &str, sides: &[Side; 2], found: &mut Vec<TensorDifference>) -> Result<()> {
    let form = |entry: &TensorEntry| format!("{} {:?}", entry.dtype, entry.shape);
    let [left, right] = [sides[0].entries(), sides[1].entries()];
    let report = |change, a: Option<&TensorEntry>, b: Option<&TensorEntry>| TensorDifference {
        file: stem.into(),
        tensor: a.or(b).map(|entry| entry.name.clone()).unwrap_or_default(),
        change,
        relative: None,
        max_abs: None,
        a: a.map(form),
        b: b.map(form),
    };
    for a in left {
        let Some(b) = right.iter().find(|b| b.name == a.name) else {
            found.push(report(Change::Removed, Some(a), None));
            continue;
        };
        if (&a.dtype, &a.shape) != (&b.dtype, &b.shape) {
            found.push(report(Change::Reshaped, Some(a), Some(b)));
            continue;
        }
        let values = (sides[0].read(a)?.to_f64(), sides[1].read(b)?.to_f64());
        if let Some((relative, max_abs)) = distance(&values.0, &values.1) {
            found.push(TensorDifference {
                relative,
                max_abs,
                ..report(Change::Changed, Some(a), Some(b))
            });
        }
    }
    let added = right.iter().filter(|b| left.iter().all(|a| a.name != b.name));
    found.extend(added.map(|b| report(Change::Added, None, Some(b))));
    Ok(())
}

/// ‖a-b‖/‖a‖ and max |a-b| where finite; None when all bits are equal.
fn distance(a: &[f64], b: &[f64]) -> Option<(Option<f64>, Option<f64>)> {
    let (mut squares, mut norm, mut largest, mut same) = (0.0, 0.0, 0.0_f64, true);
    for (a, b) in a.iter().zip(b) {
        norm += a * a;
        if a.to_bits() != b.to_bits() {
            let d = (a - b).abs();
            squares += d * d;
            largest = if d.is_nan() || largest.is_nan() { f64::NAN } else { largest.max(d) };
            same = false;
        }
    }
    let finite = |x: f64| Some(x).filter(|x| x.is_finite());
    (!same).then(|| (finite((squares / norm).sqrt()), finite(largest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        assert_eq!(distance(&[1.0, f64::NAN], &[1.0, f64::NAN]), None);
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 4.5]), Some((Some(0.1), Some(0.5))));
        assert_eq!(distance(&[0.0], &[2.0]), Some((None, Some(2.0))));
        assert_eq!(distance(&[1.0], &[f64::NAN]), Some((None, None)));
        // -0.0 and 0.0 have different bits.
        assert_eq!(distance(&[0.0, 1.0], &[-0.0, 1.0]), Some((Some(0.0), Some(0.0))));
    }
}
