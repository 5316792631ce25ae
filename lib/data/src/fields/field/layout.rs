//! The layouts of PDEBench's files: the datasets that hold a field, and the meaning of their dimensions.
//!
//! One table serves reading and writing. A frame is returned as [grid…, channels], with the spatial axes in the order
//! of the file and the channels last; inputs (a coefficient, a force), which are given and not predicted, come before
//! the states.

use super::axes::Axes;
use super::shape::Shape;
use std::ops::Range;

/// How a file stores its field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[value(rename_all = "lower")]
#[strum(serialize_all = "lowercase")]
pub enum FieldLayout {
    /// One dataset `tensor` [n, t, x…] or [n, t, x…, c], with `x-coordinate`, …, `t-coordinate`.
    Tensor,
    /// A group for each trajectory: `0000/data` [t, x…, c] with `0000/grid/x`, …, `0000/grid/t`.
    Groups,
    /// One dataset per variable, [n, t, x…]: `density`, `pressure`, `Vx`, …, with coordinates as in `Tensor`.
    Variables,
    /// A steady problem: the coefficient `nu` [n, x, y], an input, and the solution `tensor` [n, 1, x, y]; coordinates
    /// as in `Tensor`.
    Steady,
    /// `velocity` [n, t, x, y, 2], `particles` [n, t, x, y, 1], an input `force` [n, x, y, 2], and `t` [n, t]; the last
    /// three are optional.
    Incompressible,
}

impl FieldLayout {
    /// Returns the datasets that hold a field in this layout. `channels` are the channel names; the first `inputs` are
    /// inputs.
    pub fn datasets(self, shape: &Shape, channels: &[String], inputs: usize) -> Vec<LayoutDataset> {
        let space = shape.grid.len();
        let part = |name: &str, axes, channels| LayoutDataset { name: name.into(), axes, channels };
        let all = 0..channels.len();
        let axes = |time, channel| Axes::ordered(true, time, space, channel);
        match self {
            Self::Tensor => vec![part("tensor", axes(true, channels.len() > 1), all)],
            Self::Groups => vec![part("data", Axes::ordered(false, true, space, true), all)],
            Self::Variables => {
                all.map(|i| part(&channels[i], axes(true, false), i..i + 1)).collect()
            }
            Self::Steady => {
                vec![part("nu", axes(false, false), 0..1), part("tensor", axes(true, false), 1..2)]
            }
            Self::Incompressible => {
                let mut parts = vec![part("velocity", axes(true, true), inputs..inputs + space)];
                if inputs > 0 {
                    parts.insert(0, part("force", axes(false, true), 0..inputs));
                }
                if channels.len() > inputs + space {
                    parts.push(part("particles", axes(true, true), inputs + space..all.end));
                }
                parts
            }
        }
    }

    /// Whether files of this layout contain coordinates.
    pub fn has_coordinates(self) -> bool {
        !matches!(self, Self::Steady | Self::Incompressible)
    }

    /// Describes the datasets.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Tensor => "`tensor` [n,t,x..] or [n,t,x..,c]",
            Self::Groups => "`0000/data` [t,x..,c]",
            Self::Variables => "`density`, `Vx`, … [n,t,x..]",
            Self::Steady => "`nu` [n,x,y] with `tensor` [n,1,x,y]",
            Self::Incompressible => "`velocity` [n,t,x,y,2]",
        }
    }
}

/// One dataset of a layout.
#[derive(Clone, Debug, PartialEq)]
pub struct LayoutDataset {
    /// Name within the group.
    pub name: String,
    /// Dimensions of the dataset.
    pub axes: Axes,
    /// Channels of the field that the dataset holds.
    pub channels: Range<usize>,
}
