//! Trains, checks or estimates a run, on one or several ranks.

use super::{Args, look};
use dist::{Collective, Solo};
use learn::task::ConfiguredTask;
use learn::train::{self, MemoryAdaptation, Resume, TrainJob};
use std::path::Path;
use tasks::Entry;
use unix::{Exit, Result};

/// Trains, checks or estimates a run.
pub fn run(args: &Args, task: &Entry, folder: &Path) -> Result<Exit> {
    if !args.check && !args.dry_run {
        // From here on, a signal requests an orderly stop, even while input files are being read.
        unix::signal::Signals::install()?;
    }
    let environment = |name: &str| std::env::var(name).ok();
    let loaded = (task.load)(&args.config, &args.overrides, &environment);
    let alone = args.check || args.dry_run;
    let run = folder.to_path_buf();
    let ranks = match alone {
        true => Box::new(Solo),
        false => dist::open(move || train::lost_a_rank(&run))?,
    };
    let name = task.spec.name;
    run_on(args, folder, name, loaded, &*ranks).map_err(|error| ranks.abort(error))
}

fn run_on(
    args: &Args,
    folder: &Path,
    name: &str,
    loaded: Result<ConfiguredTask>,
    ranks: &dyn Collective,
) -> Result<Exit> {
    let alone = args.check || args.dry_run;
    let device = || args.device.of_rank(ranks.local_rank()).open();
    let own = loaded.and_then(|loaded| Ok((loaded, device()?))).inspect_err(|error| {
        if !alone && ranks.rank() == 0 {
            train::startup_failed(folder, name, error);
        }
    });
    let (task, (device, why)) = match train::all_ok(ranks, own)? {
        Ok(own) => own,
        Err(error) => {
            ranks.close()?;
            return Ok(error.exit);
        }
    };
    let threads = match task.config.training.threads {
        None if ranks.size() > 1 => Some(dist::threads(ranks)?),
        threads => threads,
    };
    tensor::parallel::start_threads(threads)?;
    let job = TrainJob {
        task,
        run: folder.to_path_buf(),
        resume: match args.resume.as_str() {
            "auto" => Resume::Auto,
            "never" => Resume::Never,
            path => Resume::From(Path::new(path).to_path_buf()),
        },
        accept_changes: args.accept_config_change,
        retry: args.retry,
        device,
        why_device: why,
        ranks,
        memory: MemoryAdaptation::default(),
    };
    if args.check {
        return look::check(args, &job);
    }
    if let Some(on) = args.on {
        let task = &job.task;
        let estimate = tensor::parallel::inside(|| train::estimate_absent(task, on))?;
        return look::print_absent(args, &estimate).map(|()| Exit::Done);
    }
    if args.dry_run {
        let estimate = train::dry_run(&job.task, device, &job.why_device)?;
        let lacking = estimate.lacks_memory(device).filter(|_| estimate.times.seconds.is_none());
        return look::print_estimate(args, &estimate, lacking).map(|()| Exit::Done);
    }
    let exit = train::train(job)?;
    ranks.close()?;
    Ok(exit)
}
