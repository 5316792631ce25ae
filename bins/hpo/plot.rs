//! `hpo plot`: draws the trials of a round and the parameter importances.

use std::path::PathBuf;

use clap::ValueEnum;
use report::chart::Chart;
use report::picture::{self, Format};
use report::terminal;
use serde_json::json;
use study::Study;
use study::plot::PlotKind;
use study::record::Record;
use unix::cli::Output;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::terminal::Style;
use unix::{Error, Exit, Result, warn};

/// Maximum height of a chart in the terminal, in lines.
const ROWS: usize = 16;

/// The arguments of `hpo plot`.
#[derive(clap::Args)]
pub struct PlotArgs {
    /// Folder of the study
    study: PathBuf,
    /// Plots to draw [default: all]
    #[arg(long)]
    kind: Vec<PlotKind>,
    /// Round [default: the last one with a trial that has ended]
    #[arg(long, value_name = "NAME")]
    round: Option<String>,
    /// Write a picture instead, FILE.png or FILE.svg
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

/// Draws a round. With `--json` and no picture, writes the plotted values, one line per series.
pub fn plot(args: &PlotArgs) -> Result<Exit> {
    let format = args.to.as_deref().map(Format::of).transpose()?;
    if let Some(path) = args.to.as_ref().filter(|path| path.exists() && !args.force) {
        return Err(Error::create(path, "it exists; choose another name or use --force"));
    }
    let study = Study::open(&args.study)?;
    let has_ended = |round: usize| study.of_round(round).any(Record::has_ended);
    let round = match &args.round {
        Some(name) => study.round_named(name)?,
        None => study.last_round(has_ended),
    };
    let name = &study.rounds()[round].name;
    if !has_ended(round) {
        let text = format!("no trial of round {name} has ended yet; nothing to draw");
        return Err(Error::new(Exit::NoInput, text));
    }
    let mut kinds = PlotKind::value_variants().to_vec();
    kinds.retain(|kind| args.kind.is_empty() || args.kind.contains(kind));
    let plots = study.plots(round, &kinds)?;
    let mut out = Out::stdout(args.output);
    if out.is_json() && args.to.is_none() {
        return out.rows(plots.into_iter().flat_map(|plot| plot.records));
    }
    let charts: Vec<Chart> = plots.into_iter().map(|plot| plot.chart).collect();
    if let (Some(path), Some(format)) = (&args.to, format) {
        publish_bytes(path, &picture::draw(&charts, format)?)?;
        if charts.len() > picture::MAX_CHARTS {
            let left_out = charts.len() - picture::MAX_CHARTS;
            warn!(
                "{}: {left_out} plots of the least important parameters were left out",
                path.display()
            );
        }
        let record = json!({"picture": path, "round": name});
        return out.item(&record, path.display()).map(|()| Exit::Done);
    }
    let (width, rows) = unix::terminal::size();
    let lines = terminal::page(&charts, width, ROWS.min(rows), Style::stdout());
    out.raw((lines.join("\n") + "\n").as_bytes()).map(|()| Exit::Done)
}
