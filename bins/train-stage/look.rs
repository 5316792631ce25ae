//! The reports of train-stage that do not train a run.

use super::Args;
use learn::recompute::RecomputePlan;
use learn::train::{self, AbsentEstimate, CheckedEstimate, Estimate, TrainJob};
use tasks::Entry;
use tensor::kernel::cache;
use unix::out::Out;
use unix::progress::Progress;
use unix::space::human_bytes;
use unix::{Error, Exit, Result};

/// Compiles kernels in advance and stores them in the cache.
pub fn warm(args: &Args) -> Result<Exit> {
    let all = cache::units(&args.warm_kernels).len();
    let advance = Progress::shared("kernel files", all as u64);
    let compiled = cache::warm(&args.warm_kernels, || advance(1))?;
    drop(advance);
    let cached = all - compiled;
    let record = serde_json::json!({ "compiled": compiled, "cached": cached });
    let text = format!("compiled  {compiled}\ncached    {cached}");
    Out::stdout(args.output).item(&record, text).map(|()| Exit::Done)
}

/// Trains `times` times and checks that the results are bit-identical.
pub fn verify(args: &Args, task: &Entry, times: u64) -> Result<Exit> {
    let environment = |name: &str| std::env::var(name).ok();
    let task = (task.load)(&args.config, &args.overrides, &environment)?;
    let (device, _) = args.device.open()?;
    tensor::parallel::start_threads(task.config.training.threads)?;
    let found = train::verify_determinism(&task, device, times)?;
    let text = format!(
        "{} updates, {} times: all {} tensors have the same bits\nparameters  {}",
        found.updates, found.runs, found.tensors, found.parameters
    );
    Out::stdout(args.output).item(&found, text).map(|()| Exit::Done)
}

/// Prints the names of the validation metrics.
pub fn list_metrics(args: &Args, task: &Entry) -> Result<Exit> {
    let environment = |name: &str| std::env::var(name).ok();
    let task = (task.load)(&args.config, &args.overrides, &environment)?;
    tensor::parallel::start_threads(task.config.training.threads)?;
    let mut out = Out::stdout(args.output);
    for name in train::metric_names(&task)? {
        out.item(&serde_json::json!({ "metric": name }), &name)?;
    }
    out.finish()
}

/// Prints every point and an estimate, then every problem; returns the exit status of the first.
pub fn check(args: &Args, job: &TrainJob) -> Result<Exit> {
    let report = train::check(job, args.on);
    Out::stdout(args.output).rows(&report.points)?;
    if report.estimate.is_some() && !args.output.json {
        Out::stdout(args.output).raw(b"\n")?;
    }
    match &report.estimate {
        Some(CheckedEstimate::Here(estimate)) => print_estimate(args, estimate, None)?,
        Some(CheckedEstimate::Absent(estimate)) => print_absent(args, estimate)?,
        None => {}
    }
    let problems: Vec<Error> = report.points.into_iter().flat_map(|own| own.problems).collect();
    Error::all(&problems).map(|()| Exit::Done)
}

/// Describes the recomputed blocks, the memory saved and the operations repeated.
fn recomputed(plan: &RecomputePlan) -> String {
    let again = plan.keep.iter().filter(|keep| !**keep).count();
    let ((kept, all), (repeated, operations)) = (plan.bytes(), plan.flops());
    format!(
        "recomputed  {again} of {} blocks: {} of {} kept, {:.1} % of their operations repeated\n",
        plan.keep.len(),
        human_bytes(kept as u64),
        human_bytes(all as u64),
        100.0 * repeated as f64 / operations.max(1) as f64
    )
}

/// Describes the time of a run, and its cost if a price is known.
fn total(seconds: f64, cost: Option<f64>) -> String {
    let time = unix::time::format_duration(std::time::Duration::from_secs_f64(seconds));
    let cost = cost.map_or(String::new(), |cost| format!(" (cost {cost:.2})"));
    format!("total       {time}{cost}")
}

/// Prints an estimate. `lacking` is the available memory, given if it was too small to measure updates.
pub fn print_estimate(args: &Args, e: &Estimate, lacking: Option<u64>) -> Result<()> {
    let mut text = format!(
        "task        {}\nparameters  {}\nupdates     {} ({:.1} epochs of {} samples)\n\
         memory      {}\n{}checkpoint  {}",
        e.task,
        e.parameters,
        e.updates,
        e.epochs,
        e.samples,
        human_bytes(e.memory_bytes as u64),
        e.plan.as_ref().map_or(String::new(), recomputed),
        human_bytes(e.checkpoint_bytes as u64),
    );
    let times = &e.times;
    if let (Some(update), Some(validation), Some(seconds)) =
        (times.seconds_per_update, times.seconds_per_validation, times.seconds)
    {
        text += &format!(
            "\nupdate      {:.1} ms\nvalidation  {validation:.2} s\n{}",
            1e3 * update,
            total(seconds, times.cost)
        );
    }
    if let Some(amp) = &e.amp {
        let [with, without] = [amp.bf16_seconds, amp.f32_seconds].map(|seconds| 1e3 * seconds);
        let gain = match amp.gain() {
            gain if gain < 1.0 => format!("takes {:.1} times as long", gain.recip()),
            gain => format!("{gain:.1} times as fast"),
        };
        text += &format!(
            "\namp         {with:.1} ms an update with training.amp ({}), {without:.1} ms without: {gain}",
            amp.instructions
        );
    }
    if let Some(available) = lacking {
        let available = human_bytes(available);
        text += &format!(
            "\ntotal       not measured: does not fit into the {available} of available memory"
        );
    }
    Out::stdout(args.output).item(e, text)
}

/// Prints an estimate for GPUs that are not here.
pub fn print_absent(args: &Args, e: &AbsentEstimate) -> Result<()> {
    let bytes = |bytes: f64| human_bytes(bytes as u64);
    let fits = if e.memory_bytes <= e.available_bytes { "fits into" } else { "does not fit into" };
    let mut text = format!(
        "on          {}\nparameters  {}\nupdates     {}\nmemory      {} on each, {fits} {}",
        e.on,
        e.parameters,
        e.updates,
        bytes(e.memory_bytes),
        bytes(e.available_bytes),
    );
    for (name, part) in e.memory.each().into_iter().filter(|(_, part)| *part > 0.0) {
        text += &format!("\n  {name:14} {}", bytes(part));
        for (part, share) in e.memory.activations_by_part.iter().filter(|_| name == "activations") {
            text += &format!("\n    {part:12} {}", bytes(share.as_f64().unwrap_or(0.0)));
        }
    }
    text += &format!("\noperations  {:.3e} an update and GPU", e.flops);
    if let (Some(update), Some(products), Some(sums), Some(seconds)) =
        (e.seconds_per_update, e.products, e.communication, e.seconds)
    {
        text += &format!(
            "\nupdate      {:.1} ms ({:.0} % products, {:.0} % sums over GPUs)\n{}",
            1e3 * update,
            100.0 * products,
            100.0 * sums,
            total(seconds, e.cost)
        );
    }
    Out::stdout(args.output).item(e, text)
}
