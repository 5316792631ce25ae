//! Copies pairs of arrays, or pairs of frames of trajectories, into a store of records.

use super::origin::{RecordSource, file_and_name};
use super::{Description, FILE, Records, ValueShape, refinement};
use crate::fields::content::hash_values;
use crate::fields::field::{Axes, ReadOptions, names_of};
use crate::fields::import::content_hash;
use crate::split::Source;
use crate::store::{SourceFile, Writer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::text::quote;
use unix::{Error, Exit, Result, note};

/// Approximate size of a shard in bytes.
const SHARD: usize = 256 << 20;

/// The options of an import of records.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RecordPlan {
    /// What the user knows about the inputs.
    #[clap(skip)]
    pub reading: ReadOptions,
    /// Makes records: the targets of the inputs FILES, one file for each; FILE:NAME names a dataset of a file with
    /// several
    #[arg(long, value_delimiter = ',', value_name = "FILE[:NAME]")]
    pub target: Vec<PathBuf>,
    /// Dimensions of the targets, as `--axes` of the inputs
    #[arg(long, value_name = "AXES", value_parser = Axes::parse, requires = "target")]
    pub target_axes: Option<Axes>,
    /// Numbers, one for each record, one file for each of FILES: records with equal numbers get the same split.
    /// Default: records with equal inputs
    #[arg(long, value_delimiter = ',', value_name = "FILE[:NAME]", requires = "target")]
    pub group: Vec<PathBuf>,
    /// Makes records from trajectories: the target is the frame NUMBER frames after the last one of the input
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["target", "target_axes"])]
    pub shift: Option<usize>,
    /// Number of consecutive frames in the input of a record made with --shift
    #[arg(long, value_name = "NUMBER", default_value_t = 1, requires = "shift")]
    pub history: usize,
    /// Standard deviation of normal noise that is added to the input of a record, in units of the data; for learning to
    /// denoise, with --shift 0 or with the input as target
    #[arg(long, value_name = "STD", default_value_t = 0.0)]
    pub noise: f64,
    /// Seed of the noise
    #[arg(long, value_name = "SEED", default_value_t = 0, requires = "noise")]
    pub noise_seed: u64,
}

impl RecordPlan {
    /// Whether the import makes records instead of trajectory files.
    pub fn makes_records(&self) -> bool {
        self.shift.is_some() || !self.target.is_empty() || self.noise != 0.0
    }

    /// Returns the options that determine the records, besides the files.
    fn options(&self) -> String {
        let axes = |axes: &Option<Axes>| axes.as_ref().map_or("-".into(), Axes::to_string);
        let [axes, target_axes] = [&self.reading.axes, &self.target_axes].map(axes);
        let (shift, dataset) = (self.shift.unwrap_or(0), self.reading.dataset.as_deref());
        let (history, dataset) = (self.history, dataset.unwrap_or("-"));
        let (noise, seed) = (self.noise, self.noise_seed);
        let filled = if self.reading.fill_missing { ", missing chunks filled" } else { "" };
        format!(
            "axes {axes}, target axes {target_axes}, shift {shift}, history {history}, noise {noise} \
             with seed {seed}, dataset {dataset}{filled}"
        )
    }
}

/// A record that cannot be trained on.
struct Bad {
    file: PathBuf,
    record: usize,
    what: String,
}

/// Copies the records of `files` and their targets into the store `folder`. Calls `done` with the number of records
/// read since its last call; an error of `done` ends the import. After a failure, the same call resumes after the last
/// complete shard.
///
/// Errors: 2 for incompatible options; 66 and 65 for the files; 65 for values that are not finite, naming each record;
/// 73 when the folder holds other records; 74 when reading or writing fails; and those of `done`.
pub fn import(
    plan: &RecordPlan,
    files: &[PathBuf],
    folder: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Records> {
    if !(plan.noise >= 0.0 && plan.noise.is_finite()) {
        return Err(Error::usage(format!(
            "--noise {}: must be a number that is not negative",
            plan.noise
        )));
    }
    if plan.shift.is_none() && plan.target.is_empty() {
        return Err(Error::usage(
            "--noise: for records; name their targets with --target or --shift",
        ));
    }
    for (flag, list) in [("target", &plan.target), ("group", &plan.group)] {
        if plan.shift.is_none() && !list.is_empty() && list.len() != files.len() {
            return Err(Error::usage(format!(
                "--{flag} names {} files, but there are {} input files; each needs its own",
                list.len(),
                files.len()
            )));
        }
    }
    let origins = (0..files.len()).map(|number| RecordSource::open(plan, files, number));
    let origins = origins.collect::<Result<Vec<RecordSource>>>()?;
    note_unused(plan, files)?;
    let sides = require_same_sides(&origins, files)?;
    let description = describe(plan, files, &origins, sides)?;
    let layout = description.layout(SHARD);
    let (records, sides) = (layout.records, [&description.input, &description.target]);
    if let Some(side) = sides.into_iter().find(|side| side.grid.len() > 3 || side.is_empty()) {
        return Err(Error::data(format!("{}: an array of {side}", files[0].display())));
    }
    refinement(&[description.input.clone(), description.target.clone()]).map_err(|why| {
        let remedy = "--axes and --target-axes say what the dimensions are";
        Error::data(format!("{}: {why}; {remedy}", files[0].display()))
    })?;
    let other = format!("{}: holds records of other files or options", folder.display());
    let mut writer =
        Writer::open(FILE, folder, layout, description.clone(), |old| match *old == description {
            true => Ok(()),
            false => {
                Err(Error::create(folder, format!("{other}; remove it, or choose another folder")))
            }
        })?;
    let mut bad = Vec::new();
    let mut next = 0;
    let filled = writer.fill(|range| {
        next = range.end;
        let arrays = read(&origins, files, sides, range, &mut bad, &mut done)?;
        match bad.is_empty() {
            true => Ok((arrays, ())),
            false => Err(Error::data("bad records")),
        }
    });
    if !bad.is_empty() {
        if writer.index.shards.iter().all(Option::is_none) {
            // Nothing was stored, and an index left behind would refuse the corrected files, whose hashes differ.
            let _ = std::fs::remove_file(folder.join("index.json"));
            let _ = std::fs::remove_dir(folder);
        }
        // The shard is not written; the rest is read only to report all problems at once.
        while next < records {
            let range = next..records.min(next + writer.index.layout.shard_records);
            next = range.end;
            read(&origins, files, sides, range, &mut bad, &mut done)?;
        }
        return Err(report(&bad));
    }
    filled?;
    writer.save()?;
    Records::open(folder)
}

/// Prints a note about the arrays of these files that no option reads.
fn note_unused(plan: &RecordPlan, files: &[PathBuf]) -> Result<()> {
    if plan.shift.is_some() {
        return Ok(());
    }
    let dataset = plan.reading.dataset.as_deref();
    let inputs = files.iter().map(|text| (text, dataset));
    let others = plan.target.iter().chain(&plan.group).map(|text| (text, None));
    let mut read: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (text, dataset) in inputs.chain(others) {
        let (file, name) = file_and_name(text);
        read.entry(file).or_default().extend(name.or(dataset.map(String::from)));
    }
    for (file, read) in read {
        // A path without a dataset name refers to a file with a single array, which is read.
        let mut names = if read.is_empty() { Vec::new() } else { names_of(&file)? };
        names.retain(|name| {
            !read.iter().any(|read| read.split('/').next() == Some(name))
                && !name.ends_with("-coordinate")
        });
        if !names.is_empty() {
            note!("{}: not read: {}", file.display(), quote(&names.join(", ")));
        }
    }
    Ok(())
}

fn require_same_sides(origins: &[RecordSource], files: &[PathBuf]) -> Result<[ValueShape; 2]> {
    let [input, target] = origins[0].sides();
    for (origin, file) in origins.iter().zip(files).skip(1) {
        let [own_input, own_target] = origin.sides();
        if (&own_input, &own_target) != (&input, &target) {
            return Err(Error::data(format!(
                "{}: its inputs have {own_input} and its targets {own_target}, those of {} {input} and {target}",
                file.display(),
                files[0].display()
            )));
        }
    }
    Ok([input, target])
}

fn describe(
    plan: &RecordPlan,
    files: &[PathBuf],
    origins: &[RecordSource],
    [input, target]: [ValueShape; 2],
) -> Result<Description> {
    let source = |text: &Path, records: usize| -> Result<SourceFile> {
        let (file, name) = file_and_name(text);
        let blake3 = content_hash(&file)?;
        let path = name.map_or(file.clone(), |name| format!("{}:{name}", file.display()).into());
        Ok(SourceFile { path, blake3, records })
    };
    let inputs = files.iter().zip(origins).map(|(file, origin)| source(file, origin.records()));
    let others = plan.target.iter().chain(&plan.group).map(|file| source(file, 0));
    Ok(Description {
        input,
        target,
        options: plan.options(),
        files: inputs.collect::<Result<_>>()?,
        others: others.collect::<Result<_>>()?,
    })
}

/// Reads some records and returns the bytes of their three arrays. Adds records with values that are not finite to
/// `bad`.
fn read(
    origins: &[RecordSource],
    files: &[PathBuf],
    sides: [&ValueShape; 2],
    range: Range<usize>,
    bad: &mut Vec<Bad>,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<Vec<Vec<u8>>> {
    let lengths = sides.map(ValueShape::len);
    let [mut inputs, mut targets] = lengths.map(|length| vec![0.0_f32; length * range.len()]);
    let [mut groups, mut input_hashes] =
        [0, 1].map(|_| Vec::with_capacity(range.len() * blake3::OUT_LEN));
    let rows = inputs.chunks_exact_mut(lengths[0]).zip(targets.chunks_exact_mut(lengths[1]));
    for (i, (input, target)) in range.zip(rows) {
        let (number, record) = locate(origins, i);
        let group = origins[number].read(record, input, target)?;
        groups.extend(group.as_bytes());
        let mut hasher = blake3::Hasher::new();
        hash_values(&mut hasher, input);
        input_hashes.extend(hasher.finalize().as_bytes());
        for (what, side, values) in [("input", sides[0], &*input), ("target", sides[1], &*target)] {
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let value = origins[number].what_is(values[at], what == "input");
                let what = format!("{what} is {value} at {}", side.place(at));
                bad.push(Bad { file: files[number].clone(), record, what });
            }
        }
        done(1)?;
    }
    let bytes = |values: Vec<f32>| bytemuck::cast_slice(&values).to_vec();
    Ok(vec![bytes(inputs), bytes(targets), groups, input_hashes])
}

/// Returns the index of the origin of record `i`, and the record's index in it.
fn locate(origins: &[RecordSource], mut i: usize) -> (usize, usize) {
    for (number, origin) in origins.iter().enumerate() {
        if i < origin.records() {
            return (number, i);
        }
        i -= origin.records();
    }
    (origins.len() - 1, i)
}

fn report(bad: &[Bad]) -> Error {
    let one = |Bad { file, record, what }: &Bad| {
        format!("{}: record {record}: its {what}", file.display())
    };
    let lines: Vec<String> = bad.iter().map(one).collect();
    let count = bad.len();
    let first = format!(
        "{count} records cannot be used; remove them from the arrays, or replace the values:"
    );
    Error::list(Exit::Data, first, &lines)
}
