//! The meaning of a dataset's dimensions.

use std::fmt;
use std::str::FromStr;

/// The meaning of one dimension. The order of the variants is the order of the output, regardless of the order in the
/// file: trajectory, frame, space, channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Trajectories, `n`.
    Sample,
    /// Frames, `t`.
    Time,
    /// First spatial axis, `x`.
    X,
    /// Second spatial axis, `y`.
    Y,
    /// Third spatial axis, `z`.
    Z,
    /// Values at a point, `c`.
    Channel,
}

impl Axis {
    /// All axes, in order.
    pub const ALL: [Self; 6] = [Self::Sample, Self::Time, Self::X, Self::Y, Self::Z, Self::Channel];
    /// The spatial axes.
    pub const SPACE: [Self; 3] = [Self::X, Self::Y, Self::Z];

    /// Returns the axis that a column or dimension called `name` denotes; `None` for channels and unknown names.
    pub(super) fn of_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "n" | "sample" | "trajectory" => Some(Self::Sample),
            "t" | "time" => Some(Self::Time),
            other => Self::SPACE.into_iter().find(|axis| other.chars().eq([axis.letter()])),
        }
    }

    /// The letter that denotes the axis.
    pub fn letter(self) -> char {
        ['n', 't', 'x', 'y', 'z', 'c'][self as usize]
    }
}

/// The dimensions of a dataset in the order of the file, e.g. `ntxyc`. Each occurs at most once, and spatial axes have
/// no gaps: no `y` without `x`. Fields have at least one spatial axis, which `from_str` requires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axes(Vec<Axis>);

impl Axes {
    /// Creates the axes `n`, `t`, the first `space` spatial axes, and `c`, each only if requested.
    pub fn ordered(sample: bool, time: bool, space: usize, channel: bool) -> Self {
        let there = |axis: &Axis| match axis {
            Axis::Sample => sample,
            Axis::Time => time,
            Axis::Channel => channel,
            Axis::X | Axis::Y | Axis::Z => Axis::SPACE[..space.min(3)].contains(axis),
        };
        Self(Axis::ALL.into_iter().filter(there).collect())
    }

    /// The dimensions in order.
    pub fn iter(&self) -> impl Iterator<Item = Axis> + '_ {
        self.0.iter().copied()
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of spatial axes.
    pub fn space(&self) -> usize {
        self.iter().filter(|axis| Axis::SPACE.contains(axis)).count()
    }

    /// Position of an axis, if present.
    pub fn place(&self, axis: Axis) -> Option<usize> {
        self.0.iter().position(|other| *other == axis)
    }

    /// Whether the dimensions are in the order of the output.
    pub fn is_ordered(&self) -> bool {
        self.0.is_sorted()
    }

    /// Positions of the axes, in the order of the output.
    pub fn order(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.rank()).collect();
        places.sort_by_key(|&place| self.0[place]);
        places
    }
}

impl From<Vec<Axis>> for Axes {
    fn from(axes: Vec<Axis>) -> Self {
        Self(axes)
    }
}

impl Axes {
    /// Returns the dimensions called `names`, if all names are known.
    pub(super) fn of_names<'a>(names: impl Iterator<Item = &'a str>) -> Option<Self> {
        let is_channel = |name: &str| ["c", "channel", "variable"].contains(&name);
        let of_name = |name| Axis::of_name(name).or(is_channel(name).then_some(Axis::Channel));
        let axes = Self(names.map(of_name).collect::<Option<_>>()?);
        axes.to_string().parse().ok()
    }

    /// Parses letters. Unlike `from_str`, this allows axes without a spatial axis.
    pub fn parse(text: &str) -> Result<Self, String> {
        let of_letter = |letter: char| {
            let known = Axis::ALL.into_iter().find(|axis| axis.letter() == letter);
            known.ok_or_else(|| {
                format!("`{letter}` in axes `{text}` is not one of n, t, x, y, z, c")
            })
        };
        let axes = Self(text.chars().map(of_letter).collect::<Result<_, _>>()?);
        let twice = axes.0.iter().enumerate().find(|(i, axis)| axes.0[..*i].contains(axis));
        if let Some((_, axis)) = twice {
            return Err(format!("`{}` occurs twice in axes `{text}`", axis.letter()));
        }
        let space = &Axis::SPACE[..axes.space()];
        match space.iter().find(|axis| axes.place(**axis).is_none()) {
            Some(missing) => Err(format!("axes `{text}` need `{}`", missing.letter())),
            None => Ok(axes),
        }
    }
}

impl FromStr for Axes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let axes = Self::parse(text)?;
        if axes.space() == 0 { Err(format!("axes `{text}` need `x`")) } else { Ok(axes) }
    }
}

impl fmt::Display for Axes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|axis| write!(f, "{}", axis.letter()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_parsed_ordered_and_refused() {
        let axes: Axes = "nctyx".parse().unwrap();
        assert_eq!((axes.to_string().as_str(), axes.space(), axes.rank()), ("nctyx", 2, 5));
        assert_eq!(axes.order(), [0, 2, 4, 3, 1]);
        assert!(!axes.is_ordered());
        assert_eq!(axes.place(Axis::Channel), Some(1));
        assert!("ntxyc".parse::<Axes>().unwrap().is_ordered());
        let named = |names: &[&str]| Axes::of_names(names.iter().copied());
        let of_xarray = ["time", "sample", "channel", "x"];
        assert_eq!(named(&of_xarray).unwrap().to_string(), "tncx");
        for unknown in [&["time", "lat"][..], &["x", "x"], &["time"]] {
            assert_eq!(named(unknown), None);
        }
        assert_eq!(Axes::ordered(true, false, 2, true).to_string(), "nxyc");
        for wrong in ["", "nt", "nty", "nxx", "nqx", "ntxz"] {
            assert!(wrong.parse::<Axes>().is_err(), "{wrong}");
        }
    }
}
