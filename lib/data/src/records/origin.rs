//! Reads the records of an import from arrays and trajectories.

use super::ValueShape;
use super::import::RecordPlan;
use crate::fields::content::hash_values;
use crate::fields::field::{
    Array, Axes, Axis, Field, ReadOptions, coordinates_beside, open_array, orders, orders_text,
};
use crate::fields::import::content_hash;
use blake3::Hasher;
use std::path::{Path, PathBuf};
use tensor::random::{Philox, Purpose};
use unix::{Error, Result};

/// One file of inputs with its targets.
pub(super) struct RecordSource {
    pairs: Pairs,
    /// Standard deviation of the normal noise added to the inputs, and its generator.
    noise: (f64, Philox),
}

enum Pairs {
    /// Two arrays with records along the first axis, and the group of each record.
    Arrays { input: Array, target: Array, groups: Option<Vec<f64>>, records: usize },
    /// Frames of trajectories: `history` consecutive frames are the input, and the frame `shift` after the last one is
    /// the target.
    Frames { field: Field, hash: String, history: usize, shift: usize },
}

/// Splits `FILE:NAME` into the file and the name of a dataset in it; `FILE` has no name.
pub(crate) fn file_and_name(text: &Path) -> (PathBuf, Option<String>) {
    let split = text.to_str().and_then(|text| text.rsplit_once(':'));
    match split {
        Some((file, name)) if !text.exists() => (file.into(), Some(name.into())),
        _ => (text.into(), None),
    }
}

/// Returns the dimensions of an array of records with this shape, if they are unambiguous: [n] or [n, channels].
fn usual(shape: &[usize]) -> Option<Axes> {
    let axes = [Axis::Sample, Axis::Channel];
    (1..=2).contains(&shape.len()).then(|| Axes::from(axes[..shape.len()].to_vec()))
}

/// Opens an array of records: the dataset that `text` names, or else `dataset`. `flag` is the option that states the
/// dimensions.
fn open(
    text: &Path,
    dataset: Option<&str>,
    fill_missing: bool,
    axes: &Option<Axes>,
    flag: &str,
) -> Result<Array> {
    let (file, name) = file_and_name(text);
    open_array(&file, name.as_deref().or(dataset), fill_missing, |shape| {
        let axes = axes.clone().or_else(|| usual(shape)).ok_or_else(|| {
            let orders = orders_text(&orders(shape, false)).replace("--axes", flag);
            format!("has shape {shape:?}; {flag} says what its dimensions are: {orders}")
        })?;
        match (axes.rank() == shape.len(), axes.place(Axis::Sample)) {
            (true, Some(_)) => Ok(axes),
            _ => Err(format!(
                "has shape {shape:?}, but {flag} {axes} has {} dimensions, one of which must be n",
                axes.rank()
            )),
        }
    })
}

fn records(array: &Array) -> usize {
    array.size(Axis::Sample).unwrap_or(0)
}

/// Returns the shape of a record of an array.
fn side(array: &Array) -> ValueShape {
    let [frames, channels] = [Axis::Time, Axis::Channel].map(|axis| array.size(axis).unwrap_or(1));
    ValueShape { grid: array.grid(), channels: frames * channels }
}

/// The inputs of records, without targets.
pub struct InputArray {
    array: Array,
    side: ValueShape,
}

impl InputArray {
    /// Opens `FILE` or `FILE:NAME`; `axes` are its dimensions.
    ///
    /// Errors: 66 and 65 for the file; 2 for axes that do not fit.
    pub fn open(text: &Path, axes: &Option<Axes>) -> Result<Self> {
        let array = open(text, None, false, axes, "--axes")?;
        Ok(Self { side: side(&array), array })
    }

    /// The shape of an input.
    pub fn side(&self) -> &ValueShape {
        &self.side
    }

    /// BLAKE3 hash of the file of the array. Errors: 66, 74.
    pub fn hash(&self) -> Result<String> {
        content_hash(self.array.path())
    }

    /// Reads the coordinates along each spatial axis; the list is empty for an axis without coordinates in the file.
    ///
    /// Errors (65): the coordinates cannot be read.
    pub fn coordinates(&self) -> Result<Vec<Vec<f64>>> {
        coordinates_beside(&self.array)
    }

    /// Number of records.
    pub fn records(&self) -> usize {
        records(&self.array)
    }

    /// Reads input `i`, [x.., channels]. Errors (65): it has values that are not finite, or cannot be read.
    pub fn read(&self, i: usize, out: &mut [f32]) -> Result<()> {
        read_record(&self.array, i, out)?;
        match out.iter().position(|value| !value.is_finite()) {
            None => Ok(()),
            Some(at) => Err(Error::data(format!(
                "record {i}: its input is {} at {}; remove the record, or replace the value",
                what_is(out[at], self.array.marks_missing()),
                self.side.place(at)
            ))),
        }
    }
}

/// Formats a value that is not finite. Values that the file marks as missing are read as NaN.
fn what_is(value: f32, marks_missing: bool) -> String {
    if value.is_nan() && marks_missing { "missing".into() } else { value.to_string() }
}

/// Reads record `i` of an array as [x.., channels].
fn read_record(array: &Array, i: usize, out: &mut [f32]) -> Result<()> {
    let frames = array.size(Axis::Time).unwrap_or(1);
    array.read(i, 0..frames, out)?;
    frames_last(out, frames, array.size(Axis::Channel).unwrap_or(1));
    Ok(())
}

impl RecordSource {
    /// Opens the files at index `number` of the lists of inputs, targets and groups.
    ///
    /// Errors: 66 and 65 for a file; 65 when the arrays have different numbers of records, or the trajectories are too
    /// short; 2 for axes that do not fit.
    pub fn open(plan: &RecordPlan, files: &[PathBuf], number: usize) -> Result<Self> {
        let random = Philox::new(plan.noise_seed, Purpose::Noise).at_source(number as u64);
        Ok(Self { pairs: Pairs::open(plan, files, number)?, noise: (plan.noise, random) })
    }

    /// Number of records.
    pub fn records(&self) -> usize {
        self.pairs.records()
    }

    /// The shapes of input and target.
    pub fn sides(&self) -> [ValueShape; 2] {
        self.pairs.sides()
    }

    /// Formats a value of an input or target that is not finite.
    pub fn what_is(&self, value: f32, is_input: bool) -> String {
        what_is(
            value,
            match &self.pairs {
                Pairs::Arrays { input, .. } if is_input => input.marks_missing(),
                Pairs::Arrays { target, .. } => target.marks_missing(),
                Pairs::Frames { field, .. } => field.marks_missing(),
            },
        )
    }

    /// Reads record `i` into `input` and `target`, [grid.., channels], and returns the key of its group: the given
    /// group, the trajectory, or the input without noise.
    pub fn read(&self, i: usize, input: &mut [f32], target: &mut [f32]) -> Result<blake3::Hash> {
        let group = self.pairs.read(i, input, target)?;
        let (std, random) = &self.noise;
        if *std > 0.0 {
            let mut normal = vec![0.0; input.len()];
            random.fill_normal(i as u64, &mut normal);
            input.iter_mut().zip(&normal).for_each(|(x, n)| *x += *std as f32 * n);
        }
        Ok(group)
    }
}

impl Pairs {
    fn open(plan: &RecordPlan, files: &[PathBuf], number: usize) -> Result<Self> {
        let path = &files[number];
        if let Some(shift) = plan.shift {
            let (file, name) = file_and_name(path);
            let dataset = name.or_else(|| plan.reading.dataset.clone());
            let field = Field::open_as(&file, &ReadOptions { dataset, ..plan.reading.clone() })?;
            field.require_fit()?;
            let history = plan.history;
            let frames = field.shape().frames;
            if history == 0 || history - 1 + shift >= frames || (shift == 0 && plan.noise == 0.0) {
                return Err(Error::usage(format!(
                    "--history {history} --shift {shift}: must fit into the {frames} frames of {}; a history of at least 1, \
                     and a shift of 0 only with --noise",
                    path.display()
                )));
            }
            let hash = content_hash(&file)?;
            return Ok(Self::Frames { field, hash, history, shift });
        }
        let ReadOptions { dataset, axes, fill_missing: fill, .. } = &plan.reading;
        let input = open(path, dataset.as_deref(), *fill, axes, "--axes")?;
        let target = open(&plan.target[number], None, *fill, &plan.target_axes, "--target-axes")?;
        let count = records(&input);
        let equal = |what: &str, path: &Path, found: usize| match found == count {
            true => Ok(()),
            false => Err(Error::data(format!(
                "{}: {found} {what}, but {} has {count} inputs; the n-th of one belongs to the n-th of the other",
                path.display(),
                files[number].display()
            ))),
        };
        if count == 0 {
            return Err(Error::data(format!("{}: no records", path.display())));
        }
        equal("targets", &plan.target[number], records(&target))?;
        let groups = match plan.group.get(number) {
            None => None,
            Some(path) => {
                let array = open(path, None, *fill, &None, "--group")?;
                equal("groups", path, records(&array))?;
                let mut groups = vec![0.0; count];
                for (i, group) in groups.iter_mut().enumerate() {
                    array.read(i, 0..1, std::slice::from_mut(group))?;
                }
                Some(groups.into_iter().map(f64::from).collect())
            }
        };
        Ok(Self::Arrays { input, target, groups, records: count })
    }

    fn records(&self) -> usize {
        match self {
            Self::Arrays { records, .. } => *records,
            Self::Frames { field, history, shift, .. } => {
                field.trajectories() * (field.shape().frames + 1 - history - shift)
            }
        }
    }

    fn sides(&self) -> [ValueShape; 2] {
        match self {
            Self::Arrays { input, target, .. } => [input, target].map(side),
            Self::Frames { field, history, .. } => {
                let (grid, channels) = (field.shape().grid.clone(), field.shape().channels);
                let states = channels - field.inputs();
                [
                    ValueShape { grid: grid.clone(), channels: history * channels },
                    ValueShape { grid, channels: states },
                ]
            }
        }
    }

    fn read(&self, i: usize, input: &mut [f32], target: &mut [f32]) -> Result<blake3::Hash> {
        let mut hasher = Hasher::new();
        match self {
            Self::Arrays { input: x, target: y, groups, .. } => {
                read_record(x, i, input)?;
                read_record(y, i, target)?;
                match groups {
                    Some(groups) => drop(hasher.update(&groups[i].to_le_bytes())),
                    None => hash_values(&mut hasher, input),
                }
            }
            Self::Frames { field, hash, history, shift } => {
                let shape = field.shape();
                let starts = shape.frames + 1 - history - shift;
                let (trajectory, start) = (i / starts, i % starts);
                field.read_frames(trajectory, start..start + history, input)?;
                frames_last(input, *history, shape.channels);
                let at = start + history - 1 + shift;
                let mut frame = vec![0.0; shape.frame_len()];
                field.read_frames(trajectory, at..at + 1, &mut frame)?;
                let states = frame.chunks_exact(shape.channels).flat_map(|p| &p[field.inputs()..]);
                target.iter_mut().zip(states).for_each(|(out, value)| *out = *value);
                hasher.update(hash.as_bytes());
                hasher.update(&(trajectory as u64).to_le_bytes());
            }
        }
        Ok(hasher.finalize())
    }
}

/// Permutes [frames, points, channels] to [points, frames·channels].
fn frames_last(values: &mut [f32], frames: usize, channels: usize) {
    if frames == 1 {
        return;
    }
    let old = values.to_vec();
    let points = old.len() / frames / channels;
    for (point, out) in values.chunks_exact_mut(frames * channels).enumerate() {
        for (frame, out) in out.chunks_exact_mut(channels).enumerate() {
            out.copy_from_slice(&old[(frame * points + point) * channels..][..channels]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_become_channels_in_order() {
        // Two frames of three points with two channels: frame·100 + point·10 + channel.
        let value = |f: usize, p: usize, c: usize| (f * 100 + p * 10 + c) as f32;
        let mut values: Vec<f32> = (0..12).map(|i| value(i / 6, i / 2 % 3, i % 2)).collect();
        frames_last(&mut values, 2, 2);
        assert_eq!(values[..8], [0.0, 1.0, 100.0, 101.0, 10.0, 11.0, 110.0, 111.0]);
    }

    #[test]
    fn a_dataset_is_named_after_the_file() {
        let named = |text: &str| file_and_name(Path::new(text));
        assert_eq!(named("no-file.h5:a/b"), ("no-file.h5".into(), Some("a/b".into())));
        assert_eq!(named("no-file.npy"), ("no-file.npy".into(), None));
    }
}
