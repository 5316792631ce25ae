//! `evaluate plot`: draws the curves of runs.

use std::path::PathBuf;

use report::chart::Chart;
use report::history::History;
use report::picture::{self, Format};
use report::terminal;
use serde_json::json;
use unix::cli::Output;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::run_dir::RunDir;
use unix::terminal::Style;
use unix::{Error, Exit, Result, warn};

use crate::results::refuse_earlier;

/// Maximum height of a chart on the terminal, in lines.
const ROWS: usize = 16;

/// The arguments of `evaluate plot`.
#[derive(clap::Args)]
pub struct Plot {
    /// Run directories
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Metric to draw: loss, loss_terms.NAME, learning_rate, gradient_norm, epoch, cost, throughput, or a metric of validations
    /// [default: all except the loss terms, and except NAME[PART] if there is NAME]
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,
    /// Picture to write instead, FILE.png or FILE.svg, with at most 24 charts
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

/// Draws the curves of runs. With `--json` and without a picture, writes their values, one line per curve.
pub fn plot(args: &Plot) -> Result<Exit> {
    let format = args.to.as_deref().map(Format::of).transpose()?;
    refuse_earlier(&args.to, args.force)?;
    let mut histories = Vec::new();
    for run in &args.runs {
        let log = RunDir::open(run)?.log();
        let history = History::read(&log)?;
        if history.bad_lines() > 0 {
            warn!("{}: skipped {} damaged lines", log.display(), history.bad_lines());
        }
        histories.push((run.display().to_string(), history));
    }
    let runs: Vec<_> = histories.iter().map(|(name, history)| (name.clone(), history)).collect();
    for metric in &args.metric {
        if runs.iter().all(|(_, history)| history.metric(metric).is_empty()) {
            let known = Chart::names(&runs).join(", ");
            let known = if known.is_empty() { "nothing".into() } else { known };
            return Err(Error::data(format!("no run has logged {metric}; they have {known}")));
        }
    }
    let charts = Chart::all(&args.metric, &runs);
    if charts.is_empty() {
        let text = "the runs have not logged any update or validation yet; nothing to draw";
        return Err(Error::new(Exit::NoInput, text));
    }
    let mut out = Out::stdout(args.output);
    if let (Some(path), Some(format)) = (&args.to, format) {
        publish_bytes(path, &picture::draw(&charts, format)?)?;
        let drawn = charts.len().min(picture::MAX_CHARTS);
        let titles: Vec<&str> = charts[..drawn].iter().map(|chart| chart.title.as_str()).collect();
        let left_out = charts.len() - drawn;
        if left_out > 0 {
            warn!(
                "{}: contains only the first {drawn} charts; {left_out} were left out: select charts with --metric",
                path.display()
            );
        }
        let record = json!({"picture": path, "charts": titles, "left_out": left_out});
        let text = format!("{}: {}", path.display(), titles.join(", "));
        return out.item(&record, text).map(|()| Exit::Done);
    }
    if out.is_json() {
        return out.rows(charts.iter().flat_map(|chart| {
            chart.curves.iter().map(|curve| {
                let (updates, values): (Vec<f64>, Vec<f64>) = curve.points.iter().copied().unzip();
                let updates: Vec<u64> = updates.into_iter().map(|update| update as u64).collect();
                let run = &args.runs[curve.run];
                json!({"run": run, "metric": chart.metric, "updates": updates, "values": values})
            })
        }));
    }
    let (width, rows) = unix::terminal::size();
    let lines = terminal::page(&charts, width, ROWS.min(rows), Style::stdout());
    out.raw((lines.join("\n") + "\n").as_bytes()).map(|()| Exit::Done)
}
