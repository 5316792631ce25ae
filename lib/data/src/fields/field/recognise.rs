//! Determines the layout of a file from the names and shapes in it.

use super::axes::{Axes, Axis};
use super::coordinates;
use super::layout::{FieldLayout, LayoutDataset};
use super::remainder::Remainder;
use super::shape::{Shape, orders, orders_text};
use super::source::{self, Source, contents};
use clap::ValueEnum;
use unix::{Error, Result};

/// Name of the dataset with the predictions for records.
pub(crate) const PREDICTIONS: &str = "target";

/// Information from the user that takes precedence over the file. Everything is optional.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub struct ReadOptions {
    /// Layout of the files, if it is ambiguous
    #[arg(long)]
    pub layout: Option<FieldLayout>,
    /// Dimensions of the arrays, one letter each: n (trajectory), t, x, y, z, c (channel), e.g. ntxyc
    #[arg(long, value_parser = Axes::parse)]
    pub axes: Option<Axes>,
    /// Dataset that contains the field, instead of `tensor`
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,
    /// Read chunks that are missing in HDF5 or Zarr as the fill value instead of refusing the file
    #[arg(long)]
    pub fill_missing: bool,
}

/// A file whose layout is known.
#[derive(Debug)]
pub(super) struct Recognised {
    pub layout: FieldLayout,
    pub parts: Vec<LayoutDataset>,
    /// The group of each trajectory; empty when one dataset holds all trajectories.
    pub groups: Vec<String>,
    pub channels: Vec<String>,
    pub inputs: usize,
    /// Coordinates along each spatial axis, empty where the file has none.
    pub coordinates: Vec<Vec<f64>>,
    pub t: Vec<f64>,
    /// Other axis orders that fit the coordinates, with the resulting shapes: all of them if the assumed order does not
    /// fit, else those with a different time axis.
    pub other_axes: Vec<(Axes, Shape)>,
    /// Whether the assumed order of the axes fits the coordinates, or was given.
    pub axes_fit: bool,
    /// Units of the times and of the datasets, by name.
    pub units: Vec<(String, String)>,
    /// Describes where coordinates differ from those of the first trajectory.
    pub coordinate_conflict: Option<String>,
    /// Other contents of the file.
    pub remainder: Remainder,
}

/// PDEBench's variable names, in the order of the output. Files with separate variables are recognised by these names.
pub(super) const VARIABLES: [&str; 5] = ["density", "pressure", "Vx", "Vy", "Vz"];

/// Maximum number of channels.
const MAX_CHANNELS: usize = 65_536;

/// Determines the layout of a file. Errors: 65 if it is unsupported or ambiguous; the message says what was found and
/// which flag resolves the problem.
pub(super) fn recognise(file: &dyn Source, reading: &ReadOptions) -> Result<Recognised> {
    if let Some(axes) = reading.axes.as_ref().filter(|axes| axes.space() == 0) {
        return Err(Error::usage(format!("--axes {axes}: fields need an axis `x`")));
    }
    let layout = match reading.layout {
        Some(layout) => layout,
        None if reading.dataset.is_some() || file.only_array().is_some() => FieldLayout::Tensor,
        None if has_predictions(file) => FieldLayout::Tensor,
        None => guess(file)?,
    };
    let groups = if layout == FieldLayout::Groups { file.groups() } else { Vec::new() };
    let name = |axis: Axis| match (layout, axis) {
        (FieldLayout::Groups, axis) => {
            format!("{}/grid/{}", groups.first().map_or("", String::as_str), axis.letter())
        }
        // Our safetensors files have one list of times for all trajectories.
        (FieldLayout::Incompressible, Axis::Time) if file.shape("t").is_some() => "t".into(),
        (_, axis) => format!("{}-coordinate", axis.letter()),
    };
    let numbers = |axis: Axis| source::numbers(file, &name(axis));
    let mut coordinates =
        Axis::SPACE.iter().map(|&axis| numbers(axis)).collect::<Result<Vec<_>>>()?;
    let known = coordinates.iter().take_while(|values| !values.is_empty()).count();
    let mut parts = parts(file, layout, reading, &groups, known)?;
    let space = parts[0].axes.space();
    coordinates.resize(space, Vec::new());
    let mut t = numbers(Axis::Time)?;
    let mut coordinate_conflict = coordinates::of_groups(file, &groups, &coordinates, &t)?;
    if layout == FieldLayout::Incompressible {
        // One row per trajectory.
        let rows = file.shape("t").filter(|dims| dims.len() == 2).map_or(1, |dims| dims[0].max(1));
        coordinate_conflict = coordinates::of_rows(&t, rows);
        t.truncate(t.len() / rows);
    }
    let part = parts.iter().find(|part| part.axes.place(Axis::Time).is_some());
    let part = part.unwrap_or(&parts[0]);
    let dims = file.shape(&full_name(part, &groups)).unwrap_or_default();
    let (axes_fit, other_axes) = match reading.axes {
        None => fitting(&dims, &part.axes, &coordinates, &t),
        Some(_) => (true, Vec::new()),
    };
    let units = coordinates::units(file, &name(Axis::Time), &parts, &groups);
    let remainder = Remainder::of(file, &parts, &groups);
    let (channels, inputs) = channels(file, layout, &mut parts, &groups)?;
    Ok(Recognised {
        layout,
        parts,
        groups,
        channels,
        inputs,
        coordinates,
        t,
        other_axes,
        axes_fit,
        units,
        coordinate_conflict,
        remainder,
    })
}

pub(super) fn full_name(part: &LayoutDataset, groups: &[String]) -> String {
    groups.first().map_or(part.name.clone(), |group| format!("{group}/{}", part.name))
}

/// Whether the file holds predictions for records, [n, x.., c], which state their axes and have no frames.
fn has_predictions(file: &dyn Source) -> bool {
    file.shape(PREDICTIONS).is_some() && file.text("axes").is_some()
}

fn guess(file: &dyn Source) -> Result<FieldLayout> {
    let has = |name: &str| file.shape(name).is_some();
    if has("tensor") {
        // A single value with this name is a parameter, not a field.
        let coefficient = file.shape("nu").is_some_and(|dims| dims.len() > 1);
        return Ok(if coefficient { FieldLayout::Steady } else { FieldLayout::Tensor });
    }
    if has("velocity") {
        return Ok(FieldLayout::Incompressible);
    }
    let groups = !file.groups().is_empty();
    let supported: Vec<_> =
        FieldLayout::value_variants().iter().map(|one| one.describe()).collect();
    match (VARIABLES.iter().any(|name| has(name)), groups) {
        (true, false) => Ok(FieldLayout::Variables),
        (false, true) => Ok(FieldLayout::Groups),
        (true, true) => Err(file.invalid(format!(
                "unknown layout: both variables and groups with `data`; found {}; choose one with --layout",
                contents(file)
            ),
        )),
        (false, false) => Err(file.invalid(format!(
                "unknown layout: no dataset `tensor`; found {}; supported are {}; --dataset and --axes name \
             another",
                contents(file),
                supported.join(", ")
            ),
        )),
    }
}

/// Returns the datasets of the file in `layout`; `known` spatial axes have coordinates. Channels are numbered later.
fn parts(
    file: &dyn Source,
    layout: FieldLayout,
    reading: &ReadOptions,
    groups: &[String],
    known: usize,
) -> Result<Vec<LayoutDataset>> {
    let part = |name: &str, axes: Axes| LayoutDataset { name: name.into(), axes, channels: 0..0 };
    let rank = |name: &str| {
        let dims = file.shape(name);
        dims.map(|dims| dims.len())
            .ok_or_else(|| file.invalid(format!("no dataset `{name}`; found {}", contents(file))))
    };
    let wanted = |otherwise: Axes| reading.axes.clone().unwrap_or(otherwise);
    Ok(match layout {
        FieldLayout::Tensor => {
            let only = file.only_array();
            let only = only.as_deref().or(has_predictions(file).then_some(PREDICTIONS));
            let name = reading.dataset.as_deref().or(only).unwrap_or("tensor");
            let rank = rank(name)?;
            // Our own files without coordinates state their axes, as does xarray.
            let dimensions = || {
                let attributes = file.attributes(Some(name));
                let names = attributes.get("_ARRAY_DIMENSIONS")?.as_array()?.iter();
                Axes::of_names(names.map(|name| name.as_str().unwrap_or_default()))
            };
            let own = || file.text("axes")?.parse().ok();
            let said = || file.axes().or_else(own).or_else(dimensions);
            let axes = match (reading.axes.clone().or_else(said), known, rank) {
                (Some(axes), ..) => axes,
                (None, 0, 3) => Axes::ordered(true, true, 1, false),
                (None, 1.., _) if rank == known + 2 || rank == known + 3 => {
                    Axes::ordered(true, true, known, rank == known + 3)
                }
                _ if has_predictions(file) => {
                    return Err(file.invalid(format!(
                        "`{name}` has shape {:?}: predictions without a grid, which are no fields",
                        file.shape(name).unwrap_or_default()
                    )));
                }
                _ => {
                    let dims = file.shape(name).unwrap_or_default();
                    return Err(file.invalid(format!(
                        "unknown layout: `{name}` has shape {dims:?} and the file coordinates of {known} \
                         axes of space; ds-prep import --axes says what its dimensions are: {}",
                        orders_text(&orders(&dims, true))
                    )));
                }
            };
            vec![part(name, axes)]
        }
        FieldLayout::Groups => {
            let Some(first) = groups.first() else {
                return Err(
                    file.invalid(format!("no groups with `data`; found {}", contents(file)))
                );
            };
            let rank = rank(&format!("{first}/data"))?;
            let space = if known > 0 { known } else { rank.saturating_sub(2).clamp(1, 3) };
            vec![part("data", wanted(Axes::ordered(false, true, space, rank == space + 2)))]
        }
        FieldLayout::Variables => {
            let names = VARIABLES.into_iter().filter(|name| file.shape(name).is_some());
            let mut parts = Vec::new();
            for name in names {
                let space = rank(name)?.saturating_sub(2).clamp(1, 3);
                parts.push(part(name, wanted(Axes::ordered(true, true, space, false))));
            }
            if parts.is_empty() {
                return Err(file.invalid(format!(
                    "none of {}; found {}",
                    VARIABLES.join(", "),
                    contents(file)
                )));
            }
            parts
        }
        FieldLayout::Steady => {
            let space = rank("nu")?.saturating_sub(1).clamp(1, 3);
            vec![
                part("nu", Axes::ordered(true, false, space, false)),
                part("tensor", Axes::ordered(true, true, space, false)),
            ]
        }
        FieldLayout::Incompressible => {
            let space = rank("velocity")?.saturating_sub(3).clamp(1, 3);
            let all = [("force", false), ("velocity", true), ("particles", true)];
            let there = all.into_iter().filter(|(name, _)| file.shape(name).is_some());
            there.map(|(name, time)| part(name, Axes::ordered(true, time, space, true))).collect()
        }
    })
}

/// Numbers and names the channels of the parts, and counts the inputs.
fn channels(
    file: &dyn Source,
    layout: FieldLayout,
    parts: &mut [LayoutDataset],
    groups: &[String],
) -> Result<(Vec<String>, usize)> {
    let mut names: Vec<String> = Vec::new();
    let mut inputs = 0;
    for part in parts.iter_mut() {
        let dims = file.shape(&full_name(part, groups)).unwrap_or_default();
        let count =
            part.axes.place(Axis::Channel).and_then(|at| dims.get(at)).copied().unwrap_or(1);
        if count > MAX_CHANNELS {
            let name = &part.name;
            return Err(
                file.invalid(format!("`{name}` {dims:?} has more than {MAX_CHANNELS} channels"))
            );
        }
        part.channels = names.len()..names.len() + count;
        let usual =
            layout == FieldLayout::Tensor || matches!(part.name.as_str(), "tensor" | "data");
        let stem = if usual { "u" } else { &part.name };
        match count {
            1 => names.push(stem.into()),
            _ => names.extend((0..count).map(|i| format!("{stem}{i}"))),
        }
        if part.axes.place(Axis::Time).is_none() && layout != FieldLayout::Tensor {
            inputs = names.len();
        }
    }
    // Our own files store the names.
    if let Some(text) = file.text("channels") {
        let given: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
        if given.len() != names.len() {
            return Err(file.invalid(format!(
                "attribute `channels` names {} channels, but there are {}",
                given.len(),
                names.len()
            )));
        }
        names = given;
    }
    Ok((names, inputs))
}

/// Returns whether `axes` fits the lengths of the coordinates, and the other orders that do: all of them if `axes` does
/// not fit, else those with a different time axis.
fn fitting(
    dims: &[usize],
    axes: &Axes,
    coordinates: &[Vec<f64>],
    t: &[f64],
) -> (bool, Vec<(Axes, Shape)>) {
    // Some files have one more time than frames.
    let fits = |axis: Axis, size: usize, more: usize| {
        let number = Axis::SPACE.iter().position(|space| *space == axis);
        let (values, more) = match number.and_then(|number| coordinates.get(number)) {
            Some(points) => (points.len(), 0),
            None if axis == Axis::Time => (t.len(), more),
            None => (0, 0),
        };
        values == 0 || values == size || size.checked_add(more) == Some(values)
    };
    let all_fit =
        |axes: &[Axis], more: usize| axes.iter().zip(dims).all(|(axis, n)| fits(*axis, *n, more));
    let now: Vec<Axis> = axes.iter().collect();
    let is_fit = now.len() != dims.len() || all_fit(&now, 1);
    if is_fit && t.is_empty() {
        return (true, Vec::new());
    }
    let more = usize::from(!all_fit(&now, 0));
    let differs = |other: &Axes| !is_fit || other.place(Axis::Time) != axes.place(Axis::Time);
    let others = permutations(&now).into_iter().filter(|other| all_fit(other, more));
    let made = |axes: Axes| (axes.clone(), Shape::of(dims, &axes));
    (is_fit, others.map(Axes::from).filter(differs).map(made).collect())
}

fn permutations(axes: &[Axis]) -> Vec<Vec<Axis>> {
    if axes.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (i, first) in axes.iter().enumerate() {
        let rest: Vec<Axis> =
            axes.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, a)| *a).collect();
        all.extend(permutations(&rest).into_iter().map(|rest| [&[*first], &rest[..]].concat()));
    }
    all
}
