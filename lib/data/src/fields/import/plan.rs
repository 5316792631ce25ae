//! The options of an import, and the conversion that they define for each file.

use super::provenance::attributes;
use super::resample::{Cut, Resampler};
use super::target::Target;
use crate::fields::field::{
    Axis, Field, FieldLayout, PERIODIC, ReadOptions, Shape, attributes_of, coordinate_problem,
    problem_of_times,
};
use crate::fields::parameter::Parameter;
use crate::fields::write::Header;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use tensor::Dtype;
use unix::{Error, Result};

/// The options of an import; the same for all files.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ImportOptions {
    /// What the user knows about the files.
    #[command(flatten)]
    pub reading: ReadOptions,
    /// Parameters that the files do not state, with any names, e.g. nu=0.01 or nu=0.5,viscosity=2
    #[arg(long, value_name = "NAME=VALUE")]
    pub parameter: Option<Parameter>,
    /// Let --parameter replace different values in the files, which is otherwise an error
    #[arg(long = "override", requires = "parameter")]
    pub override_parameter: bool,
    /// Names of the channels, inputs first
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub channels: Vec<String>,
    /// Import only the first NUMBER trajectories of each file
    #[arg(long, value_name = "NUMBER")]
    pub samples: Option<usize>,
    /// Keep every NUMBER-th frame
    #[arg(long, value_name = "NUMBER")]
    pub stride: Option<usize>,
    /// Ranges of axes to keep, without the END index, e.g. x=0:512,t=10:110
    #[arg(long, value_delimiter = ',', value_name = "AXIS=FIRST:END")]
    pub crop: Vec<Crop>,
    /// Grid to resample to, e.g. 256 or 64x64: block means if the sizes divide, otherwise linear interpolation,
    /// which is periodic along periodic axes
    #[arg(long, value_parser = grid)]
    pub grid: Option<std::vec::Vec<usize>>,
    /// Periodic space axes, e.g. x,y, or none; default: from the attribute `periodic` of the file, or from PDEBench
    /// file names
    #[arg(long, value_name = "AXES", value_parser = periodic)]
    pub periodic: Option<String>,
    /// Type of the stored numbers: f32, f16 (up to 65504) or bf16 (safetensors only)
    #[arg(long, value_parser = dtype, default_value = "f32")]
    pub dtype: Option<Dtype>,
}

/// Parses `256` or `64x64`.
fn grid(text: &str) -> Result<Vec<usize>, String> {
    let sizes: Result<Vec<usize>, _> = text.split('x').map(str::parse).collect();
    sizes.map_err(|_| format!("`{text}` is not a grid such as 256 or 64x64"))
}

/// Parses a list of spatial axes such as `x,y`; `none` is the empty list.
fn periodic(text: &str) -> Result<String, String> {
    let known = text.split(',').all(|axis| matches!(axis, "x" | "y" | "z"));
    match text {
        "none" => Ok(String::new()),
        _ if known => Ok(text.into()),
        _ => Err(format!("`{text}` is neither a list of axes like x,y nor none")),
    }
}

/// Parses the dtype of stored fields.
fn dtype(text: &str) -> Result<Dtype, String> {
    match text {
        "f32" => Ok(Dtype::F32),
        "f16" => Ok(Dtype::F16),
        "bf16" => Ok(Dtype::Bf16),
        "f64" => Err("fields are read as f32; f64 would not be more precise".into()),
        _ => Err(format!("unknown type `{text}`; choose f32, f16 or bf16")),
    }
}

/// A range along an axis, e.g. `x=0:512`.
#[derive(Clone, Debug, PartialEq)]
pub struct Crop {
    axis: Axis,
    range: Range<usize>,
}

impl FromStr for Crop {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (axis, range) = text.split_once('=')?;
            let axis = [Axis::Time, Axis::X, Axis::Y, Axis::Z]
                .into_iter()
                .find(|a| axis.trim().chars().eq([a.letter()]))?;
            let (first, end) = range.split_once(':')?;
            let range = first.trim().parse().ok()?..end.trim().parse().ok()?;
            (!range.is_empty()).then_some(Self { axis, range })
        };
        parse()
            .ok_or_else(|| format!("`{text}` is not a range of an axis like x=0:512 or t=10:110"))
    }
}

impl fmt::Display for Crop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.axis.letter(), self.range.start, self.range.end)
    }
}

/// The format of the files that an import writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[value(rename_all = "lower")]
#[strum(serialize_all = "lowercase")]
pub enum Format {
    /// HDF5, contiguous.
    #[default]
    Hdf5,
    /// safetensors.
    Safetensors,
}

/// The complete description of one output file.
pub(super) struct Conversion {
    pub header: Header,
    pub samples: Vec<usize>,
    pub first_frame: usize,
    pub stride: usize,
    pub resampler: Option<Resampler>,
}

impl Conversion {
    /// Plans the conversion. Errors: 2 when the options do not apply to the source, 65 when the parameter is unknown or
    /// the times are invalid.
    pub fn new(plan: &ImportOptions, target: &Target, field: &Field) -> Result<Self> {
        let shape = field.shape();
        let name = target.source.display();
        let crop = |axis: Axis, size: usize| {
            let crop = plan.crop.iter().find(|crop| crop.axis == axis);
            crop.map_or(0..size, |crop| crop.range.clone())
        };
        let frames = crop(Axis::Time, shape.frames);
        let stride = plan.stride.unwrap_or(1);
        if frames.end > shape.frames || stride == 0 {
            return Err(Error::usage(format!(
                "{name}: --stride {stride} of the frames {}:{}; the file has {} frames, and the stride is at least 1",
                frames.start, frames.end, shape.frames
            )));
        }
        let grid = plan.grid.as_ref();
        if grid.is_some_and(|grid| grid.len() != shape.grid.len()) {
            let points = shape.grid_text();
            return Err(Error::usage(format!("{name}: --grid for fields on {points} points")));
        }
        let cut = |(i, size): (usize, &usize)| {
            let keep = crop(Axis::SPACE[i], *size);
            let points = grid.map_or(keep.len(), |grid| grid[i]);
            // Part of a periodic axis is not periodic.
            let periodic = match &plan.periodic {
                Some(letters) => letters.contains(Axis::SPACE[i].letter()),
                None => field.periodic()[i],
            };
            Cut { periodic: periodic && keep.len() == *size, keep, points }
        };
        let cuts: Vec<Cut> = shape.grid.iter().enumerate().map(cut).collect();
        let resampler = Resampler::new(&shape.grid, &cuts, shape.channels)?;
        let lengths = [shape.frames, shape.frames + 1];
        let t = frames.clone().step_by(stride).filter_map(|frame| field.t().get(frame).copied());
        let t: Vec<f64> = t.collect();
        let problem = match field.t() {
            all if all.is_empty() || lengths.contains(&all.len()) => problem_of_times(&t, t.len()),
            all => coordinate_problem(all, &lengths, Axis::Time),
        };
        if let Some(what) = problem {
            return Err(Error::data(format!("{name}: {what}")));
        }
        let parameter = target.parameter.as_ref().ok_or_else(|| {
            Error::data(format!("{name}: no parameter; --parameter gives one, e.g. nu=0.01"))
        })?;
        let layout = match field.layout() {
            layout @ (FieldLayout::Steady | FieldLayout::Incompressible) => layout,
            FieldLayout::Tensor | FieldLayout::Groups | FieldLayout::Variables => {
                FieldLayout::Tensor
            }
        };
        let channels = match plan.channels.as_slice() {
            [] => field.channels().to_vec(),
            given if given.len() == shape.channels => given.to_vec(),
            given => {
                return Err(Error::usage(format!(
                    "{name}: --channels gives {} names, but the file has the channels {}",
                    given.len(),
                    field.channels().join(",")
                )));
            }
        };
        let mut attributes = attributes(plan, target, parameter, field)?;
        let periodic = cuts.iter().zip(Axis::SPACE).filter(|(cut, _)| cut.periodic);
        let letters: Vec<String> = periodic.map(|(_, axis)| axis.letter().to_string()).collect();
        attributes.retain(|(name, _)| name != PERIODIC);
        attributes.push((PERIODIC.into(), letters.join(",").into()));
        let coordinates = cuts.iter().zip(field.coordinates()).map(|(cut, x)| cut.coordinates(x));
        let coordinates = coordinates.collect();
        let header = Header {
            shape: Shape {
                trajectories: target.samples.len(),
                frames: frames.len().div_ceil(stride),
                grid: cuts.iter().map(|cut| cut.points).collect(),
                channels: shape.channels,
            },
            layout,
            channels,
            inputs: field.inputs(),
            coordinates,
            t,
            attributes,
            dtype: plan.dtype.unwrap_or(Dtype::F32),
            is_records: false,
        };
        header.require_layout().map_err(|what| Error::usage(format!("{name}: {what}")))?;
        let (samples, first_frame) = (target.samples.clone(), frames.start);
        Ok(Self { header, samples, first_frame, stride, resampler })
    }

    /// Fails (73) if the existing file was made from a different source or with different options.
    pub fn require_same(&self, path: &Path) -> Result<()> {
        let found = attributes_of(path)?;
        let same = ["source_blake3", "import"].iter().all(|name| {
            let wanted = self.header.attributes.iter().find(|(other, _)| other == name);
            wanted.is_some_and(|(_, value)| found.get(*name) == Some(value))
        });
        if same {
            return Ok(());
        }
        let cause = "it already exists and was made from another file or with other options; move it or \
                     choose another folder";
        Err(Error::create(path, cause))
    }
}
