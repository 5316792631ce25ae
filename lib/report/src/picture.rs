//! Charts as one picture.

use crate::canvas::{Area, Canvas, png, svg};
use crate::chart::{Chart, thinned};
use crate::panel::{Curve, Panel};
use std::path::Path;
use unix::{Error, Result};

/// Size of a chart in pixels.
const WIDTH: u32 = 700;
const HEIGHT: u32 = 400;
/// Maximum number of charts in a picture, because the pixels of all charts are in memory at once.
pub const MAX_CHARTS: usize = 24;
/// Maximum number of points of a curve; longer curves are averaged.
const POINTS: usize = 500;

/// Format of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A raster image.
    Png,
    /// A vector image with text.
    Svg,
}

impl Format {
    /// Returns the format for a file name. Errors: 2 unless it ends in .png or .svg.
    pub fn of(path: &Path) -> Result<Self> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("png") => Ok(Self::Png),
            Some("svg") => Ok(Self::Svg),
            _ => {
                let name = path.display();
                Err(Error::usage(format!("{name}: the name of a picture must end in .png or .svg")))
            }
        }
    }
}

/// Draws the first [`MAX_CHARTS`] charts in two columns.
pub fn draw(charts: &[Chart], format: Format) -> Result<Vec<u8>> {
    let charts = &charts[..charts.len().min(MAX_CHARTS)];
    let columns = charts.len().clamp(1, 2);
    let rows = charts.len().div_ceil(columns).max(1);
    let (width, height) = (WIDTH * columns as u32, HEIGHT * rows as u32);
    let thin = |curve: &Curve| {
        let most = if curve.mark.is_some() { usize::MAX } else { POINTS };
        Curve { points: thinned(&curve.points, most), ..curve.clone() }
    };
    let draw = |canvas: &Canvas| {
        charts.iter().enumerate().try_for_each(|(at, chart)| {
            let (column, row) = ((at % columns) as f64, (at / columns) as f64);
            let (width, height) = (f64::from(WIDTH), f64::from(HEIGHT));
            let area = Area { x: width * column, y: height * row, width, height };
            let curves: Vec<Curve> = chart.curves.iter().map(thin).collect();
            Panel::new(canvas, area, chart.x.clone(), chart.y.clone()).curves(&chart.title, &curves)
        })
    };
    match format {
        Format::Png => png(width, height, draw),
        Format::Svg => svg(width, height, draw),
    }
}
