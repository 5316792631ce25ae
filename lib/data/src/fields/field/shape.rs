//! The shape of a field.

use super::axes::{Axes, Axis};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// The shape of a field: [trajectories, frames, grid…, channels].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of trajectories, N; not stored in manifests.
    #[serde(skip)]
    pub trajectories: usize,
    /// Frames per trajectory, T; 1 for a steady problem.
    pub frames: usize,
    /// Points along each spatial axis.
    pub grid: Vec<usize>,
    /// Values per point, inputs and states together.
    pub channels: usize,
}

impl Shape {
    /// Returns the shape of a field stored with dimensions `dims`; a missing sample, time or channel axis has size 1.
    pub(super) fn of(dims: &[usize], axes: &Axes) -> Self {
        let size = |axis: Axis| axes.place(axis).and_then(|place| dims.get(place)).copied();
        let [trajectories, frames, channels] =
            [Axis::Sample, Axis::Time, Axis::Channel].map(|axis| size(axis).unwrap_or(1));
        let grid = Axis::SPACE.into_iter().filter_map(size).collect();
        Self { trajectories, frames, grid, channels }
    }

    /// Number of grid points.
    pub fn points(&self) -> usize {
        self.grid.iter().product()
    }

    /// Grid size as text, e.g. `1024` or `128x128`.
    pub fn grid_text(&self) -> String {
        grid_text(&self.grid)
    }

    /// Values per frame: all points and channels.
    pub fn frame_len(&self) -> usize {
        self.points() * self.channels
    }

    /// Values per trajectory.
    pub fn trajectory_len(&self) -> usize {
        self.frames * self.frame_len()
    }

    /// Size in bytes of all trajectories as f32 (of one trajectory when there are none); `None` when it overflows. Call
    /// the methods above only for shapes that passed this check.
    pub fn bytes(&self) -> Option<u64> {
        let all = [self.trajectories.max(1), self.frames, self.channels, 4];
        let mut all = all.into_iter().chain(self.grid.iter().copied());
        let bytes = all.try_fold(1usize, |bytes, n| bytes.checked_mul(n));
        bytes.filter(|bytes| *bytes <= isize::MAX as usize).map(|bytes| bytes as u64)
    }

    /// Size along an axis, for a dataset of `channels` channels.
    pub(crate) fn size(&self, axis: Axis, channels: usize) -> usize {
        match axis {
            Axis::Sample => self.trajectories,
            Axis::Time => self.frames,
            Axis::X => self.grid[0],
            Axis::Y => self.grid[1],
            Axis::Z => self.grid[2],
            Axis::Channel => channels,
        }
    }

    /// Splits the frames of a trajectory into blocks of at most 4 Mi values, or of one frame. Programs that process
    /// whole files read these blocks, so their memory use does not depend on the length of trajectories.
    pub fn frame_blocks(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let (frames, step) = (self.frames, self.block_frames());
        (0..frames).step_by(step).map(move |first| first..frames.min(first + step))
    }

    /// Number of values in the largest of [`frame_blocks`](Self::frame_blocks).
    pub fn block_len(&self) -> usize {
        self.block_frames().min(self.frames) * self.frame_len()
    }

    fn block_frames(&self) -> usize {
        ((4 << 20) / self.frame_len().max(1)).max(1)
    }
}

/// Formats the sizes of a grid, e.g. `1024` or `128x128`.
pub(crate) fn grid_text(grid: &[usize]) -> String {
    grid.iter().map(usize::to_string).collect::<Vec<_>>().join("x")
}

/// Returns the multi-dimensional index of the grid point with the row-major index `point`.
pub(crate) fn coordinates(grid: &[usize], mut point: usize) -> Vec<usize> {
    let mut all = vec![0; grid.len()];
    for (place, n) in all.iter_mut().zip(grid).rev() {
        *place = point % n;
        point /= n;
    }
    all
}

/// Maximum number of axis orders in a message.
const MAX_ORDERS: usize = 6;

/// Returns the common axis orders for an array with dimensions `dims`, with the resulting shapes.
pub(crate) fn orders(dims: &[usize], time: bool) -> Vec<(Axes, Shape)> {
    let orders: &[&str] = match (dims.len(), time) {
        (2, true) => &["tx", "nx"],
        (3, true) => &["ntx", "nxt", "txc", "txy"],
        (4, true) => &["ntxc", "nctx", "ntxy"],
        (5, true) => &["ntxyc", "nctxy", "ntcxy", "ntxyz"],
        (6, true) => &["ntxyzc", "nctxyz", "ntcxyz"],
        (3, false) => &["nxy", "nxc", "ncx"],
        (4, false) => &["nxyc", "ncxy", "nxyz"],
        (5, false) => &["nxyzc", "ncxyz"],
        _ => &[],
    };
    let axes = orders.iter().filter_map(|order| order.parse::<Axes>().ok());
    axes.map(|axes| (axes.clone(), Shape::of(dims, &axes))).collect()
}

/// Formats axis orders with the resulting shapes: `--axes ntx (…), or --axes nxt (…)`.
pub(crate) fn orders_text(orders: &[(Axes, Shape)]) -> String {
    let one = |(axes, shape): &(Axes, Shape)| match axes.place(Axis::Time) {
        Some(_) => format!("--axes {axes} ({shape})"),
        None => {
            let Shape { trajectories, channels, .. } = shape;
            let grid = shape.grid_text();
            format!(
                "--axes {axes} ({trajectories} records on {grid} points with {channels} channels)"
            )
        }
    };
    let mut all: Vec<String> = orders.iter().take(MAX_ORDERS).map(one).collect();
    match orders.len() {
        0 => all.push("no order fits an array of so many dimensions".into()),
        count if count > MAX_ORDERS => all.push(format!("{} more orders", count - MAX_ORDERS)),
        _ => {}
    }
    all.join(", or ")
}

/// Formats as `20 trajectories of 101 frames on 128x128 points with 2 channels`.
impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trajectories, frames, channels, .. } = self;
        let grid = self.grid_text();
        write!(
            f,
            "{trajectories} trajectories of {frames} frames on {grid} points with {channels} channels"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_frames_and_are_bounded() {
        for (frames, grid, channels) in [
            (201, vec![1024], 1),
            (1000, vec![512, 512], 3),
            (7, vec![4096, 4096], 2),
            (1, vec![3], 1),
        ] {
            let shape = Shape { trajectories: 2, frames, grid, channels };
            let blocks: Vec<_> = shape.frame_blocks().collect();
            assert!(blocks.iter().cloned().flatten().eq(0..frames));
            let largest = blocks.iter().map(|block| block.len() * shape.frame_len()).max();
            assert_eq!(largest, Some(shape.block_len()));
            assert!(shape.block_len() <= (4 << 20).max(shape.frame_len()));
        }
    }
}
