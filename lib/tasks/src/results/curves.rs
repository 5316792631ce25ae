//! The picture of the curves of one or more runs.

use super::analysis::{Analysis, Curves, Series};
use report::axis::Axis;
use report::canvas::{Area, Canvas, png};
use report::colours::distinct;
use report::panel::{Curve, Panel};
use unix::Result;

const WIDTH: u32 = 1400;
const HEIGHT: u32 = 800;

/// Maximum number of points of a curve; more are averaged.
const POINTS: usize = 500;
/// The label of the panel with a linear axis.
const RATE: &str = "learning rate";

/// Selects the series of a panel.
type SeriesOf = fn(&Curves) -> &Series;

/// Draws loss, validation metric, gradient norm and learning rate by update, in four panels.
pub fn draw(runs: &[&Analysis]) -> Result<Vec<u8>> {
    let metric = runs[0].metric.as_deref().unwrap_or("validation metric");
    let panels: [(&str, SeriesOf); 4] = [
        ("training loss", |curves| &curves.loss),
        (metric, |curves| &curves.validation),
        ("gradient norm", |curves| &curves.gradient_norm),
        (RATE, |curves| &curves.learning_rate),
    ];
    png(WIDTH, HEIGHT, |canvas| {
        for (at, (label, series)) in panels.into_iter().enumerate() {
            let size = (f64::from(WIDTH) / 2.0, f64::from(HEIGHT) / 2.0);
            let area = Area {
                x: size.0 * (at % 2) as f64,
                y: size.1 * (at / 2) as f64,
                width: size.0,
                height: size.1,
            };
            panel(canvas, area, label, runs, series)?;
        }
        Ok(())
    })
}

fn panel(
    canvas: &Canvas,
    area: Area,
    label: &str,
    runs: &[&Analysis],
    series: SeriesOf,
) -> Result<()> {
    let curve = |(at, run): (usize, &&Analysis)| {
        let name = if runs.len() > 1 { run.run.as_str() } else { "" };
        Curve::new(name, distinct(at), 1.8, thinned(series(&run.curves)))
    };
    let curves: Vec<Curve> = runs.iter().enumerate().map(curve).collect();
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let last = points().map(|(update, _)| *update).fold(1.0, f64::max);
    let values = || points().map(|(_, value)| *value);
    let (low, high) =
        values().fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
    let y = match label {
        // It may end at zero.
        RATE => Axis::linear("", 0.0, 1.05 * high),
        _ if high < 5.0 * low => {
            Axis::linear("", low - 0.05 * (high - low), high + 0.05 * (high - low))
        }
        _ => Axis::logarithmic("", values()),
    };
    Panel::new(canvas, area, Axis::linear("update", 0.0, last), y).curves(label, &curves)
}

/// At most [`POINTS`] points: means of equally many neighbours.
fn thinned(series: &Series) -> Series {
    let group = series.len().div_ceil(POINTS).max(1);
    let mean = |points: &[(f64, f64)]| {
        let count = points.len() as f64;
        let sum = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        (sum.0 / count, sum.1 / count)
    };
    series.chunks(group).map(mean).collect()
}
