//! The data of regression: fields of a steady problem, or records of user-supplied arrays.

use super::task::RegressionData;
use crate::common::TrainOn;
use crate::common::normalisation::Normalisation;
use crate::common::sources::{Fields, Sources, joined, normalisation, open_split, refuse_overlap};
use data::fields::parameter::Parameter;
use data::fields::split::SplitName;
use data::fields::split_set::TrajectorySet;
use data::inputs::InputFile;
use data::records::{RecordSet, RecordSplit, RecordStats, ValueShape};
use data::store::check::require_separate;
use std::path::Path;
use unix::{Error, Result};

/// One sample: input and target, [x.., channels] in physical units, and the parameter of its equation, if it has one.
pub(super) struct Pair<'a> {
    pub input: Vec<f32>,
    pub target: Vec<f32>,
    pub parameter: Option<&'a Parameter>,
}

/// The data sets of one split.
pub(super) enum Pairs {
    Fields(Sources<TrajectorySet>),
    Records(Sources<RecordSet>),
}

/// All data sets of a configuration.
pub(super) struct Opened {
    pub train: Pairs,
    pub validation: Pairs,
    /// Shapes of input and target.
    pub sides: [ValueShape; 2],
    /// Normalisation of input and target.
    pub normalisations: [Normalisation; 2],
    pub input_files: Vec<InputFile>,
}

impl Opened {
    /// Opens the data sets of a configuration.
    ///
    /// Errors: 66 or 65 for missing or damaged files; 65 for fields that are not a steady problem and for data sets of
    /// different shapes; 78 when a sample is in both a training and a validation split.
    pub fn open(data: &RegressionData) -> Result<Self> {
        match RecordSplit::is_manifest(&data.split) {
            true => Self::records(data),
            false => Self::fields(data),
        }
    }

    fn fields(data: &RegressionData) -> Result<Self> {
        let fields = Fields::open(&data.split, &data.stats, data.weight, &data.additional)?;
        let count = |set: &TrajectorySet| set.len() as u64;
        let validation = |path: &Path| open_split(path, SplitName::Validation);
        let train = Sources::new(trained_on(data, fields.train, count, validation)?, count);
        let (shape, inputs) = (train.first().shape(), train.first().inputs());
        if shape.frames != 1 || inputs == 0 || inputs == shape.channels {
            return Err(Error::data(format!(
                "{}: {} frames of {} channels, {inputs} of them inputs; a steady problem has 1 frame with inputs and \
                 states. For pairs of frames or of other arrays, make records with ds-prep import --shift or --target",
                data.split.display(),
                shape.frames,
                shape.channels
            )));
        }
        let (states, grid) = (shape.channels - inputs, &shape.grid);
        let side = |channels: usize| ValueShape { grid: grid.clone(), channels };
        let parts = [0..inputs, inputs..shape.channels];
        Ok(Self {
            sides: [side(inputs), side(states)],
            normalisations: parts.map(|part| normalisation(&fields.stats, part)),
            input_files: fields.input_files,
            validation: Pairs::Fields(Sources::new(fields.validation, count)),
            train: Pairs::Fields(train),
        })
    }

    fn records(data: &RegressionData) -> Result<Self> {
        let (mut train, mut validation) = (Vec::new(), Vec::new());
        let (mut moments, mut input_files) = ([Vec::new(), Vec::new()], Vec::new());
        let others = data.additional.iter().map(|o| (o.split.as_path(), &*o.stats, o.weight));
        let first = (data.split.as_path(), &*data.stats, data.weight);
        for (split, stats_path, weight) in std::iter::once(first).chain(others) {
            let [own, to_validate] = open_records(split)?;
            let (stats, hash) = RecordStats::load(stats_path, &own)?;
            if let Some((set, _)) =
                train.first().filter(|(set, _): &&(RecordSet, f64)| set.sides() != own.sides())
            {
                let [x, y] = set.sides();
                let [u, v] = own.sides();
                return Err(Error::data(format!(
                    "{}: inputs have {u} and targets {v}, but those of {} {x} and {y}",
                    split.display(),
                    data.split.display()
                )));
            }
            for (all, own) in moments.iter_mut().zip([&stats.input, &stats.target]) {
                all.push((own.iter().map(|c| (c.mean, c.std)).collect::<Vec<_>>(), weight));
            }
            input_files.extend(own.input_files());
            input_files.push(InputFile::read_at_start(stats_path, &hash));
            train.push((own, weight));
            validation.push((to_validate, weight));
        }
        refuse_overlap([&train, &validation], |set, _| (set.name().to_string(), set.provenance()))?;
        let count = |set: &RecordSet| set.len() as u64;
        let of_validation = |path: &Path| RecordSet::open(path, SplitName::Validation);
        let train = Sources::new(trained_on(data, train, count, of_validation)?, count);
        Ok(Self {
            sides: train.first().sides().clone(),
            normalisations: moments.map(|moments| Normalisation::mixed(&moments)),
            input_files,
            validation: Pairs::Records(Sources::new(validation, count)),
            train: Pairs::Records(train),
        })
    }
}

/// Returns the sets to train on: the training splits and, with `train_on: train+validation`, the validation splits. All
/// samples of a data set have equal weight.
fn trained_on<T>(
    data: &RegressionData,
    train: Vec<(T, f64)>,
    count: impl Fn(&T) -> u64,
    validation: impl Fn(&Path) -> Result<T>,
) -> Result<Vec<(T, f64)>> {
    if data.train_on == TrainOn::Train {
        return Ok(train);
    }
    let manifests = std::iter::once(&data.split).chain(data.additional.iter().map(|o| &o.split));
    let (mut all, mut added) = (Vec::new(), Vec::new());
    for ((set, weight), manifest) in train.into_iter().zip(manifests) {
        let other = validation(manifest)?;
        let share = count(&set) as f64 / (count(&set) + count(&other)) as f64;
        all.push((set, weight * share));
        added.push((other, weight * (1.0 - share)));
    }
    all.extend(added);
    Ok(all)
}

/// Opens the training and the validation split of a manifest whose splits must be disjoint.
fn open_records(manifest: &Path) -> Result<[RecordSet; 2]> {
    let sets = RecordSet::open_all(manifest)?;
    require_separate(manifest, &sets)?;
    let [train, validation, _] = sets;
    if let Some(empty) = [&train, &validation].into_iter().find(|set| set.is_empty()) {
        return Err(Error::data(format!(
            "{}: the {} split is empty; run ds-prep split again with a share for it",
            manifest.display(),
            empty.name()
        )));
    }
    Ok([train, validation])
}

impl Pairs {
    /// Reads sample `sample`. Errors: those of reading its file.
    pub fn read(&self, sample: u64) -> Result<Pair<'_>> {
        match self {
            Self::Fields(sources) => {
                let (set, sample) = sources.find(sample);
                let (channels, inputs) = (set.shape().channels, set.inputs());
                let mut field = vec![0.0; set.shape().frame_len()];
                set.read(sample as usize, &mut field)?;
                let parameter = Some(set.entry(sample as usize).parameter);
                let [input, target] =
                    [0..inputs, inputs..channels].map(|part| part_of(&field, channels, part));
                Ok(Pair { input, target, parameter })
            }
            Self::Records(sources) => {
                let (set, sample) = sources.find(sample);
                let [input, target] =
                    [set.input(sample as usize), set.target(sample as usize)].map(<[f32]>::to_vec);
                Ok(Pair { input, target, parameter: None })
            }
        }
    }

    /// Number of samples.
    pub fn samples(&self) -> u64 {
        match self {
            Self::Fields(sources) => sources.samples(),
            Self::Records(sources) => sources.samples(),
        }
    }

    /// Number of samples and weight of each set.
    pub fn shares(&self) -> Vec<(u64, f64)> {
        match self {
            Self::Fields(sources) => sources.shares(),
            Self::Records(sources) => sources.shares(),
        }
    }

    /// Returns the joined hashes of the manifests.
    pub fn hash(&self) -> String {
        match self {
            Self::Fields(sources) => joined(sources.iter().map(TrajectorySet::manifest_hash)),
            Self::Records(sources) => joined(sources.iter().map(RecordSet::manifest_hash)),
        }
    }

    /// Returns the parameters of all samples; empty for records.
    pub fn parameters(&self) -> Vec<&Parameter> {
        match self {
            Self::Fields(sources) => {
                let all = sources.iter().flat_map(|set| (0..set.len()).map(|i| set.entry(i)));
                all.map(|entry| entry.parameter).collect()
            }
            Self::Records(_) => Vec::new(),
        }
    }
}

/// Extracts the channels `part` of a field [x.., channels].
pub(super) fn part_of(field: &[f32], channels: usize, part: std::ops::Range<usize>) -> Vec<f32> {
    field.chunks_exact(channels).flat_map(|point| &point[part.clone()]).copied().collect()
}
