//! Truth, prediction and their difference as images: a row for each state of a two-dimensional field, or a single
//! space-time image.

use report::axis::{Axis, plain};
use report::canvas::{Area, Canvas};
use report::colours::Map;
use report::panel::{Panel, colour_bar};
use unix::Result;

/// Height of a row.
pub const ROW: f64 = 452.0;

/// The contents of one row, arrays [x, y].
pub struct Row<'a> {
    /// Name for the titles.
    pub name: &'a str,
    /// Time of the state.
    pub time: Option<f64>,
    /// Ground truth.
    pub truth: &'a [f32],
    /// Prediction of the model.
    pub prediction: &'a [f32],
}

/// Draws rows from `top` downwards with this vertical axis; truths and predictions share one colour scale.
pub fn draw(canvas: &Canvas, top: f64, [nx, ny]: [usize; 2], y: Axis, rows: &[Row]) -> Result<()> {
    let all = || rows.iter().flat_map(|row| row.truth).copied().map(f64::from);
    let (low, high) = all().fold((f64::MAX, f64::MIN), |(l, h), u| (l.min(u), h.max(u)));
    let wrong = |row: &Row, at: usize| f64::from(row.prediction[at]) - f64::from(row.truth[at]);
    let errors = rows.iter().flat_map(|row| (0..nx * ny).map(|at| wrong(row, at).abs()));
    let largest = errors.fold(0.0, f64::max);
    let (field, error) = (Axis::linear("u", low, high), Axis::linear("error", -largest, largest));
    let (sequential, diverging) = (Map::sequential(), Map::diverging());
    let place = |x: f64, y: f64| {
        let cell = |at: f64, n: usize| ((at * n as f64) as usize).min(n - 1);
        cell(x, nx) * ny + cell(y, ny)
    };
    for (number, row) in rows.iter().enumerate() {
        let panel = |x: f64, first: bool| {
            let area = Area { x, y: top + ROW * number as f64, width: 444.0, height: ROW };
            let y = if first { y.clone() } else { y.clone().quiet() };
            Panel::new(canvas, area, Axis::linear("x / L", 0.0, 1.0), y)
        };
        let when = row.time.map_or(String::new(), |time| format!(", t = {}", plain(time)));
        let coloured =
            |values: &[f32], x, y| sequential.at(field.place(f64::from(values[place(x, y)])));
        panel(8.0, true).image(&format!("truth{when}"), |x, y| coloured(row.truth, x, y))?;
        let middle = panel(405.0, false);
        middle.image(&format!("{}{when}", row.name), |x, y| coloured(row.prediction, x, y))?;
        colour_bar(canvas, middle.plot(), &sequential, &field)?;
        let right = panel(872.0, false);
        let title = format!("{} − truth", row.name);
        right.image(&title, |x, y| diverging.at(error.place(wrong(row, place(x, y)))))?;
        colour_bar(canvas, right.plot(), &diverging, &error)?;
    }
    Ok(())
}
