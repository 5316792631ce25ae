//! Ground truth, prediction, their difference and, if given, the input as images: one row for each state of a
//! two-dimensional field, or a single space-time image.

use report::axis::{Axis, plain};
use report::canvas::{Area, Canvas};
use report::colours::Map;
use report::panel::{Panel, colour_bar};
use unix::Result;

/// Height of a row in pixels.
pub const ROW: f64 = 452.0;
/// Width of a row in pixels.
pub const WIDTH: u32 = 1400;
/// Additional width in pixels if the input is drawn.
pub const INPUT: u32 = 467;

/// The contents of one row, arrays [x, y].
pub struct Row<'a> {
    /// Name for the titles.
    pub name: &'a str,
    /// Time of the state.
    pub time: Option<f64>,
    /// The input.
    pub input: Option<&'a [f32]>,
    /// Ground truth.
    pub truth: &'a [f32],
    /// Prediction of the model.
    pub prediction: &'a [f32],
}

/// Draws rows from `top` down with vertical axis `y`. Truths and predictions share a colour scale, inputs use another.
pub fn draw(canvas: &Canvas, top: f64, [nx, ny]: [usize; 2], y: Axis, rows: &[Row]) -> Result<()> {
    let range = |values: &mut dyn Iterator<Item = &f32>| {
        let all = values.map(|u| f64::from(*u));
        let (low, high) = all.fold((f64::MAX, f64::MIN), |(l, h), u| (l.min(u), h.max(u)));
        Axis::linear("u", low, high)
    };
    let field = range(&mut rows.iter().flat_map(|row| row.truth));
    let given = range(&mut rows.iter().filter_map(|row| row.input).flatten());
    let wrong = |row: &Row, at: usize| f64::from(row.prediction[at]) - f64::from(row.truth[at]);
    let errors = rows.iter().flat_map(|row| (0..nx * ny).map(|at| wrong(row, at).abs()));
    let largest = errors.fold(0.0, f64::max);
    let error = Axis::linear("error", -largest, largest);
    let (sequential, diverging) = (Map::sequential(), Map::diverging());
    let place = |x: f64, y: f64| {
        let cell = |at: f64, n: usize| ((at * n as f64) as usize).min(n - 1);
        cell(x, nx) * ny + cell(y, ny)
    };
    for (number, row) in rows.iter().enumerate() {
        let begin = if row.input.is_some() { f64::from(INPUT) } else { 0.0 };
        let panel = |x: f64| {
            let area =
                Area { x: x + begin, y: top + ROW * number as f64, width: 444.0, height: ROW };
            let y = if area.x < f64::from(INPUT) / 2.0 { y.clone() } else { y.clone().quiet() };
            Panel::new(canvas, area, Axis::linear("x / L", 0.0, 1.0), y)
        };
        let when = row.time.map_or(String::new(), |time| format!(", t = {}", plain(time)));
        let coloured = |scale: &Axis, values: &[f32], x, y| {
            sequential.at(scale.position(f64::from(values[place(x, y)])))
        };
        if let Some(input) = row.input {
            let left = panel(8.0 - begin);
            left.image("input", |x, y| coloured(&given, input, x, y))?;
            colour_bar(canvas, left.plot(), &sequential, &given)?;
        }
        panel(8.0).image(&format!("truth{when}"), |x, y| coloured(&field, row.truth, x, y))?;
        let middle = panel(405.0);
        let title = format!("{}{when}", row.name);
        middle.image(&title, |x, y| coloured(&field, row.prediction, x, y))?;
        colour_bar(canvas, middle.plot(), &sequential, &field)?;
        let right = panel(872.0);
        let title = format!("{} − truth", row.name);
        right.image(&title, |x, y| diverging.at(error.position(wrong(row, place(x, y)))))?;
        colour_bar(canvas, right.plot(), &diverging, &error)?;
    }
    Ok(())
}
