//! The summary picture of all regimes: error growth over time, and errors over whole rollouts.

use super::{errors_by_time, is_reference, of_model, symbol};
use crate::pde::evaluate::protocol::Protocol;
use crate::pde::evaluate::report::of_starts;
use crate::pde::evaluate::scores::Method;
use crate::pde::evaluate::{Evaluation, Regime};
use report::axis::{Axis, plain, short};
use report::canvas::HPos;
use report::canvas::{Area, Canvas, Pen, TextStyle, png};
use report::colours::{FAINT, Map};
use report::panel::{Curve, Panel, SMALL, TITLE, heading};
use unix::Result;

const WIDTH: u32 = 1400;
const HEIGHT: u32 = 640;

/// Draws the summary picture as PNG.
pub fn draw(result: &Evaluation, protocol: &Protocol) -> Result<Vec<u8>> {
    png(WIDTH, HEIGHT, |canvas| {
        head(canvas, result, protocol)?;
        over_time(canvas, result, protocol)?;
        by_regime(canvas, result)
    })
}

fn head(canvas: &Canvas, result: &Evaluation, protocol: &Protocol) -> Result<()> {
    let title = format!("NRMSE of {} steps of Δt = {}", result.steps, plain(protocol.time_step));
    let parameters: Vec<String> =
        protocol.models.iter().map(|(task, parameters)| format!("{task} {parameters}")).collect();
    let text = format!(
        "{} rollouts from {} trajectories of the {} split, {} grid points; parameters: {}",
        protocol.rollouts,
        protocol.trajectories,
        protocol.on,
        protocol.points(),
        parameters.join(", "),
    );
    heading(canvas, &title, &text)
}

fn name(regime: &Regime) -> String {
    format!("{} = {}", symbol(&regime.parameter.name), regime.parameter.value)
}

/// Returns the evaluated model and the model to compare it with, if any.
fn compared(models: &[Method]) -> (Method, Option<Method>) {
    let first_of = |all: &[Method]| all.iter().find(|model| models.contains(model)).copied();
    let evaluated = first_of(&[Method::Student, Method::Corrector, Method::Operator]);
    let evaluated = evaluated.unwrap_or(Method::Codec);
    let others = [Method::SearchViews, Method::Search, Method::Views, Method::Operator];
    (evaluated, first_of(&others).filter(|other| *other != evaluated))
}

/// Draws the errors over time, with a colour for each regime and a line style for each model.
fn over_time(canvas: &Canvas, result: &Evaluation, protocol: &Protocol) -> Result<()> {
    let (evaluated, other) = compared(&result.overall().models());
    let mut curves = Vec::new();
    let map = Map::sequential();
    for (i, regime) in result.regimes.iter().enumerate() {
        // The light end of the colour map is hard to see on white.
        let colour = map.at(0.1 + 0.75 * (i as f64 + 0.5) / result.regimes.len() as f64);
        let curve = |name: &str, model: Method, width: f64| {
            let points = errors_by_time(regime, model, protocol.time_step);
            Curve::new(name, colour, width, points)
        };
        curves.push(curve(&name(regime), evaluated, 2.4));
        curves.extend(other.map(|other| curve("", other, 1.2)));
        if evaluated != Method::Codec {
            curves.push(curve("", Method::Codec, 1.6).dashed(2.0, 3.0));
        }
        curves.push(curve("", Method::Persistence, 1.6).dashed(8.0, 4.0));
    }
    let values = curves.iter().flat_map(|curve| curve.points.iter().map(|(_, e)| *e));
    let y = Axis::logarithmic("NRMSE", values);
    let x = Axis::linear("time since the start", 0.0, protocol.time_step * protocol.steps as f64);
    let area = Area { x: 8.0, y: 80.0, width: 760.0, height: 550.0 };
    let thin = other.map_or(String::new(), |other| format!("{} (thin), ", other.name()));
    let dots = if evaluated == Method::Codec { "" } else { ", codec (dots)" };
    let title =
        format!("Over time: {} (thick), {thin}persistence (dashes){dots}", evaluated.name());
    Panel::new(canvas, area, x, y).curves(&title, &curves)
}

/// Draws a row for each regime with a dot or ring for each model. The codec, whose errors are much smaller, is omitted.
fn by_regime(canvas: &Canvas, result: &Evaluation) -> Result<()> {
    let nrmse = |regime: &Regime, model: Method| of_starts(regime, model).unwrap_or(f64::NAN);
    let mut models = result.overall().models();
    if compared(&models).0 != Method::Codec {
        models.retain(|model| *model != Method::Codec);
    }
    let values = result.regimes.iter().flat_map(|r| models.iter().map(|m| nrmse(r, *m)));
    let axis = Axis::logarithmic("NRMSE", values.collect::<Vec<_>>());
    let plot = Area { x: 890.0, y: 118.0, width: 480.0, height: 458.0 };
    canvas.text("Over whole rollouts", (plot.x, 92.0), TITLE)?;
    let taken = legend(canvas, plot, &models)?;
    let plot = Area { y: plot.y + taken, height: plot.height - taken, ..plot };
    let faint = Pen { colour: FAINT, width: 1.0, dash: None };
    let centred = TextStyle { horizontal: HPos::Center, ..SMALL };
    for (value, text) in axis.ticks() {
        let x = plot.x + plot.width * axis.position(value);
        canvas.line(&[(x, plot.y), (x, plot.y + plot.height)], faint)?;
        canvas.text(&text, (x, plot.y + plot.height + 16.0), centred)?;
    }
    canvas.text("NRMSE", (plot.x + plot.width / 2.0, plot.y + plot.height + 38.0), centred)?;
    let row = plot.height / result.regimes.len() as f64;
    for (i, regime) in result.regimes.iter().enumerate() {
        let y = plot.y + row * (i as f64 + 0.5);
        let leftward = TextStyle { horizontal: HPos::Right, ..SMALL };
        canvas.text(&name(regime), (plot.x - 12.0, y), leftward)?;
        canvas
            .line(&[(plot.x, y), (plot.x + plot.width, y)], Pen { colour: [0xbb; 3], ..faint })?;
        let mut found: Vec<(f64, Method)> = (models.iter())
            .map(|model| (nrmse(regime, *model), *model))
            .filter(|(value, _)| value.is_finite())
            .collect();
        found.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        // The value labels of models with similar errors must not overlap: each is placed at the nearest free level
        // above or below the line.
        let levels = (1..).map(|k| 18.0 * f64::from(k)).take_while(|level| level + 9.0 < row / 2.0);
        let mut levels: Vec<(f64, f64)> =
            levels.flat_map(|level| [(-level, f64::MIN), (level, f64::MIN)]).collect();
        for (value, model) in found {
            let x = plot.x + plot.width * axis.position(value);
            mark(canvas, (x, y), 6.0, model)?;
            let text = short(value);
            let half = canvas.text_width(&text, SMALL)? / 2.0;
            if let Some((level, end)) = levels.iter_mut().find(|(_, end)| *end < x - half) {
                *end = x + half + 6.0;
                let letters = TextStyle { colour: of_model(model), ..centred };
                canvas.text(&text, (x, y + *level), letters)?;
            }
        }
    }
    Ok(())
}

/// Draws the symbol of a model: a dot or a ring.
fn mark(canvas: &Canvas, at: (f64, f64), radius: f64, model: Method) -> Result<()> {
    canvas.dot(at, radius, of_model(model))?;
    if is_reference(model) { canvas.dot(at, radius - 2.5, [0xff; 3]) } else { Ok(()) }
}

/// Draws the model names from the top of `area` down, on one or more lines; returns the height of the legend.
fn legend(canvas: &Canvas, area: Area, models: &[Method]) -> Result<f64> {
    const LINE: f64 = 18.0;
    let (mut x, mut y) = (area.x, area.y);
    for model in models {
        let width = 16.0 + canvas.text_width(model.name(), SMALL)?;
        if x > area.x && x + width > area.x + area.width {
            (x, y) = (area.x, y + LINE);
        }
        mark(canvas, (x + 5.0, y), 5.0, *model)?;
        canvas.text(model.name(), (x + 16.0, y), SMALL)?;
        x += width + LINE;
    }
    Ok(y + 16.0 - area.y)
}
