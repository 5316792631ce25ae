//! `hpo importance`, and the bar chart of importances.

use std::path::PathBuf;

use report::axis::Axis;
use report::canvas::{Area, Canvas, Pen};
use report::colours::distinct;
use report::panel::{Panel, SMALL, fitted};
use report::terminal;
use serde_json::json;
use study::Study;
use study::importance::{Importance, importances};
use unix::cli::Output;
use unix::out::Out;
use unix::terminal::Style;
use unix::{Error, Exit, Result};

/// Title of the plot.
pub const TITLE: &str = "importance of each parameter";
/// Largest number of parameters in the picture.
const MAX_BARS: usize = 12;

/// The arguments of `hpo importance`.
#[derive(clap::Args)]
pub struct ImportanceArgs {
    /// Folder of the study
    study: PathBuf,
    /// Round [default: the last one with a complete trial]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Prints the importance of each parameter in descending order.
pub fn importance(args: &ImportanceArgs) -> Result<Exit> {
    let study = Study::open(&args.study)?;
    let round = match &args.round {
        Some(name) => study.round_named(name)?,
        None => {
            let is_complete = |round: &usize| !study.ranking(*round).is_empty();
            (0..study.rounds().len()).rev().find(is_complete).unwrap_or(0)
        }
    };
    let found = of_round(&study, round)?.ok_or_else(|| {
        let name = &study.rounds()[round].name;
        let text = format!("round {name} has fewer than two complete trials");
        Error::new(Exit::NoInput, text)
    })?;
    let is_json = args.output.json;
    let shown = |share: f64| if is_json { json!(share) } else { json!(format!("{share:.4}")) };
    Out::stdout(args.output).rows(found.into_iter().map(|own| {
        json!({
            "parameter": own.parameter, "importance": shown(own.importance), "trials": own.trials,
        })
    }))
}

/// The importance of each parameter in a round; `None` with fewer than two complete trials. Errors: 65, 66, 74.
pub fn of_round(study: &Study, round: usize) -> Result<Option<Vec<Importance>>> {
    let space = study.space_of(round)?;
    Ok(space.and_then(|space| importances(&space, &study.trials(round, &space))))
}

/// Draws a bar per parameter, with the name above it.
pub fn draw(canvas: &Canvas, area: Area, found: &[Importance]) -> Result<()> {
    let found = &found[..found.len().min(MAX_BARS)];
    let most = found.first().map_or(1.0, |own| own.importance);
    let x = Axis::linear("fraction of the sum", 0.0, 1.06 * most);
    let rows = vec![String::new(); found.len()];
    let panel = Panel::new(canvas, area, x.clone(), Axis::categories("", rows).quiet());
    panel.curves(TITLE, &[])?;
    let plot = panel.plot();
    let row = plot.height / found.len().max(1) as f64;
    // The upper part of a row is for the name.
    let (height, centre) = ((row - 22.0).clamp(3.0, 16.0), row / 2.0 + 9.0);
    for (at, own) in found.iter().enumerate() {
        let y = plot.y + row * at as f64 + centre;
        let pen = Pen { colour: distinct(0), width: height, dash: None };
        let end = plot.x + plot.width * x.place(own.importance);
        canvas.line(&[(plot.x, y), (end, y)], pen)?;
        let value = format!("{}  {:.3}", own.parameter, own.importance);
        let text = fitted(canvas, &value, plot.width - 12.0)?;
        canvas.text(&text, (plot.x + 6.0, y - height / 2.0 - 9.0), SMALL)?;
    }
    Ok(())
}

/// The bar chart as text for a terminal of this width.
pub fn text(found: &[Importance], width: usize, style: Style) -> String {
    let label = |own: &Importance| terminal::label(&own.parameter, width / 2, style);
    let longest = found.iter().map(|own| label(own).chars().count()).max().unwrap_or(0);
    let most = found.first().map_or(1.0, |own| own.importance);
    let bar = if style.unicode { "█" } else { "#" };
    let line = |own: &Importance| {
        let room = width.saturating_sub(longest + 8) as f64;
        let bar = bar.repeat((room * own.importance / most).round() as usize);
        format!("{:<longest$} {:.3} {}\n", label(own), own.importance, style.paint(34, &bar))
    };
    let title = style.paint(1, TITLE);
    format!("{title}\n{}", found.iter().map(line).collect::<String>())
}
