//! Scores of trained models on unseen data, and their predictions.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::sync::Arc;

use crate::search::SearchArgs;
use crate::{records, texts};
use data::fields::generate::Equation;
use data::fields::split::SplitName;
use data::fields::split_set::{TrajectorySet, Verify};
use data::fields::stats;
use data::inputs::Verifier;
use data::records::RecordSplit;
use data::text::TokenSet;
use learn::score::Bits;
use learn::task::load_config;
use serde_json::{Map, Value, json};
use tasks::ModelArgs;
use tasks::pde::TrainedCritic;
use tasks::pde::evaluate::{
    self, Evaluation, Evaluator, Partial, Plan, Protocol, Request, pictures,
};
use tasks::pde::operator::OperatorTask;
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::{self, Task, Work};
use unix::{Context, Error, Exit, Result, diagnostics, note, warn};

#[derive(clap::Args)]
pub struct Rollouts {
    /// Steps of a rollout
    #[arg(long, value_name = "N", default_value_t = 16)]
    steps: usize,
    /// Frames from one state to the next [default: the largest stride of the training]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
}

#[derive(clap::Args)]
pub struct Data {
    /// Split manifest of ds-prep split
    #[arg(long, value_name = "MANIFEST")]
    pub data: PathBuf,
    /// Split of the manifest
    #[arg(long, value_name = "NAME", default_value_t = SplitName::Test)]
    pub split: SplitName,
    /// Start frames per trajectory, spread evenly; 0 for all from which a rollout fits
    #[arg(long, value_name = "N", default_value_t = 8)]
    starts: usize,
    /// First start frame, for data whose first frames are not to be predicted
    #[arg(long, value_name = "FRAME", default_value_t = 0)]
    from: usize,
    /// Largest number of trajectories per parameter value
    #[arg(long, value_name = "N")]
    max_trajectories: Option<usize>,
    #[command(flatten)]
    rollouts: Rollouts,
}

#[derive(clap::Args)]
pub struct ViewArgs {
    /// Also average the predictions from N copies of each initial state, transformed by exact symmetries of the
    /// equation
    #[arg(long, value_name = "N", default_value = "1")]
    pub views: NonZeroUsize,
    /// Equation of the data, for --views, if its files do not name it
    #[arg(long, value_name = "NAME")]
    equation: Option<Equation>,
}

impl ViewArgs {
    pub fn add_to(&self, request: Request) -> Request {
        Request { views: self.views.get(), equation: self.equation, ..request }
    }
}

/// The arguments of `evaluate score`.
#[derive(clap::Args)]
pub struct Score {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub data: Data,
    #[command(flatten)]
    pub views: ViewArgs,
    /// Samples of each rollout, of a corrector or a student: also score their mean, their distribution and its spread
    #[arg(long, value_name = "N", default_value = "1")]
    pub members: NonZeroUsize,
    #[command(flatten)]
    pub search: SearchArgs,
    /// Folder for metrics.json, metrics.csv, times.json and pictures/
    #[arg(short = 'o', long = "output", value_name = "DIR")]
    pub to: PathBuf,
    /// Also write the errors over whole rollouts, by parameter value, to a JSON file
    #[arg(long, value_name = "FILE")]
    pub summary: Option<PathBuf>,
    /// Overwrite an earlier result
    #[arg(long)]
    pub force: bool,
    #[command(flatten)]
    pub output: Output,
}

/// The arguments of `evaluate check`.
#[derive(clap::Args)]
pub struct Check {
    #[command(flatten)]
    pub data: Data,
    /// Configuration of an operator that is not trained yet; the rollouts of its training and validation must fit
    /// as well
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    pub output: Output,
}

/// Advice when every attempt was interrupted before it stored anything.
const ADVICE: &str =
    "give its job a longer time limit (sbatch --time), or choose fewer --steps, then run it again";

pub fn again() -> String {
    "run the same command again to resume".into()
}

impl Rollouts {
    /// A single rollout of each trajectory.
    pub fn request(&self) -> Request {
        let (steps, stride) = (self.steps, self.stride);
        Request {
            steps,
            stride,
            starts: 1,
            from: 0,
            max_trajectories: None,
            views: 1,
            equation: None,
            members: 1,
            search: None,
        }
    }
}

impl Data {
    pub fn request(&self) -> Request {
        let Self { starts, from, max_trajectories, .. } = *self;
        Request { starts, from, max_trajectories, ..self.rollouts.request() }
    }

    fn open(&self, split: SplitName) -> Result<TrajectorySet> {
        TrajectorySet::open(&self.data, split, Verify::Sizes)
    }
}

/// Checks that the rollouts of the evaluation, and of the operator's training and validation, fit into the
/// trajectories. Errors: 2 if they do not, 78 for a bad configuration, 65, 66.
pub fn check(args: &Check) -> Result<Exit> {
    let request = args.data.request();
    let (mut stride, mut needed) = (1, Vec::new());
    if let Some(file) = &args.config {
        let environment = |name: &str| std::env::var(name).ok();
        let config = load_config::<OperatorTask>(from_ref(file), &[], &environment)?.config;
        let longest = |numbers: &[usize]| numbers.iter().copied().max().unwrap_or(1);
        stride = longest(&config.data.strides);
        let trained = |steps| Request { steps, stride: Some(stride), ..request };
        needed.push((SplitName::Train, trained(longest(&config.loss.horizons))));
        needed.push((SplitName::Validation, trained(config.loss.validation_steps)));
    }
    needed.push((args.data.split, request));
    let mut out = Out::stdout(args.output);
    for (split, request) in needed {
        let plan = Plan::of_rollouts(&args.data.open(split)?, &request, stride)
            .context(|| format!("{}, {split}", args.data.data.display()))?;
        out.row(&json!({"split": split.to_string(), "rollouts": plan.count()}))?;
    }
    out.finish()
}

/// Scores a model, and prints the table.
pub fn score(given: &Given<Score>) -> Result<Exit> {
    let args = &given.args;
    let signals = Signals::install()?;
    crate::require_one_rank("evaluate score")?;
    let of_records = RecordSplit::is_manifest(&args.data.data);
    if of_records {
        given.require_only(&records::SCORE_OPTIONS, records::NO_EFFECT)?;
    }
    let of_texts = TokenSet::is_at(&args.data.data);
    if of_texts {
        given.require_only(&texts::SCORE_OPTIONS, texts::NO_EFFECT)?;
    }
    args.search.require_critic()?;
    let result = if of_texts { texts::results(&args.to) } else { metrics(&args.to) };
    refuse_earlier([&result].into_iter().chain(&args.summary), args.force)?;
    let task = Task { folder: &args.to, task: "evaluation", advice: ADVICE };
    if of_records {
        return work::run(task, signals, |work| records::measure(args, signals, work))?.print(args);
    }
    let measure = if of_texts { texts::measure } else { measure };
    work::run(task, signals, |work| measure(args, signals, work))?.print(args)
}

/// What `evaluate score` prints after it has written all files.
pub struct Measured {
    /// The rows of the table.
    pub rows: Vec<Value>,
    /// Why the model failed, although it could be scored.
    pub failed: Option<String>,
}

impl Measured {
    fn print(self, args: &Score) -> Result<Exit> {
        let mut rows = self.rows;
        if self.failed.is_some() && !args.output.json {
            // JSON has null for them, of which a table shows nothing.
            let values = rows.iter_mut().filter_map(Value::as_object_mut).flat_map(Map::values_mut);
            values.filter(|value| value.is_null()).for_each(|value| *value = "NaN".into());
        }
        Out::stdout(args.output).rows(rows)?;
        Ok(self.failed.map_or(Exit::Done, |failed| {
            diagnostics::say(format_args!("failed: {failed}"));
            Exit::Failure
        }))
    }
}

/// Says that predictions were not finite, if there are such.
pub fn not_finite(bad: usize, all: usize, what: &str) -> Option<String> {
    (bad > 0).then(|| {
        format!(
            "the predictions of {bad} of {all} {what} are not finite, so the errors over all of them are NaN or infinite \
             (null in metrics.json)"
        )
    })
}

/// Evaluates and writes all files; returns what is printed.
fn measure(args: &Score, signals: Signals, work: &mut Work) -> Result<Measured> {
    let data = &args.data;
    let opener = args.model.opener()?;
    let model = opener.open(args.model.run())?;
    let set = data.open(data.split)?;
    let train = model.needs_training_data().then(|| data.open(SplitName::Train)).transpose()?;
    let validation = data.open(SplitName::Validation)?;
    let files = [&set, &validation]
        .into_iter()
        .chain(&train)
        .flat_map(TrajectorySet::input_files)
        .collect();
    let mut verifier = Verifier::start(files, None)?;
    let members = args.members.get();
    let (search, request) = (args.search.search(), args.views.add_to(data.request()));
    let mut plan = model.plan(&set, &Request { members, search, ..request })?;
    if plan.members < members {
        return Err(Error::usage("--members: only the samples of a corrector or a student differ"));
    }
    if plan.search.is_none() && search.is_some() {
        return Err(Error::usage("--search: evaluate an operator, a corrector or a student"));
    }
    if let Some((path, operator)) = args.search.critic.as_ref().zip(model.operator()) {
        plan.critic = Some(Arc::new(TrainedCritic::open(path, &opener, operator)?));
    }
    for (task, origin, _) in model.models() {
        // The data of an operator are latents, which its codec accounts for.
        if model.latent().is_none_or(|_| task == "codec")
            && !origin.was_trained_on(set.manifest_hash())
        {
            warn!(
                "the {task} was trained on a different split than {}; the test data may overlap its training data",
                data.data.display()
            );
        }
    }
    let protocol = Protocol::of(&data.data, &set, &plan, &*model);
    note!("{protocol}");
    let all = Some(plan.count() as u64);
    let mut progress = Progress::new("rollouts", plan.count() as u64);
    let evaluator = Evaluator { model: &*model, set: &set, train: train.as_ref(), plan: &plan };
    work.progress(0, all)?;
    signals.check_stop(again)?;
    let partial = Partial::new(args.to.join("partial.json"), &protocol)?;
    let check_stop = || signals.check_stop(again);
    let mut earlier: Evaluation = partial.load();
    if earlier.rollouts() > 0 {
        note!("resuming after {} rollouts", earlier.rollouts());
    }
    if earlier.validation_rms.is_none() {
        earlier.validation_rms = Some(Bits(stats::rms(&validation, check_stop)?));
    }
    let result = evaluate::evaluate(&evaluator, earlier, |result| {
        partial.save(result)?;
        work.stored();
        unix::fail::point("save.after_shard").map_err(|cause| Error::io(&args.to, cause))?;
        let done = result.rollouts() as u64;
        progress.set(done);
        work.progress(done, all)?;
        signals.check_stop(again)
    })?;
    drop(progress);
    let drawn = pictures::draw(&result, &evaluator, &protocol, check_stop)?;
    verifier.finish(check_stop)?;
    write(args, &result, &protocol, drawn)?;
    partial.remove();
    let what = if result.steps == 0 { "samples" } else { "rollouts" };
    let failed = not_finite(result.diverged(), result.rollouts(), what);
    Ok(Measured { rows: evaluate::rows(&result), failed })
}

pub fn metrics(folder: &Path) -> PathBuf {
    folder.join("metrics.json")
}

/// Refuses to replace existing files without `--force`. Errors: 73.
pub fn refuse_earlier<'a>(paths: impl IntoIterator<Item = &'a PathBuf>, force: bool) -> Result<()> {
    match paths.into_iter().find(|path| !force && path.exists()) {
        None => Ok(()),
        Some(path) => Err(Error::create(
            path,
            "it contains an earlier result; choose another name, or overwrite it with --force",
        )),
    }
}

/// Writes all files; metrics.json comes last because it marks a complete result.
fn write(
    args: &Score,
    result: &Evaluation,
    protocol: &Protocol,
    drawn: Vec<pictures::Picture>,
) -> Result<()> {
    let pictures = args.to.join("pictures");
    create_folder(&pictures)?;
    for (name, png) in drawn {
        publish_bytes(&pictures.join(name), &png)?;
    }
    publish_bytes(&args.to.join("metrics.csv"), evaluate::metrics_csv(result).as_bytes())?;
    publish_json(&args.to.join("times.json"), &evaluate::times(result))?;
    if let Some(path) = &args.summary {
        publish_json(path, &evaluate::summary(result))?;
    }
    publish_json(&metrics(&args.to), &evaluate::metrics_json(result, protocol))
}

pub fn publish_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(Error::bug)?;
    publish_bytes(path, format!("{text}\n").as_bytes())
}
