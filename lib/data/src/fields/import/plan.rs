//! The options of an import, and what follows for each file.

use super::provenance::attributes;
use super::resample::{Cut, Resampler};
use super::target::Target;
use crate::fields::field::{Axis, Field, Layout, PERIODIC, Reading, Shape, attributes_of};
use crate::fields::parameter::Parameter;
use crate::fields::write::Header;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;
use tensor::Dtype;
use unix::{Error, Result};

/// The options of an import; the same for all files.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// What the user knows about the files.
    pub reading: Reading,
    /// Parameters that files do not state.
    pub parameter: Option<Parameter>,
    /// Whether these replace the parameters that a file states.
    pub override_parameter: bool,
    /// Names of the channels, inputs first, where the files do not say.
    pub channels: Vec<String>,
    /// Keep only the first trajectories of each file, this many.
    pub samples: Option<usize>,
    /// Keep every n-th frame.
    pub stride: Option<usize>,
    /// The parts of axes to keep.
    pub crop: Vec<Crop>,
    /// The grid to resample fields to.
    pub grid: Option<Vec<usize>>,
    /// Letters of the periodic spatial axes, where the files do not say.
    pub periodic: Option<String>,
    /// The layout to write; by default one dataset, except for steady and incompressible problems, which keep theirs.
    pub layout: Option<Layout>,
    /// The dtype to store: f32 (the default), f16, or (only in safetensors files) bf16.
    pub dtype: Option<Dtype>,
}

/// A range of an axis: `x=0:512`.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// HDF5, contiguous.
    #[default]
    Hdf5,
    /// safetensors.
    Safetensors,
}

impl FromStr for Format {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "hdf5" => Ok(Self::Hdf5),
            "safetensors" => Ok(Self::Safetensors),
            _ => Err(format!("no format `{text}`; choose hdf5 or safetensors")),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hdf5 => "hdf5",
            Self::Safetensors => "safetensors",
        })
    }
}

/// The complete description of one file to be made.
pub(super) struct Shaped {
    pub header: Header,
    pub samples: Vec<usize>,
    pub first_frame: usize,
    pub stride: usize,
    pub resampler: Option<Resampler>,
}

impl Shaped {
    /// Errors: 2 when the options do not apply to the source, 65 when the parameter is unknown.
    pub fn new(plan: &Plan, target: &Target, field: &Field) -> Result<Self> {
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
            return Err(Error::usage(format!(
                "{name}: --grid for fields on {} points",
                shape.grid_text()
            )));
        }
        let cut = |(i, size): (usize, &usize)| {
            let keep = crop(Axis::SPACE[i], *size);
            let points = grid.map_or(keep.len(), |grid| grid[i]);
            // A range of a periodic axis is not periodic.
            let periodic = match &plan.periodic {
                Some(letters) => letters.contains(Axis::SPACE[i].letter()),
                None => field.periodic()[i],
            };
            Cut { periodic: periodic && keep.len() == *size, keep, points }
        };
        let cuts: Vec<Cut> = shape.grid.iter().enumerate().map(cut).collect();
        let resampler = Resampler::new(&shape.grid, &cuts, shape.channels)?;
        let t = field.t();
        let t = frames.clone().step_by(stride).filter_map(|frame| t.get(frame).copied()).collect();
        let parameter = target.parameter.as_ref().ok_or_else(|| {
            Error::data(format!("{name}: no parameter; --parameter gives one, e.g. nu=0.01"))
        })?;
        let layout = plan.layout.unwrap_or(match field.layout() {
            layout @ (Layout::Steady | Layout::Incompressible) => layout,
            Layout::Tensor | Layout::Groups | Layout::Variables => Layout::Tensor,
        });
        let channels = match plan.channels.as_slice() {
            [] => field.channels().to_vec(),
            given if given.len() == shape.channels => given.to_vec(),
            given => {
                return Err(Error::usage(format!(
                    "{name}: {} names for the channels {}",
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
            coordinates: cuts
                .iter()
                .zip(field.coordinates())
                .map(|(c, x)| c.coordinates(x))
                .collect(),
            t,
            attributes,
            dtype: plan.dtype.unwrap_or(Dtype::F32),
        };
        header.require_layout().map_err(|what| Error::usage(format!("{name}: {what}")))?;
        let (samples, first_frame) = (target.samples.clone(), frames.start);
        Ok(Self { header, samples, first_frame, stride, resampler })
    }

    /// Refuses (73) an existing file that was made in another way.
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
