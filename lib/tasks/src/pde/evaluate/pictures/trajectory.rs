//! The picture of one trajectory of a file: a space-time image in one dimension, frames side by side in two, and frames
//! of the middle plane in three.
//!
//! x points right, y up, and the first frame is at the bottom. Points are drawn at their coordinates and frames at
//! their times, even if these are not evenly spaced. The colours are the same as for fields in the pictures of
//! `evaluate`: from dark (minimum) to light (maximum). Non-finite values are grey.

use data::fields::field::{Field, Shape};
use report::axis::{Axis, plain};
use report::canvas::{Area, Canvas, png};
use report::colours::{Colour, Map};
use report::panel::{Panel, colour_bar, heading};
use std::ops::RangeInclusive;
use unix::{Error, Result};

/// Top of the panels in pixels, below the heading.
const TOP: f64 = 62.0;
/// Width of a plot in pixels. The height is the same for square fields, and limited to a third to twice the width.
const SIZE: f64 = 340.0;
/// Width of a space-time plot in pixels.
const WIDE: f64 = 560.0;
/// Gap between plots in pixels.
const GAP: f64 = 24.0;
/// Margins in pixels: for the vertical axis, for the colour bar, and above and below the plots together.
const LEFT: f64 = 88.0;
const RIGHT: f64 = 112.0;
const ABOUT: f64 = 108.0;

/// The part of a trajectory to draw.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Index of the trajectory.
    pub sample: usize,
    /// Index of the channel.
    pub channel: usize,
    /// Maximum number of frames side by side, spread evenly over time.
    pub frames: usize,
}

/// A drawn trajectory, with the range of its colour scale.
#[derive(Clone, Debug)]
pub struct Trajectory {
    /// The contents of the PNG file.
    pub png: Vec<u8>,
    /// Values of the first and the last colour.
    pub range: RangeInclusive<f32>,
    /// Indices of the frames shown; all frames for one-dimensional fields.
    pub frames: Vec<usize>,
}

/// Draws a trajectory. Errors: 2 when trajectory or channel are out of range; those of reading.
pub fn draw(field: &Field, view: View) -> Result<Trajectory> {
    let shape = field.shape();
    let missing = |what: &str, number: usize, there: usize| {
        let name = field.path().display();
        Error::usage(format!("{name}: no {what} {number}, there are {there} (from 0)"))
    };
    if view.sample >= shape.trajectories {
        return Err(missing("trajectory", view.sample, shape.trajectories));
    }
    if view.channel >= shape.channels {
        return Err(missing("channel", view.channel, shape.channels));
    }
    let line = shape.grid.len() == 1;
    let count = if line { shape.frames } else { view.frames.clamp(1, shape.frames) };
    let last = shape.frames - 1;
    let frames: Vec<usize> = (0..count).map(|i| i * last / (count - 1).max(1)).collect();
    let mut rows = Vec::with_capacity(count);
    let mut frame = vec![0.0; shape.frame_len()];
    for &number in &frames {
        field.read_frames(view.sample, number..number + 1, &mut frame)?;
        rows.push(plane(shape, view.channel, &frame));
    }
    let range = range(rows.iter().flatten());
    let sheet = Sheet::new(field, view, &range);
    let png = if line { sheet.space_time_image(&rows) } else { sheet.planes(&rows, &frames) }?;
    Ok(Trajectory { png, range, frames })
}

/// Extracts a channel of a frame, [x, y]; of a three-dimensional field, the plane at the middle z.
fn plane(shape: &Shape, channel: usize, frame: &[f32]) -> Vec<f32> {
    let nz = shape.grid.get(2).copied().unwrap_or(1);
    let of_channel = frame.iter().skip(channel).step_by(shape.channels);
    of_channel.skip(nz / 2).step_by(nz).copied().collect()
}

/// Returns the minimum and the maximum of the finite values.
fn range<'a>(values: impl Iterator<Item = &'a f32>) -> RangeInclusive<f32> {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    if low > high { 0.0..=0.0 } else { low..=high }
}

/// Settings shared by all panels.
struct Sheet<'a> {
    field: &'a Field,
    view: View,
    map: Map,
    /// Axis of the colour scale.
    values: Axis,
}

impl<'a> Sheet<'a> {
    fn new(field: &'a Field, view: View, range: &RangeInclusive<f32>) -> Self {
        let (low, high) = (f64::from(*range.start()), f64::from(*range.end()));
        // A constant field gets a margin on both sides.
        let (low, high) = if low < high { (low, high) } else { (low - 0.5, high + 0.5) };
        let values = Axis::linear(&field.channels()[view.channel], low, high);
        Self { field, view, map: Map::sequential(), values }
    }

    /// Draws a space-time image.
    fn space_time_image(&self, rows: &[Vec<f32>]) -> Result<Vec<u8>> {
        let size = (WIDE, SIZE);
        self.sheet(1, size, |canvas| {
            let t = self.field.t();
            let time = match t.get(..rows.len()) {
                Some(t) => Places::new("time t", t, 0.0),
                None => Places::numbers("frame", rows.len()),
            };
            let points = self.points(0);
            let panel = self.panel(canvas, 0, size, time.axis.clone());
            panel.image("", |x, y| self.colour(rows[time.at(y)][points.at(x)]))?;
            colour_bar(canvas, panel.plot(), &self.map, &self.values)
        })
    }

    /// Draws frames side by side.
    fn planes(&self, planes: &[Vec<f32>], frames: &[usize]) -> Result<Vec<u8>> {
        let [nx, ny] = [0, 1].map(|axis| self.field.shape().grid[axis]);
        let [x, y] = [0, 1].map(|axis| self.points(axis));
        let size = (SIZE, (SIZE * ny as f64 / nx as f64).clamp(SIZE / 3.0, 2.0 * SIZE));
        self.sheet(planes.len(), size, |canvas| {
            let mut plot = None;
            for (number, (plane, frame)) in planes.iter().zip(frames).enumerate() {
                let left = if number == 0 { y.axis.clone() } else { y.axis.clone().quiet() };
                let panel = self.panel(canvas, number, size, left);
                let title = match self.time(*frame) {
                    _ if self.field.shape().frames == 1 => String::new(),
                    Some(t) => format!("t = {}", plain(t)),
                    None => format!("frame {frame}"),
                };
                panel.image(&title, |at, above| self.colour(plane[x.at(at) * ny + y.at(above)]))?;
                plot = Some(panel.plot());
            }
            plot.map_or(Ok(()), |plot| colour_bar(canvas, plot, &self.map, &self.values))
        })
    }

    /// Draws a picture of `plots` plots of `size` (width, height) with a heading.
    fn sheet(
        &self,
        plots: usize,
        size: (f64, f64),
        draw: impl FnOnce(&Canvas) -> Result<()>,
    ) -> Result<Vec<u8>> {
        let width = LEFT + plots as f64 * (size.0 + GAP) + RIGHT;
        png(width as u32, (TOP + ABOUT + size.1) as u32, |canvas| {
            let field = self.field;
            let name = field.path().file_name().unwrap_or_default().to_string_lossy();
            let channel = &field.channels()[self.view.channel];
            let title = format!("{channel} of trajectory {}", self.view.sample);
            let of_file = field.parameter().map(|parameter| format!(", {parameter}"));
            let middle = if field.shape().grid.len() == 3 { ", at the middle z" } else { "" };
            let text = format!("{name}{}{middle}", of_file.unwrap_or_default());
            heading(canvas, &title, &text)?;
            draw(canvas)
        })
    }

    fn panel<'c, 'd>(
        &self,
        canvas: &'c Canvas<'d>,
        number: usize,
        size: (f64, f64),
        y: Axis,
    ) -> Panel<'c, 'd> {
        let x = 8.0 + number as f64 * (size.0 + GAP);
        // A panel adds margins of 80 and 12 pixels left and right of its plot, and of 54 above and below.
        let area = Area { x, y: TOP, width: size.0 + 92.0, height: size.1 + ABOUT };
        Panel::new(canvas, area, self.points(0).axis, y)
    }

    /// Returns the points along a spatial axis, by coordinate if the file has coordinates, else by index.
    fn points(&self, axis: usize) -> Places {
        let letter = ["x", "y", "z"][axis];
        let points = self.field.shape().grid[axis];
        match self.field.coordinates()[axis].as_slice() {
            // Extend by slightly more than half a cell, so that a tick at the border is on the axis.
            all if all.len() == points => Places::new(letter, all, 0.50001),
            _ => Places::numbers(&format!("{letter} (point)"), points),
        }
    }

    fn time(&self, frame: usize) -> Option<f64> {
        self.field.t().get(frame).copied()
    }

    fn colour(&self, value: f32) -> Colour {
        if value.is_finite() {
            self.map.at(self.values.position(f64::from(value)))
        } else {
            [128; 3]
        }
    }
}

/// Points or frames along an axis. Each is drawn over the interval in which it is the nearest one.
struct Places {
    axis: Axis,
    /// Start and end of the axis.
    ends: [f64; 2],
    /// Midpoints between neighbours, ascending.
    middles: Vec<f64>,
}

impl Places {
    /// Places points at `values`, with the axis extended at both ends by `beyond` times the spacing there; by index
    /// unless the values are strictly increasing.
    fn new(label: &str, values: &[f64], beyond: f64) -> Self {
        let count = values.len();
        if count < 2 || !values.windows(2).all(|pair| pair[0] < pair[1]) {
            return Self::numbers(label, count);
        }
        let (first, last) = (values[0], values[count - 1]);
        let ends =
            [first - beyond * (values[1] - first), last + beyond * (last - values[count - 2])];
        let middles = values.windows(2).map(|pair| 0.5 * (pair[0] + pair[1])).collect();
        Self { axis: Axis::linear(label, ends[0], ends[1]), ends, middles }
    }

    /// Places points by index.
    fn numbers(label: &str, count: usize) -> Self {
        let ends = [0.0, count as f64];
        let middles = (1..count).map(|i| i as f64).collect();
        Self { axis: Axis::linear(label, ends[0], ends[1]), ends, middles }
    }

    /// Returns the index of the point at a position along the axis, 0 to 1.
    fn at(&self, place: f64) -> usize {
        let value = self.ends[0] + place * (self.ends[1] - self.ends[0]);
        self.middles.partition_point(|middle| *middle <= value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_end_at_the_values() {
        let found = |values: &[f32]| range(values.iter());
        assert_eq!(found(&[3.0, 1.0, f32::NAN, 2.0, f32::INFINITY]), 1.0..=3.0);
        assert_eq!(found(&[-1.0, 4.0]), -1.0..=4.0);
        assert_eq!(found(&[f32::NAN]), 0.0..=0.0);
    }

    #[test]
    fn points_are_drawn_where_they_are() {
        // Cells 0.5..1.5, 1.5..3, 3..6 and 6..10; as frames 1..1.5, 1.5..3, 3..6 and 6..8.
        let values = [1.0, 2.0, 4.0, 8.0];
        let at = |places: &Places, value: f64| {
            places.at((value - places.ends[0]) / (places.ends[1] - places.ends[0]))
        };
        let points = Places::new("x", &values, 0.5);
        assert_eq!(points.ends, [0.5, 10.0]);
        let frames = Places::new("t", &values, 0.0);
        assert_eq!(frames.ends, [1.0, 8.0]);
        for (value, which) in [(1.4, 0), (1.6, 1), (2.9, 1), (3.1, 2), (5.9, 2), (6.1, 3), (8.0, 3)]
        {
            assert_eq!((at(&points, value), at(&frames, value)), (which, which), "{value}");
        }
        for other in [&[3.0, 2.0, 1.0][..], &[1.0, f64::NAN, 2.0], &[1.0]] {
            let places = Places::new("x", other, 0.5);
            assert_eq!(places.ends, [0.0, other.len() as f64]);
            assert_eq!(places.at(0.99), other.len() - 1);
        }
    }

    #[test]
    fn a_plane_is_one_channel_at_the_middle_of_z() {
        let shape = Shape { trajectories: 1, frames: 1, grid: vec![2, 3, 4], channels: 2 };
        let frame: Vec<f32> = (0..48).map(|i| i as f32).collect();
        // (x, y, z, c) is at (x*12 + y*4 + z)*2 + c, here with z = 2 and c = 1.
        assert_eq!(plane(&shape, 1, &frame), [5.0, 13.0, 21.0, 29.0, 37.0, 45.0]);
    }
}
