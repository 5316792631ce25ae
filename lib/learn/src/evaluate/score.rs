//! The evaluation loop.

use super::losses::Losses;
use super::state::StateFiles;
use super::worst::WorstItems;
use super::{Block, Evaluator, Model, Results, again, described, stopped, unless_stopped};
use crate::train::{broadcast, gather};
use data::inputs::Verifier;
use dist::Collective;
use report::document::Document;
use report::evaluation::{FORMAT, MetricsFile, Subject, VERSION};
use serde_json::json;
use std::path::{Path, PathBuf};
use unix::progress::Progress;
use unix::publish::{create_folder, publish_bytes};
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Result, note, text, warn};

/// Inputs and settings of an evaluation run.
pub struct ScoreJob<'a> {
    /// The output folder.
    pub folder: &'a Path,
    /// Path of a second result file, whose content the task chooses.
    pub summary: Option<&'a PathBuf>,
    /// The ranks that share the work. All of them must see the same files.
    pub ranks: &'a dyn Collective,
    /// Stop signals.
    pub signals: Signals,
    /// Number of worst items to show; the task's default if None.
    pub worst: Option<usize>,
    /// Whether the models round the operands of products to bf16, which results say.
    pub amp: bool,
}

/// Type-erased interface to an [`Evaluator`].
pub trait Evaluation {
    /// Runs the evaluation; see [`score`].
    fn run(&self, job: &ScoreJob, work: Option<&mut Work>) -> Result<Option<Results>>;
}

impl<E: Evaluator> Evaluation for E {
    fn run(&self, job: &ScoreJob, work: Option<&mut Work>) -> Result<Option<Results>> {
        score(self, job, work)
    }
}

/// Refuses (73) to overwrite an earlier result in a folder, or its summary.
pub fn refuse_earlier(folder: &Path, summary: Option<&PathBuf>) -> Result<()> {
    match MetricsFile::is_in(folder) {
        true => Err(already_exists(&folder.join("metrics.json"))),
        false => refuse_existing(summary),
    }
}

/// Refuses (73) to overwrite existing files.
pub fn refuse_existing<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Result<()> {
    paths.into_iter().find(|path| path.exists()).map_or(Ok(()), |path| Err(already_exists(path)))
}

pub(super) fn already_exists(path: &Path) -> Error {
    let text = "it contains an earlier result; choose another name, or overwrite it with --force";
    Error::create(path, text)
}

/// Runs an evaluation to its end and writes its files; metrics.json comes last, because it marks a complete result.
/// `work` is given on rank 0. Returns the results on rank 0.
///
/// Errors: 65 when an input file has changed; 73, 74; 75 after a stop signal, with all sums stored; errors of the task.
pub fn score<E: Evaluator>(
    evaluator: &E,
    job: &ScoreJob,
    mut work: Option<&mut Work>,
) -> Result<Option<Results>> {
    let (ranks, signals, all) = (job.ranks, job.signals, evaluator.items());
    let most = job.worst.unwrap_or(evaluator.shown());
    let (mut subject, models) = (evaluator.subject(), evaluator.models());
    subject.models = described(&models)?;
    if job.amp {
        subject.settings.insert("amp".into(), true.into());
    }
    let leads = ranks.rank() == 0;
    let mut verifier = leads.then(|| Verifier::start(evaluator.inputs(), None)).transpose()?;
    let mut file = StateFiles::new(job.folder, &subject);
    let (mut first, mut sums, mut worst) = (0, E::Sums::default(), WorstItems::default());
    let mut losses = Losses::new(evaluator.loss_name());
    if let Some(work) = work.as_deref_mut() {
        warn_of_overlap(&models, &subject);
        note!("{}", subject.description);
        // Creates the folder: from here on the inputs are known to be valid.
        work.progress(0, Some(all))?;
        signals.check_stop(again)?;
        if let Some((state, values)) = file.load() {
            (first, sums, worst) = state;
            losses.values = values;
            note!("resuming after {first} {}", evaluator.noun());
        }
    }
    first = broadcast(ranks, first)?;
    let mut progress = leads.then(|| Progress::new(evaluator.noun(), all));
    progress.iter_mut().for_each(|progress| progress.resume_at(first));
    while first < all {
        // One block for each rank.
        let mut ends = vec![first];
        while ends.len() <= ranks.size() && ends[ends.len() - 1] < all {
            let begin = ends[ends.len() - 1];
            ends.push(evaluator.block_end(begin).clamp(begin + 1, all));
        }
        let own = ends.windows(2).nth(ranks.rank()).map(|ends| ends[0]..ends[1]);
        let measured = unless_stopped(own.map(|block| evaluator.measure(block)))?;
        let stops = signals.stop_requested().is_some();
        let every: Vec<(Option<Block<E::Part>>, bool)> = gather(ranks, (measured, stops))?;
        let stops = every.iter().any(|(_, stops)| *stops);
        let complete = every.iter().take_while(|(block, _)| block.is_some()).count();
        first = ends[complete];
        if let Some(work) = work.as_deref_mut() {
            for block in every.into_iter().map_while(|(block, _)| block) {
                worst.add(losses.values.len() as u64, &block.losses, most);
                losses.values.extend(block.losses.iter().map(|loss| loss.value.0));
                evaluator.add(&mut sums, block.part);
            }
            if file.store(&(first, &sums, &worst), &losses.values, stops)? {
                work.stored();
                unix::fail::point("save.after_shard")
                    .map_err(|cause| Error::io(job.folder, cause))?;
            }
            progress.iter_mut().for_each(|progress| progress.set(first));
            work.progress(first, Some(all))?;
        }
        if stops {
            return Err(stopped(signals));
        }
    }
    drop(progress);
    if !leads {
        return Ok(None);
    }
    losses.clusters = (0..losses.values.len() as u64).map(|item| evaluator.cluster(item)).collect();
    let mut results = evaluator.finish(&sums, &losses)?;
    let check_stop = || signals.check_stop(again);
    if most > 0 {
        let title = || Document::new(format!("Worst {}", evaluator.noun()));
        let page = results.page.take().unwrap_or_else(title);
        if let Err(error) = evaluator.complete(&mut sums, &worst.items()) {
            file.store(&(first, &sums, &worst), &losses.values, true)?;
            return Err(error);
        }
        let show = |item| {
            check_stop()?;
            evaluator.show(&sums, item)
        };
        results.files.extend(worst.files(evaluator.loss_name(), page, show)?);
    }
    results.files.push(("losses.csv".into(), losses.csv().into_bytes()));
    if let Some(verifier) = &mut verifier {
        verifier.finish(check_stop)?;
    }
    write(&results, subject, job)?;
    file.remove();
    Ok(Some(results))
}

/// Warns of models whose training data may overlap the evaluation data.
fn warn_of_overlap(models: &[Model], subject: &Subject) {
    for Model { task, origin, data, .. } in models {
        if data.as_ref().is_some_and(|hash| !origin.was_trained_on(hash)) {
            let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_string();
            warn!(
                "the {task} was trained on different data than {}; the {} split may overlap its training data",
                text(&subject.settings["data"]),
                text(&subject.protocol["split"])
            );
        }
    }
}

fn write(results: &Results, subject: Subject, job: &ScoreJob) -> Result<()> {
    let file = MetricsFile {
        format: FORMAT.into(),
        version: VERSION,
        subject,
        scores: results.scores.clone(),
        groups: results.groups.clone(),
        details: results.details.clone(),
    };
    let metrics = text::json_pretty(&file).map_err(Error::bug)?;
    let publish = |path: &Path, content: &[u8]| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        folder.map_or(Ok(()), create_folder)?;
        publish_bytes(path, content)
    };
    for (path, content) in &results.files {
        publish(&job.folder.join(path), content)?;
    }
    publish(&job.folder.join("metrics.csv"), file.csv().as_bytes())?;
    if let Some(path) = job.summary {
        let own = results.summary.as_ref().map(|summary| text::json_pretty(&json!(summary)));
        let own = own.transpose().map_err(Error::bug)?;
        publish_bytes(path, own.as_ref().unwrap_or(&metrics).as_bytes())?;
    }
    publish(&job.folder.join("metrics.json"), metrics.as_bytes())
}
