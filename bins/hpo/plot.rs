//! `hpo plot`: draws the plots of a round in the terminal or as a picture.

use std::path::PathBuf;

use report::axis::{Axis, plain};
use report::canvas::{Area, Canvas, png, svg};
use report::chart::{self, Chart};
use report::colours::{Colour, INK, Map, distinct};
use report::panel::{Curve, Mark, Panel, colour_bar, heading};
use report::picture::Format;
use report::terminal;
use serde_json::json;
use study::Study;
use study::importance::Importance;
use study::record::Record;
use unix::cli::Output;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::terminal::Style;
use unix::{Error, Exit, Result};

use crate::figures::{self, Figure, KINDS, Kind, Look, Series};
use crate::importance;

/// Height of plots in the terminal: over the full width, and in two columns.
const ROWS: [usize; 2] = [16, 12];
/// Smallest terminal width for two columns of plots.
const TWO_COLUMNS: usize = 72;
/// Sizes of the picture and its parts in pixels.
const WIDTH: f64 = 1400.0;
const HEADING: f64 = 90.0;
const LARGE: f64 = 420.0;
const SLICE: f64 = 300.0;
/// Distance between rows of slice plots; only the first row has a title.
const PITCH: f64 = 288.0;
/// Space below the last row, for names that take several lines.
const MARGIN: f64 = 36.0;
/// Columns of slice plots, and the width of the colour bar to their right.
const COLUMNS: usize = 3;
const BAR: f64 = 90.0;

/// The arguments of `hpo plot`.
#[derive(clap::Args)]
pub struct PlotArgs {
    /// Folder of the study
    study: PathBuf,
    /// Plots to draw [default: all]
    #[arg(long)]
    kind: Vec<Kind>,
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

/// Draws a round. With `--json` and no picture, writes the plotted values, a line per series.
pub fn plot(args: &PlotArgs) -> Result<Exit> {
    let format = args.to.as_deref().map(Format::of).transpose()?;
    if let Some(path) = args.to.as_ref().filter(|path| path.exists() && !args.force) {
        return Err(Error::create(path, "it exists; choose another name or use --force"));
    }
    let study = Study::open(&args.study)?;
    let round = match &args.round {
        Some(name) => study.round_named(name)?,
        None => {
            (0..study.rounds().len()).rev().find(|round| has_ended(&study, *round)).unwrap_or(0)
        }
    };
    if !has_ended(&study, round) {
        let name = &study.rounds()[round].name;
        let text = format!("no trial of round {name} has ended yet; nothing to draw");
        return Err(Error::new(Exit::NoInput, text));
    }
    let wanted = |kind: &Kind| args.kind.is_empty() || args.kind.contains(kind);
    let kinds: Vec<Kind> = KINDS.into_iter().filter(wanted).collect();
    let mut out = Out::stdout(args.output);
    if let (Some(path), Some(format)) = (&args.to, format) {
        publish_bytes(path, &picture(&study, round, &kinds, format)?)?;
        let record = json!({"picture": path, "round": study.rounds()[round].name});
        return out.item(&record, path.display()).map(|()| Exit::Done);
    }
    let figures = figures::of_round(&study, round, &kinds)?;
    let bars = bars(&study, round, &kinds)?;
    if out.is_json() {
        let bars = bars.iter().flatten().map(|own| {
            json!({"plot": "importance", "parameter": own.parameter, "importance": own.importance})
        });
        return out.rows(figures.iter().flat_map(Figure::records).chain(bars));
    }
    let text = text(&figures, bars.as_deref(), unix::terminal::size(), Style::stdout());
    out.raw(text.as_bytes()).map(|()| Exit::Done)
}

/// The importances, if they are requested and can be computed. Errors: 65, 66, 74.
fn bars(study: &Study, round: usize, kinds: &[Kind]) -> Result<Option<Vec<Importance>>> {
    let is_wanted = kinds.contains(&Kind::Importance);
    if is_wanted { importance::of_round(study, round) } else { Ok(None) }
}

/// The trials of a round that have been started.
fn records(study: &Study, round: usize) -> impl Iterator<Item = &Record> {
    let first = study.first_of(round);
    study.records().range(first..first + study.rounds()[round].trials).map(|(_, record)| record)
}

fn has_ended(study: &Study, round: usize) -> bool {
    records(study, round).any(Record::has_ended)
}

/// The plots one below the other; slice plots in two columns if they fit.
fn text(
    figures: &[Figure],
    bars: Option<&[Importance]>,
    (width, rows): (usize, usize),
    style: Style,
) -> String {
    let (slices, large): (Vec<&Figure>, Vec<&Figure>) =
        figures.iter().partition(|figure| figure.kind == Kind::Slice);
    let columns = if width >= TWO_COLUMNS { 2 } else { 1 };
    let slice_width = (width - (columns - 1)) / columns;
    let large = large.chunks(1).map(|row| (row, width, ROWS[0]));
    let slices = slices.chunks(columns).map(|row| (row, slice_width, ROWS[1]));
    let block = |(row, width, height): (&[&Figure], usize, usize)| {
        let draw =
            |figure: &&Figure| terminal::draw(&chart(figure), width, height.min(rows), style);
        let mut lines: Vec<Vec<String>> = row.iter().map(draw).collect();
        // Pad all plots of a row to the same number of lines: their legends differ in height.
        let most = lines.iter().map(Vec::len).max().unwrap_or(0);
        lines.iter_mut().for_each(|lines| lines.resize(most, String::new()));
        let line = |at: usize| {
            let parts: Vec<&str> = lines.iter().map(|lines| lines[at].as_str()).collect();
            format!("{}\n", parts.join(" ").trim_end())
        };
        (0..most).map(line).collect::<String>()
    };
    let bars = bars.map(|found| importance::text(found, width, style));
    large.map(block).chain(bars).chain(slices.map(block)).collect::<Vec<_>>().join("\n")
}

/// A plot for the terminal.
fn chart(figure: &Figure) -> Chart {
    let curve = |(at, series): (usize, &Series)| chart::Curve {
        run: match series.look {
            Look::Complete => 0,
            Look::Failed => 1,
            Look::Best => 2,
            Look::Running => 3,
            Look::Pruned => 4,
        },
        name: name(figure, at).into(),
        points: figure.drawn(series),
        joined: series.joined,
    };
    Chart {
        metric: figure.y.label().into(),
        title: match figure.kind {
            Kind::Slice => format!("{} by {}", figure.y.label(), figure.x.label()),
            _ => title(figure),
        },
        x: figure.x.clone(),
        y: figure.y.clone(),
        curves: figure.series.iter().enumerate().map(curve).collect(),
    }
}

/// The name of a series in the legend; empty if an earlier series has the same name.
fn name(figure: &Figure, at: usize) -> &'static str {
    let look = figure.series[at].look;
    let is_first = figure.series[..at].iter().all(|series| series.look != look);
    match (look, figure.kind) {
        _ if !is_first => "",
        (Look::Best, Kind::History) => "best so far",
        (Look::Best, _) => "best trial",
        _ => look.name(),
    }
}

fn title(figure: &Figure) -> String {
    let (y, x) = (figure.y.label(), figure.x.label());
    match figure.kind {
        Kind::History => format!("{y} of each trial"),
        Kind::Values => format!("{y} by {x}"),
        Kind::Importance => importance::TITLE.into(),
        Kind::Slice => format!("{y} by parameter"),
    }
}

/// The picture of a round: history, values and importances side by side, slice plots below. Errors: 65, 66, 74.
pub fn picture(study: &Study, round: usize, kinds: &[Kind], format: Format) -> Result<Vec<u8>> {
    let figures = figures::of_round(study, round, kinds)?;
    let bars = bars(study, round, kinds)?;
    let (slices, large): (Vec<&Figure>, Vec<&Figure>) =
        figures.iter().partition(|figure| figure.kind == Kind::Slice);
    let parts = large.len() + usize::from(bars.is_some());
    let above = HEADING + if parts == 0 { 0.0 } else { LARGE };
    let rows = slices.len().div_ceil(COLUMNS);
    let height = above + if rows > 0 { SLICE + PITCH * (rows - 1) as f64 + MARGIN } else { 0.0 };
    let draw = |canvas: &Canvas| {
        heading(canvas, study.name(), &summary(study, round, &figures))?;
        let width = WIDTH / parts.max(1) as f64;
        let part = |at: usize| Area { x: width * at as f64, y: HEADING, width, height: LARGE };
        if let Some(found) = &bars {
            importance::draw(canvas, part(large.len()), found)?;
        }
        for (at, figure) in large.iter().enumerate() {
            let curves: Vec<Curve> = curves(figure, None);
            let panel = Panel::new(canvas, part(at), figure.x.clone(), figure.y.clone());
            panel.curves(&title(figure), &curves)?;
        }
        let map = Map::sequential().reversed();
        let first = study.first_of(round) as f64;
        let last = records(study, round).last().map_or(first, |record| record.number as f64);
        let trials = Axis::linear("trial", first, last.max(first + 1.0)).whole();
        let columns = slices.len().clamp(1, COLUMNS);
        for (at, figure) in slices.iter().enumerate() {
            let (column, row) = ((at % columns) as f64, (at / columns) as f64);
            let width = (WIDTH - BAR) / columns as f64;
            let area = Area { x: width * column, y: above + PITCH * row, width, height: SLICE };
            let panel = Panel::new(canvas, area, figure.x.clone(), figure.y.clone());
            let mut curves = curves(figure, Some((&map, &trials)));
            if at > 0 {
                curves.iter_mut().for_each(|curve| curve.name.clear());
            }
            panel.curves(&if at == 0 { title(figure) } else { String::new() }, &curves)?;
            if at + 1 == columns {
                colour_bar(canvas, panel.plot(), &map, &trials)?;
            }
        }
        Ok(())
    };
    match format {
        Format::Png => png(WIDTH as u32, height as u32, draw),
        Format::Svg => svg(WIDTH as u32, height as u32, draw),
    }
}

/// The curves and marks of a plot. With a colour map, marks are coloured by trial number.
fn curves(figure: &Figure, colours: Option<(&Map, &Axis)>) -> Vec<Curve> {
    let count = figure.series.iter().map(|series| series.points.len()).sum::<usize>();
    let radius = if figure.kind == Kind::Values || count < 150 { 4.5 } else { 3.0 };
    let mut curves = Vec::new();
    for (at, series) in figure.series.iter().enumerate() {
        let (name, points) = (name(figure, at), figure.drawn(series));
        let mark = match series.look {
            Look::Best | Look::Complete | Look::Running => (Mark::Disc, radius),
            Look::Pruned => (Mark::Ring, radius),
            Look::Failed => (Mark::Cross, radius),
        };
        let colour = colour(series.look, series.joined);
        match colours.filter(|_| series.look != Look::Failed) {
            Some((map, trials)) => {
                // An empty series for the legend.
                curves.push(Curve::points(name, INK, mark, []));
                // Draw the latest trials on top.
                for (point, trial) in points.into_iter().zip(&series.trials).rev() {
                    let colour = map.at(trials.place(*trial as f64));
                    curves.push(Curve::points("", colour, mark, [point]));
                }
            }
            None if series.joined => {
                let width = if series.look == Look::Best { 2.4 } else { 1.0 };
                // Mark where the pruner ended the trial, or its only value.
                let end = (series.look == Look::Pruned || points.len() == 1).then(|| points.last());
                let end = end.flatten().map(|end| Curve::points("", colour, (mark.0, 2.6), [*end]));
                curves.extend(end);
                curves.push(Curve::new(name, colour, width, points));
            }
            None => curves.push(Curve::points(name, colour, mark, points)),
        }
    }
    curves
}

/// The colour of a series; curves are lighter than marks, because there are many of them.
fn colour(look: Look, joined: bool) -> Colour {
    match (look, joined) {
        (Look::Best, _) => INK,
        (Look::Complete, false) => distinct(0),
        (Look::Complete, true) => [0x7f, 0xb4, 0xd8],
        (Look::Pruned, false) => distinct(4),
        (Look::Pruned, true) => [0xee, 0xb9, 0x66],
        (Look::Failed, _) => distinct(1),
        (Look::Running, _) => [0xaa; 3],
    }
}

/// A one-line summary of the round: the number of trials in each state and the best value.
fn summary(study: &Study, round: usize, figures: &[Figure]) -> String {
    let mut parts = vec![format!("round {}", study.rounds()[round].name)];
    for look in [Look::Complete, Look::Pruned, Look::Failed, Look::Running] {
        let count = records(study, round).filter(|record| Look::of(record) == look).count();
        if count > 0 {
            parts.push(format!(
                "{count} {}",
                if look == Look::Failed { "without a value" } else { look.name() }
            ));
        }
    }
    if let Some(best) = study.ranking(round).first() {
        parts.push(format!("best {} (trial {})", plain(figures::value(study, best)), best.number));
    }
    let beyond = figures.iter().map(Figure::beyond).max().unwrap_or(0);
    if beyond > 0 {
        parts.push(format!("{beyond} values beyond the axis are drawn at its end"));
    }
    parts.join("  ·  ")
}
