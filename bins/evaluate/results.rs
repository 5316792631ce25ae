//! The commands of `evaluate` that compare results and analyse runs, without running a model.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use learn::evaluate::refuse_existing;
use learn::results::{Analysis, Board, Comparison, Gate, Row, Scored};
use report::document::Document;
use serde_json::json;
use unix::cli::Output;
use unix::out::Out;
use unix::publish::publish_bytes;
use unix::{Error, Exit, Result, diagnostics, note};

/// The arguments of `evaluate compare`.
#[derive(clap::Args)]
pub struct Compare {
    /// Results of evaluate score, or run directories; the others are compared with the first; a single one
    /// is reported on its own
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    #[command(flatten)]
    files: ReportFiles,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `evaluate analyze`.
#[derive(clap::Args)]
pub struct Analyze {
    /// Run directory
    run: PathBuf,
    #[command(flatten)]
    files: ReportFiles,
    #[command(flatten)]
    output: Output,
}

/// The files that a report is also written to.
#[derive(clap::Args)]
struct ReportFiles {
    /// Also write the report with all pictures as one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the report without pictures as Markdown
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Overwrite existing files
    #[arg(long)]
    force: bool,
}

/// The arguments of `evaluate gate`.
#[derive(clap::Args)]
pub struct GateArgs {
    /// Folder written by evaluate score: the candidate
    #[arg(value_name = "DIR")]
    candidate: PathBuf,
    /// Leaderboard with the baseline
    #[arg(long, value_name = "FILE")]
    board: PathBuf,
    /// Label of the baseline; the first label that has rows with the candidate's protocol counts
    #[arg(long, value_name = "LABEL", required = true)]
    baseline: Vec<String>,
    /// Metric that must improve, METRIC or METHOD.METRIC [default: the most important one of the candidate's task]
    #[arg(long, value_name = "METRIC")]
    metric: Option<String>,
    /// By how much the metric must be better than that of the baseline
    #[arg(long, value_name = "X", default_value_t = 0.01, allow_negative_numbers = true)]
    min_improvement: f64,
    /// By which factor another metric may be worse than that of the baseline: at most FACTOR times as large if smaller
    /// values are better, at least 1/FACTOR times as large if larger ones are
    #[arg(long, value_name = "METRIC=FACTOR", value_parser = ratio)]
    max_ratio: Vec<(String, f64)>,
    /// Pass if the board has no baseline yet and the candidate has every metric
    #[arg(long)]
    first_passes: bool,
    /// Also write the decision to a JSON file, whether the candidate passes or not
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,
    /// Overwrite an existing summary
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

/// The commands of `evaluate leaderboard`.
#[derive(Subcommand)]
pub enum Leaderboard {
    /// Append the result of an evaluation as a row
    ///
    /// A row that the board already has is not appended again. Any number of processes may append at once.
    Add(Add),
    /// Show the rows, one table per protocol
    Show(Show),
}

/// The arguments of `evaluate leaderboard add`.
#[derive(clap::Args)]
pub struct Add {
    /// Folder written by evaluate score
    #[arg(value_name = "DIR")]
    report: PathBuf,
    /// Leaderboard, created if it does not exist
    #[arg(long, value_name = "FILE")]
    board: PathBuf,
    /// What the row is, e.g. baseline or candidate; evaluate gate finds baselines by label
    #[arg(long)]
    label: String,
    /// Name of the row [default: DIR]
    #[arg(long)]
    name: Option<String>,
    /// Remarks
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// The arguments of `evaluate leaderboard show`.
#[derive(clap::Args)]
pub struct Show {
    /// Leaderboard
    #[arg(long, value_name = "FILE")]
    board: PathBuf,
    /// Metrics to show, METRIC or METHOD.METRIC; rows are sorted by the first one [default: the main metric of
    /// the task, for the model and up to 5 other methods]
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    metric: Vec<String>,
    /// Also write all rows, with all metrics, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    #[command(flatten)]
    files: ReportFiles,
    #[command(flatten)]
    output: Output,
}

/// Refuses (73) to overwrite existing files without `force`.
pub fn refuse_earlier<'a>(paths: impl IntoIterator<Item = &'a PathBuf>, force: bool) -> Result<()> {
    if force { Ok(()) } else { refuse_existing(paths) }
}

impl ReportFiles {
    fn refuse_earlier(&self) -> Result<()> {
        refuse_earlier(self.html.iter().chain(&self.markdown), self.force)
    }

    fn write(&self, document: &Document) -> Result<()> {
        let publish = |path: &PathBuf, text: String| publish_bytes(path, text.as_bytes());
        self.html.iter().try_for_each(|path| publish(path, document.html()))?;
        self.markdown.iter().try_for_each(|path| publish(path, document.markdown()))
    }
}

fn ratio(text: &str) -> Result<(String, f64), String> {
    let found = text.rsplit_once('=').and_then(|(metric, factor)| {
        let factor: f64 = factor.parse().ok()?;
        (factor > 0.0 && factor.is_finite()).then(|| (metric.to_string(), factor))
    });
    found.ok_or_else(|| "expected METRIC=FACTOR, e.g. max_error=1.1".into())
}

/// Compares runs or evaluations.
pub fn compare(args: &Compare) -> Result<Exit> {
    args.files.refuse_earlier()?;
    let comparison = Comparison::read(&args.runs)?;
    let document = comparison.document()?;
    args.files.write(&document)?;
    let mut out = Out::stdout(args.output);
    if out.is_json() {
        return out.rows(comparison.lines());
    }
    out.raw(document.text().as_bytes())?;
    Ok(Exit::Done)
}

/// Analyses the log of a run.
pub fn analyze(args: &Analyze) -> Result<Exit> {
    args.files.refuse_earlier()?;
    let analysis = Analysis::read(&args.run)?;
    let document = analysis.document()?;
    args.files.write(&document)?;
    Out::stdout(args.output).item(&analysis, document.text().trim_end())?;
    Ok(Exit::Done)
}

/// Compares a result with its baseline; exits with 1 if the result does not pass.
pub fn gate(args: &GateArgs) -> Result<Exit> {
    if !args.min_improvement.is_finite() {
        return Err(Error::usage("--min-improvement must be a finite number"));
    }
    refuse_earlier(&args.summary, args.force)?;
    let candidate = Scored::read(&args.candidate)?;
    let board = Board::read(&args.board, args.first_passes)?;
    let gate = Gate {
        metric: args.metric.clone(),
        min_improvement: args.min_improvement,
        max_ratios: args.max_ratio.clone(),
    };
    let baseline = gate.baseline(&board, &candidate, &args.baseline)?;
    let (name, labels) = (args.board.display(), args.baseline.join(" or "));
    let title = match baseline {
        Some(row) => format!("{} ({})", row.name, row.label),
        None if args.first_passes => "none".to_string(),
        None => {
            return Err(Error::new(
                Exit::NoInput,
                format!(
                    "{name} has no row labelled {labels} with the protocol of {} ({}); add one with evaluate \
                     leaderboard add, or let the first candidate pass with --first-passes",
                    args.candidate.display(),
                    candidate.subject.describe()
                ),
            ));
        }
    };
    note!("baseline: {title}");
    let checks = gate.check(&candidate, baseline.map(|row| &row.scored))?;
    let failed: Vec<String> =
        checks.iter().filter(|check| !check.passed).map(|check| check.describe(&title)).collect();
    if let Some(path) = &args.summary {
        let baseline = baseline.map(|row| json!({"name": row.name, "label": row.label}));
        let decision = json!({"passed": failed.is_empty(), "baseline": baseline, "checks": checks});
        let text = serde_json::to_string_pretty(&decision).map_err(Error::bug)?;
        publish_bytes(path, format!("{text}\n").as_bytes())?;
    }
    Out::stdout(args.output).rows(&checks)?;
    failed.iter().for_each(|text| diagnostics::say(format_args!("failed: {text}")));
    Ok(if failed.is_empty() { Exit::Done } else { Exit::Failure })
}

/// Appends a row to a leaderboard, or shows it.
pub fn leaderboard(verb: &Leaderboard) -> Result<Exit> {
    match verb {
        Leaderboard::Add(args) => add(args),
        Leaderboard::Show(args) => show(args),
    }
}

fn add(args: &Add) -> Result<Exit> {
    let scored = Scored::read(&args.report)?;
    let name = args.name.clone().unwrap_or_else(|| args.report.display().to_string());
    let row = Row::new(&args.label, &name, args.notes.as_deref(), scored);
    let added = row.append(&args.board)?;
    let board = args.board.display();
    let text = match added {
        true => format!("{board}: added {name} as {}", args.label),
        false => format!("{board}: already has {name} as {}", args.label),
    };
    let record = json!({"board": args.board, "label": args.label, "name": name, "added": added});
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

fn show(args: &Show) -> Result<Exit> {
    args.files.refuse_earlier()?;
    refuse_earlier(&args.csv, args.files.force)?;
    let board = Board::read(&args.board, false)?;
    let document = board.document(&args.metric);
    args.files.write(&document)?;
    let publish = |path: &Path| publish_bytes(path, &board.csv()?);
    args.csv.as_deref().map_or(Ok(()), publish)?;
    let mut out = Out::stdout(args.output);
    if !out.is_json() {
        out.raw(document.text().as_bytes())?;
        return Ok(Exit::Done);
    }
    for (group, ranking) in board.rankings(&args.metric).iter().enumerate() {
        for (at, row) in ranking.rows.iter().enumerate() {
            let mut record = json!({"group": group + 1, "rank": ranking.rank(at)});
            if let (Some(fields), Ok(serde_json::Value::Object(row))) =
                (record.as_object_mut(), serde_json::to_value(row))
            {
                fields.extend(row);
            }
            out.row(&record)?;
        }
    }
    out.finish()
}
