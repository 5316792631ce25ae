//! `evaluate export`: exports runs to files or a server for experiment tracking.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use report::export::{self, Client, Evaluation, FileFormat, Labels, Run};
use serde_json::{Value, json};
use unix::cli::Output;
use unix::out::Out;
use unix::signal::Signals;
use unix::{Error, Exit, Result, secrets, warn};

/// Minimum time between two exports of a run that is being followed. The pause is also at least `SHARE` times as long
/// as the export, so that reading a long log takes at most a twentieth of the time.
const INTERVAL: Duration = Duration::from_secs(5);
const SHARE: u32 = 20;

/// The arguments of `evaluate export`.
#[derive(clap::Args)]
pub struct Export {
    /// Run directories
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Format
    #[arg(long)]
    format: Format,
    /// Folder for the files: with tensorboard, RUN/events.out.tfevents.*; with wandb, wandb/offline-run-*; with csv,
    /// RUN/*.csv
    #[arg(short = 'o', long = "output", value_name = "DIR", required_unless_present = "url")]
    to: Option<PathBuf>,
    /// With mlflow: address of the server, such as http://localhost:5000
    #[arg(long, conflicts_with = "to")]
    url: Option<String>,
    /// Result of evaluate score to add to the run; may be repeated
    #[arg(long, value_name = "DIR")]
    evaluation: Vec<PathBuf>,
    /// Continue until every run has finished or failed, and export what is added to its log
    #[arg(long)]
    follow: bool,
    /// Project of W&B, or experiment of MLflow
    #[arg(long, default_value = "longhaul")]
    project: String,
    /// With wandb: user or team that the project belongs to
    #[arg(long)]
    entity: Option<String>,
    /// Tags
    #[arg(long, value_name = "TAG", value_delimiter = ',')]
    tags: Vec<String>,
    /// Remarks
    #[arg(long, value_name = "TEXT")]
    notes: Option<String>,
    /// Name to show instead of that of the configuration, see name in longhaul-config(5)
    #[arg(long)]
    name: Option<String>,
    /// Replace files, or a run on the server, that are not an earlier export of the same run
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Event files for TensorBoard
    Tensorboard,
    /// Offline runs for `wandb sync` and `wandb leet`
    Wandb,
    /// Tables: run.csv, history.csv, and metrics.csv of evaluations
    Csv,
    /// A run on an MLflow server
    Mlflow,
}

/// The destination of exported runs.
enum Target {
    Files(FileFormat, PathBuf),
    Server(Client),
}

/// A run to export, once or repeatedly.
struct ExportedRun<'a> {
    path: &'a PathBuf,
    /// Whether this command has exported the run before.
    again: bool,
    /// Whether the last export failed.
    failing: bool,
    done: Option<Value>,
}

/// Exports runs, once or with `--follow` until they end.
pub fn export(args: &Export) -> Result<Exit> {
    let target = args.target()?;
    let signals = Signals::install()?;
    let mut jobs: Vec<ExportedRun> = args.runs.iter().map(ExportedRun::new).collect();
    let evaluations = args.evaluations()?;
    args.refuse_duplicate_names()?;
    loop {
        let began = Instant::now();
        let stopped = signals.stop_requested();
        let settled = args.follow && stopped.is_none();
        for job in jobs.iter_mut().filter(|job| job.done.is_none()) {
            job.export(args, &target, &evaluations, settled)?;
        }
        if jobs.iter().all(|job| job.done.is_some()) {
            break;
        }
        if stopped.is_some() {
            signals.check_stop(|| "exported up to here; the same command continues".into())?;
        }
        let pause = INTERVAL.max(SHARE * began.elapsed());
        let began = Instant::now();
        while began.elapsed() < pause && signals.stop_requested().is_none() {
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Out::stdout(args.output).rows(jobs.into_iter().filter_map(|job| job.done))
}

impl<'a> ExportedRun<'a> {
    fn new(path: &'a PathBuf) -> Self {
        Self { path, again: false, failing: false, done: None }
    }

    /// Exports the run in its current state. While a run is followed, only an error of the first export ends the
    /// command; later errors may be temporary failures of the network or the file system.
    fn export(
        &mut self,
        args: &Export,
        target: &Target,
        evaluations: &[Evaluation],
        settled: bool,
    ) -> Result<()> {
        let exported = Run::read(self.path, settled).and_then(|mut run| {
            run.evaluations = evaluations.to_vec();
            let row = target.export(&run, &args.labels(), args.force || self.again)?;
            Ok((row, run.has_ended()))
        });
        match exported {
            Ok((row, ended)) => {
                self.done = (ended || !args.follow).then_some(row);
                (self.again, self.failing) = (true, false);
            }
            Err(error) if settled && self.again => {
                if !self.failing {
                    warn!("{error}; trying again every few seconds");
                }
                self.failing = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Target {
    fn export(&self, run: &Run, labels: &Labels, replace: bool) -> Result<Value> {
        let (updates, last) = (run.steps.len(), run.last_update());
        match self {
            Target::Files(format, folder) => {
                let files = format.files(run, labels)?;
                if !replace {
                    files.refuse_foreign(folder)?;
                }
                files.write(folder)?;
                let path = files.main(folder);
                Ok(json!({"run": run.id, "points": updates, "last_update": last, "path": path}))
            }
            Target::Server(client) => {
                let logged = export::log(client, run, labels, replace)?;
                Ok(json!({
                    "run": run.id, "points": updates, "last_update": last, "sent": logged.points,
                    "url": logged.url,
                }))
            }
        }
    }
}

impl Export {
    fn target(&self) -> Result<Target> {
        let format = match self.format {
            Format::Tensorboard => FileFormat::Tensorboard,
            Format::Wandb => FileFormat::Wandb,
            Format::Csv => FileFormat::Csv,
            Format::Mlflow => {
                let url = self.url.as_ref();
                let url = url.ok_or_else(|| Error::usage("--format mlflow requires --url"))?;
                return Client::new(url).map(Target::Server);
            }
        };
        let to = self.to.clone();
        let to =
            to.ok_or_else(|| Error::usage("--url is for --format mlflow; others require -o"))?;
        if self.entity.is_some() && self.format != Format::Wandb {
            return Err(Error::usage("--entity is for --format wandb"));
        }
        Ok(Target::Files(format, to))
    }

    fn labels(&self) -> Labels {
        let text = |text: &String| secrets::redact(text).into_owned();
        Labels {
            project: text(&self.project),
            entity: self.entity.as_ref().map(text),
            tags: self.tags.iter().map(text).collect(),
            notes: self.notes.as_ref().map(text),
            name: self.name.as_ref().map(text),
        }
    }

    fn evaluations(&self) -> Result<Vec<Evaluation>> {
        if self.runs.len() > 1 && !(self.evaluation.is_empty() && self.name.is_none()) {
            return Err(Error::usage("--evaluation and --name belong to a single RUN"));
        }
        let read = self.evaluation.iter().map(|folder| Evaluation::read(folder));
        let all = read.collect::<Result<Vec<_>>>()?;
        // There is exactly one run if there are any evaluations.
        for (run, evaluation) in self.runs.iter().flat_map(|run| all.iter().map(move |e| (run, e)))
        {
            evaluation.require_run(run)?;
        }
        refuse_duplicates("--evaluation", all.iter().map(|evaluation| evaluation.name.clone()))?;
        Ok(all)
    }

    /// Refuses runs of the same name, which would have the same output.
    fn refuse_duplicate_names(&self) -> Result<()> {
        let names = self.runs.iter().map(|path| export::id(path));
        refuse_duplicates("RUN", names.collect::<Result<Vec<_>>>()?)
    }
}

fn refuse_duplicates(what: &str, names: impl IntoIterator<Item = String>) -> Result<()> {
    let mut names: Vec<String> = names.into_iter().collect();
    names.sort();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::usage(format!(
            "{what}: two are named {}; export them separately, to different places",
            pair[0]
        ))),
        None => Ok(()),
    }
}
