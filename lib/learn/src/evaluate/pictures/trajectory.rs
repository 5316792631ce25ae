//! The picture of one trajectory of a file: space and time of one dimension, some frames of two beside each
//! other, the middle plane of three.
//!
//! x to the right, y upwards, the first frame at the bottom. Values run from dark to light or, when both
//! signs are there, from blue over white (zero) to red; grey is where there is no finite number.

use super::axis::{Axis, plain};
use super::canvas::{Area, Canvas, Letters, png};
use super::colours::{Colour, GREY, Map};
use super::panel::{Panel, SMALL, TITLE, colour_bar};
use data::field::{Field, Shape};
use std::ops::RangeInclusive;
use unix::{Error, Result};

/// Where panels begin, below title and explanation.
const TOP: f64 = 62.0;
/// Width of a plot, and its height but for fields that are much longer than wide, or wider than long.
const SIZE: f64 = 340.0;
/// Width of a plot of space and time.
const WIDE: f64 = 560.0;
/// From a plot to the next.
const GAP: f64 = 24.0;
/// Room for the axis on the left and for the colour bar on the right, and above and below the plots.
const LEFT: f64 = 88.0;
const RIGHT: f64 = 112.0;
const ABOUT: f64 = 108.0;

/// What is drawn.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Number of the trajectory.
    pub sample: usize,
    /// Number of the channel.
    pub channel: usize,
    /// At most so many frames beside each other, spread over the time.
    pub frames: usize,
}

/// An image as PNG, and the values at the ends of its colours.
#[derive(Clone, Debug)]
pub struct Trajectory {
    /// The file.
    pub png: Vec<u8>,
    /// Values of the first and the last colour.
    pub range: RangeInclusive<f32>,
    /// The frames that are shown; all for one dimension of space.
    pub frames: Vec<usize>,
}

/// Draws a trajectory. Errors (2): no such trajectory or channel; and those of reading.
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
    let png = if line { sheet.line(&rows) } else { sheet.planes(&rows, &frames) }?;
    Ok(Trajectory { png, range, frames })
}

/// A channel of a frame, [x, y]; of three dimensions at the middle z.
fn plane(shape: &Shape, channel: usize, frame: &[f32]) -> Vec<f32> {
    let nz = shape.grid.get(2).copied().unwrap_or(1);
    let of_channel = frame.iter().skip(channel).step_by(shape.channels);
    of_channel.skip(nz / 2).step_by(nz).copied().collect()
}

/// Smallest and largest value; the same to both sides of zero when both signs are there.
fn range<'a>(values: impl Iterator<Item = &'a f32>) -> RangeInclusive<f32> {
    let finite = values.filter(|value| value.is_finite());
    let (low, high) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), value| {
        (low.min(*value), high.max(*value))
    });
    match (low, high) {
        _ if low > high => 0.0..=0.0,
        _ if low < 0.0 && high > 0.0 => -high.max(-low)..=high.max(-low),
        _ => low..=high,
    }
}

/// What all panels have in common.
struct Sheet<'a> {
    field: &'a Field,
    view: View,
    map: Map,
    /// Of the colours.
    values: Axis,
}

impl<'a> Sheet<'a> {
    fn new(field: &'a Field, view: View, range: &RangeInclusive<f32>) -> Self {
        let (low, high) = (f64::from(*range.start()), f64::from(*range.end()));
        // One value alone has room to both sides.
        let (low, high) = if low < high { (low, high) } else { (low - 0.5, high + 0.5) };
        let map = if low < 0.0 && high > 0.0 { Map::diverging() } else { Map::sequential() };
        let values = Axis::linear(&field.channels()[view.channel], low, high);
        Self { field, view, map, values }
    }

    /// Space and time.
    fn line(&self, rows: &[Vec<f32>]) -> Result<Vec<u8>> {
        let size = (WIDE, SIZE);
        self.sheet(1, size, |canvas| {
            let (first, last) = (self.time(0), self.time(rows.len() - 1));
            let time = match (first, last) {
                (Some(first), Some(last)) => Axis::linear("time t", first, last),
                _ => Axis::linear("frame", 0.0, (rows.len() - 1) as f64),
            };
            let panel = self.panel(canvas, 0, size, time);
            panel.image("", |x, y| {
                let row = &rows[cell(y, rows.len())];
                self.colour(row[cell(x, row.len())])
            })?;
            colour_bar(canvas, panel.plot(), &self.map, &self.values)
        })
    }

    /// Frames beside each other.
    fn planes(&self, planes: &[Vec<f32>], frames: &[usize]) -> Result<Vec<u8>> {
        let [nx, ny] = [0, 1].map(|axis| self.field.shape().grid[axis]);
        let size = (SIZE, (SIZE * ny as f64 / nx as f64).clamp(SIZE / 3.0, 2.0 * SIZE));
        self.sheet(planes.len(), size, |canvas| {
            let mut plot = None;
            for (number, (plane, frame)) in planes.iter().zip(frames).enumerate() {
                let y = self.axis(1);
                let y = if number == 0 { y } else { y.quiet() };
                let panel = self.panel(canvas, number, size, y);
                let title = match self.time(*frame) {
                    _ if self.field.shape().frames == 1 => String::new(),
                    Some(t) => format!("t = {}", plain(t)),
                    None => format!("frame {frame}"),
                };
                panel.image(&title, |x, y| self.colour(plane[cell(x, nx) * ny + cell(y, ny)]))?;
                plot = Some(panel.plot());
            }
            plot.map_or(Ok(()), |plot| colour_bar(canvas, plot, &self.map, &self.values))
        })
    }

    /// A picture of so many plots of a size (width, height), with what it shows above.
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
            canvas.text(&title, (28.0, 24.0), Letters { size: 24.0, ..TITLE })?;
            let of_file = field.parameter().map(|parameter| format!(", {parameter}"));
            let middle = if field.shape().grid.len() == 3 { ", at the middle z" } else { "" };
            let text = format!("{name}{}{middle}", of_file.unwrap_or_default());
            canvas.text(&text, (28.0, 52.0), Letters { colour: GREY, ..SMALL })?;
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
        // Panels keep 80 and 12 beside their plots, and 54 above and below.
        let area = Area { x, y: TOP, width: size.0 + 92.0, height: size.1 + ABOUT };
        Panel::new(canvas, area, self.axis(0), y)
    }

    /// An axis of space: over the cells about the coordinates, or over the numbers of the points.
    fn axis(&self, axis: usize) -> Axis {
        let letter = ["x", "y", "z"][axis];
        match self.field.coordinates()[axis].as_slice() {
            all @ [first, .., last] if first < last => {
                // A little more than half a cell, so that a mark at the border is on the axis.
                let half = 0.50001 * (last - first) / (all.len() - 1) as f64;
                Axis::linear(letter, first - half, last + half)
            }
            _ => {
                let points = self.field.shape().grid[axis];
                Axis::linear(&format!("{letter} (point)"), 0.0, points as f64)
            }
        }
    }

    fn time(&self, frame: usize) -> Option<f64> {
        self.field.t().get(frame).copied()
    }

    fn colour(&self, value: f32) -> Colour {
        if value.is_finite() { self.map.at(self.values.place(f64::from(value))) } else { [128; 3] }
    }
}

/// The cell of `n` that holds `at`, 0 to 1.
fn cell(at: f64, n: usize) -> usize {
    ((at * n as f64) as usize).min(n - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_end_at_the_values_and_are_even_about_zero() {
        let found = |values: &[f32]| range(values.iter());
        assert_eq!(found(&[3.0, 1.0, f32::NAN, 2.0, f32::INFINITY]), 1.0..=3.0);
        assert_eq!(found(&[-1.0, 4.0]), -4.0..=4.0);
        assert_eq!(found(&[f32::NAN]), 0.0..=0.0);
    }

    #[test]
    fn a_plane_is_one_channel_at_the_middle_of_z() {
        let shape = Shape { trajectories: 1, frames: 1, grid: vec![2, 3, 4], channels: 2 };
        let frame: Vec<f32> = (0..48).map(|i| i as f32).collect();
        // Of (x, y, z, c) at (x*12 + y*4 + z)*2 + c, with z = 2 and c = 1.
        assert_eq!(plane(&shape, 1, &frame), [5.0, 13.0, 21.0, 29.0, 37.0, 45.0]);
    }
}
