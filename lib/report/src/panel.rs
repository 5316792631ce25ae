//! A panel of a picture: a plot with axes, title and legend.

use crate::axis::Axis;
use crate::canvas::{Area, Canvas, Pen, TextStyle};
use crate::colours::{Colour, FAINT, GREY, INK, Map, distinct};
use plotters::style::text_anchor::{HPos, VPos};
use unix::Result;

/// Text style of ticks and labels.
pub const SMALL: TextStyle = TextStyle {
    size: 16.0,
    bold: false,
    colour: INK,
    horizontal: HPos::Left,
    vertical: VPos::Center,
    upwards: false,
};
/// Text style of panel titles.
pub const TITLE: TextStyle = TextStyle { size: 18.0, bold: true, ..SMALL };

/// Margins around the plot for ticks and labels, and above it for title and legend.
const LEFT: f64 = 80.0;
/// Left margin for the names of categories.
const NAMES_LEFT: f64 = 300.0;
const BOTTOM: f64 = 54.0;
const TOP: f64 = 54.0;
const RIGHT: f64 = 12.0;
/// Height of a row of the legend.
const ROW: f64 = 20.0;
/// How far tick labels may extend beyond the plot.
const OUTSIDE: f64 = 9.0;
/// Minimum gap between two tick labels.
const SPACE: f64 = 6.0;
/// Maximum number of rows of names below a category axis, and the height of a row.
const NAME_ROWS: usize = 3;
const NAME_ROW: f64 = 18.0;

/// A curve with its name.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Number of its run, which determines its colour in all charts.
    pub run: usize,
    /// Name in the legend; an empty one is not listed.
    pub name: String,
    /// Line style.
    pub pen: Pen,
    /// Its points, in axis values.
    pub points: Vec<(f64, f64)>,
    /// Marker of its points and marker radius; without a marker, a line joins the points.
    pub mark: Option<(Mark, f64)>,
}

/// The marker of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A filled circle.
    Disc,
    /// An open circle.
    Ring,
    /// A cross.
    Cross,
}

impl Curve {
    /// Creates a solid curve with the given line width.
    pub fn new(
        name: &str,
        colour: Colour,
        width: f64,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        let pen = Pen { colour, width, dash: None };
        Self { run: 0, name: name.into(), pen, points: points.into_iter().collect(), mark: None }
    }

    /// Creates the curve of a run, in its colour.
    pub fn of_run(
        run: usize,
        name: &str,
        width: f64,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Self { run, ..Self::new(name, distinct(run), width, points) }
    }

    /// Creates points that no line joins.
    pub fn points(
        name: &str,
        colour: Colour,
        mark: (Mark, f64),
        points: impl IntoIterator<Item = (f64, f64)>,
    ) -> Self {
        Self { mark: Some(mark), ..Self::new(name, colour, 1.4, points) }
    }

    /// Makes the curve dashed.
    pub fn dashed(mut self, on: f64, off: f64) -> Self {
        self.pen.dash = Some((on, off));
        self
    }
}

/// A plot with axes.
pub struct Panel<'a, 'b> {
    canvas: &'a Canvas<'b>,
    plot: Area,
    x: Axis,
    y: Axis,
}

impl<'a, 'b> Panel<'a, 'b> {
    /// Creates a panel that fills `outer`.
    pub fn new(canvas: &'a Canvas<'b>, outer: Area, x: Axis, y: Axis) -> Self {
        let left = if y.names() > 0 { NAMES_LEFT } else { LEFT };
        let plot = Area {
            x: outer.x + left,
            y: outer.y + TOP,
            width: outer.width - left - RIGHT,
            height: outer.height - TOP - BOTTOM,
        };
        Self { canvas, plot, x, y }
    }

    /// The plot area without axes and title.
    pub fn plot(&self) -> Area {
        self.plot
    }

    /// Draws curves over grid lines, the first one on top, and their legend.
    pub fn curves(&self, title: &str, curves: &[Curve]) -> Result<()> {
        let Area { x, y, width, height } = self.plot;
        let rows = self.legend(curves)?;
        self.canvas.text(title, (x, y - 22.0 - ROW * rows as f64), TITLE)?;
        let faint = Pen { colour: FAINT, width: 1.0, dash: None };
        for (value, _) in self.x.ticks() {
            let at = self.at(value, f64::NAN).0;
            self.canvas.line(&[(at, y), (at, y + height)], faint)?;
        }
        for (value, _) in self.y.ticks() {
            let at = self.at(f64::NAN, value).1;
            self.canvas.line(&[(x, at), (x + width, at)], faint)?;
        }
        for curve in curves.iter().rev() {
            // Points outside the axes interrupt the curve.
            let is_off = |(a, b): &(f64, f64)| !(self.x.contains(*a) && self.y.contains(*b));
            if let Some(mark) = curve.mark {
                let mut points = curve.points.iter().filter(|point| !is_off(point));
                points.try_for_each(|(a, b)| self.mark(self.at(*a, *b), mark, curve.pen))?;
                continue;
            }
            for piece in curve.points.split(is_off).filter(|piece| piece.len() > 1) {
                let places: Vec<_> = piece.iter().map(|(a, b)| self.at(*a, *b)).collect();
                self.canvas.line(&places, curve.pen)?;
            }
        }
        self.frame()
    }

    /// Fills the plot with `colour(x, y)`; x and y run from 0 to 1, y upwards.
    pub fn image(&self, title: &str, colour: impl Fn(f64, f64) -> Colour) -> Result<()> {
        self.canvas.text(title, (self.plot.x, self.plot.y - 16.0), TITLE)?;
        self.canvas.image(self.plot, &colour)?;
        self.frame()
    }

    fn at(&self, x: f64, y: f64) -> (f64, f64) {
        let Area { x: left, y: top, width, height } = self.plot;
        (left + width * self.x.position(x), top + height * (1.0 - self.y.position(y)))
    }

    fn mark(&self, at: (f64, f64), (mark, radius): (Mark, f64), pen: Pen) -> Result<()> {
        match mark {
            Mark::Disc => self.canvas.dot(at, radius, pen.colour),
            Mark::Ring => {
                self.canvas.dot(at, radius, pen.colour)?;
                self.canvas.dot(at, (radius - pen.width).max(0.3 * radius), [0xff; 3])
            }
            Mark::Cross => [radius, -radius].into_iter().try_for_each(|down| {
                let ends = [(at.0 - radius, at.1 - down), (at.0 + radius, at.1 + down)];
                self.canvas.line(&ends, pen)
            }),
        }
    }

    /// Draws frame, ticks and labels.
    fn frame(&self) -> Result<()> {
        let Area { x, y, width, height } = self.plot;
        let bottom = y + height;
        let pen = Pen { colour: GREY, width: 1.0, dash: None };
        self.canvas.frame(self.plot, pen)?;
        let centred = TextStyle { horizontal: HPos::Center, vertical: VPos::Top, ..SMALL };
        for (value, length) in ticks(&self.x) {
            let at = self.at(value, f64::NAN).0;
            self.canvas.line(&[(at, bottom), (at, bottom + length)], pen)?;
        }
        let labels = self.x_labels()?;
        let lowest = labels.iter().map(|(_, area)| area.y).fold(bottom + 8.0, f64::max);
        for (text, area) in labels {
            self.canvas.text(&text, (area.x + area.width / 2.0, area.y), centred)?;
        }
        for (value, length) in ticks(&self.y) {
            let at = self.at(f64::NAN, value).1;
            self.canvas.line(&[(x - length, at), (x, at)], pen)?;
        }
        for (text, area) in self.y_labels()? {
            self.canvas.text(&text, (area.x, area.y + area.height / 2.0), SMALL)?;
        }
        let label = fitted(self.canvas, self.x.label(), width + 2.0 * OUTSIDE)?;
        self.canvas.text(&label, (x + width / 2.0, lowest + 22.0), centred)?;
        let upwards =
            TextStyle { horizontal: HPos::Center, vertical: VPos::Top, upwards: true, ..SMALL };
        self.canvas.text(self.y.label(), (x - LEFT + 4.0, y + height / 2.0), upwards)
    }

    /// Returns the tick labels below the plot and their boxes. Labels stay clear of the neighbouring panels; a label
    /// that would touch the previous one is omitted. Long names alternate between several rows.
    fn x_labels(&self) -> Result<Vec<(String, Area)>> {
        let Area { x, y, width, height } = self.plot;
        let slot = self.plot.width / self.x.names().max(1) as f64;
        let mut ticks = Vec::new();
        for (value, text) in self.x.ticks() {
            let is_name = self.x.names() > 0;
            let most = if is_name { slot * NAME_ROWS as f64 - SPACE } else { f64::MAX };
            let text = fitted(self.canvas, &text, most)?;
            let long = self.canvas.text_width(&text, SMALL)?;
            ticks.push((value, text, long));
        }
        let longest = ticks.iter().map(|(.., long)| *long).fold(0.0, f64::max);
        let rows = match self.x.names() {
            0 => 1,
            _ => (((longest + SPACE) / slot).ceil() as usize).clamp(1, NAME_ROWS),
        };
        let mut labels: Vec<(String, Area)> = Vec::new();
        for (at, (value, text, long)) in ticks.into_iter().enumerate() {
            let (first, last) = (x - OUTSIDE, x + width + OUTSIDE - long);
            let left = (self.at(value, f64::NAN).0 - long / 2.0).clamp(first, last.max(first));
            let y = y + height + 8.0 + NAME_ROW * (at % rows) as f64;
            let is_free = |(_, before): &(String, Area)| {
                before.y != y || before.x + before.width + SPACE <= left
            };
            if labels.iter().all(is_free) {
                labels.push((text, Area { x: left, y, width: long, height: SMALL.size }));
            }
        }
        Ok(labels)
    }

    /// Returns the tick labels left of the plot and their boxes. A label that would touch the one below it is omitted.
    fn y_labels(&self) -> Result<Vec<(String, Area)>> {
        let height = SMALL.size;
        let mut labels: Vec<(String, Area)> = Vec::new();
        for (value, text) in self.y.ticks() {
            let y = self.at(f64::NAN, value).1 - height / 2.0;
            if labels.last().is_none_or(|(_, below)| y + height <= below.y) {
                let text = fitted(self.canvas, &text, NAMES_LEFT - 18.0)?;
                let width = self.canvas.text_width(&text, SMALL)?;
                labels.push((text, Area { x: self.plot.x - 9.0 - width, y, width, height }));
            }
        }
        Ok(labels)
    }

    /// Draws the names of the curves above the plot, in as many rows as its width requires; returns their number, at
    /// least one.
    fn legend(&self, curves: &[Curve]) -> Result<usize> {
        let mut rows: Vec<Vec<(&Curve, f64)>> = vec![Vec::new()];
        let mut right = 0.0;
        for curve in curves.iter().filter(|curve| !curve.name.is_empty()) {
            let width = 28.0 + self.canvas.text_width(&curve.name, SMALL)?;
            if right + width > self.plot.width && right > 0.0 {
                rows.push(Vec::new());
                right = 0.0;
            }
            rows.last_mut().into_iter().for_each(|row| row.push((curve, right)));
            right += width + 16.0;
        }
        for (above, row) in rows.iter().rev().enumerate() {
            let y = self.plot.y - 16.0 - ROW * above as f64;
            for (curve, place) in row {
                let x = self.plot.x + place;
                match curve.mark {
                    Some((mark, _)) => self.mark((x + 14.0, y), (mark, 4.5), curve.pen)?,
                    None => self.canvas.line(&[(x, y), (x + 22.0, y)], curve.pen)?,
                }
                self.canvas.text(&curve.name, (x + 28.0, y), SMALL)?;
            }
        }
        Ok(rows.len())
    }
}

/// Shortens text to at most this width, cutting its beginning, because the end of a name is more informative.
fn fitted(canvas: &Canvas, text: &str, width: f64) -> Result<String> {
    if canvas.text_width(text, SMALL)? <= width {
        return Ok(text.into());
    }
    let mut rest = text.chars();
    while rest.next().is_some() {
        let shorter = format!("…{}", rest.as_str());
        if canvas.text_width(&shorter, SMALL)? <= width {
            return Ok(shorter);
        }
    }
    Ok(String::new())
}

/// Returns all ticks of an axis as value and length in pixels.
fn ticks(axis: &Axis) -> impl Iterator<Item = (f64, f64)> {
    let large = axis.ticks().into_iter().map(|(value, _)| (value, 5.0));
    large.chain(axis.minor_ticks().into_iter().map(|value| (value, 3.0)))
}

/// Draws the title and the description of a picture in its first two lines.
pub fn heading(canvas: &Canvas, title: &str, text: &str) -> Result<()> {
    canvas.text(title, (28.0, 24.0), TextStyle { size: 24.0, ..TITLE })?;
    canvas.text(text, (28.0, 52.0), TextStyle { colour: GREY, ..SMALL })
}

/// Draws the colour bar of an image, right of `plot`.
pub fn colour_bar(canvas: &Canvas, plot: Area, map: &Map, axis: &Axis) -> Result<()> {
    let bar = Area { x: plot.x + plot.width + 10.0, width: 14.0, ..plot };
    canvas.image(bar, &|_, y| map.at(y))?;
    let pen = Pen { colour: GREY, width: 1.0, dash: None };
    let (right, bottom) = (bar.x + bar.width, bar.y + bar.height);
    canvas.frame(bar, pen)?;
    for (value, text) in axis.ticks() {
        let y = bottom - bar.height * axis.position(value);
        canvas.line(&[(right, y), (right + 4.0, y)], pen)?;
        canvas.text(&text, (right + 7.0, y), SMALL)?;
    }
    canvas.text(axis.label(), (bar.x, bar.y - 14.0), SMALL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::canvas::png;

    /// The labels of a colour bar are spaced like those of the vertical axis.
    #[test]
    fn numbers_at_an_axis_do_not_overlap() {
        let sizes = [(340.0, 113.0), (340.0, 680.0), (560.0, 340.0)];
        let starts = [0.0, -0.05, 0.123456, 99_990.0, -123_456.789, -9.876e9];
        png(1, 1, |canvas| {
            for (width, height) in sizes {
                let outer = Area {
                    x: 0.0,
                    y: 0.0,
                    width: width + LEFT + RIGHT,
                    height: height + TOP + BOTTOM,
                };
                for (start, exponent) in
                    starts.iter().flat_map(|s| (-11..12).step_by(3).map(move |e| (s, e)))
                {
                    for factor in [1.0, 4.99] {
                        let axis = Axis::linear("", *start, start + factor * 10f64.powi(exponent));
                        let panel = Panel::new(canvas, outer, axis.clone(), axis);
                        let (x, y) = (panel.x_labels()?, panel.y_labels()?);
                        let case = format!("{start} 1e{exponent} {factor}: {x:?} {y:?}");
                        assert!(!x.is_empty() && !y.is_empty(), "{case}");
                        let beside = x.windows(2).all(|w| w[0].1.x + w[0].1.width < w[1].1.x);
                        assert!(beside, "{case}");
                        let above = y.windows(2).all(|w| w[1].1.y + w[1].1.height <= w[0].1.y);
                        assert!(above, "{case}");
                        let plot = panel.plot();
                        let inside = x.iter().all(|(_, area)| {
                            area.x >= plot.x - OUTSIDE
                                && area.x + area.width <= plot.x + plot.width + OUTSIDE + 1e-9
                        });
                        assert!(inside, "{case}");
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    }
}
