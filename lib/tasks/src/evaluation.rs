//! The interface through which `evaluate score` and `evaluate predict` use the trained models of any task. A task adds
//! its own options to the shared ones.

use crate::trained::Opener;
use crate::{Entry, TASKS};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use data::split::SplitName;
use dist::Collective;
use learn::evaluate::{Evaluation, JsonLines, Prediction};
use learn::trained::Parts;
use std::ffi::OsString;
use std::path::Path;
use unix::cli::Output;
use unix::out::Out;
use unix::{Error, Result};

/// Arguments of a task's `open` for `evaluate score`.
pub struct ScoreRequest<'a> {
    /// The checkpoint.
    pub parts: &'a Parts,
    /// Opens the model and the models that it depends on.
    pub opener: &'a Opener,
    /// The data: a split manifest, or a folder of tokens.
    pub data: &'a Path,
    /// The split.
    pub split: SplitName,
    /// The options of the task.
    pub options: &'a ArgMatches,
}

/// Arguments of a task's `open` for `evaluate predict`.
pub struct PredictRequest<'a> {
    /// The checkpoint.
    pub parts: &'a Parts,
    /// Opens the model.
    pub opener: &'a Opener,
    /// The input file, `-` for stdin; None if not given.
    pub inputs: Option<&'a Path>,
    /// The output file, `-` for stdout.
    pub to: &'a Path,
    /// Whether to replace an existing file.
    pub replace: bool,
    /// The ranks that share the work; all of them can access the file system of `to`.
    pub ranks: &'a dyn Collective,
    /// The options of the task.
    pub options: &'a ArgMatches,
}

impl PredictRequest<'_> {
    /// Opens the output as JSON lines, on rank 0. `identity` identifies inputs and options, so that an interrupted command
    /// resumes; None for stdin, which cannot be read again.
    ///
    /// Errors: 73, 75; those of `identity`.
    pub fn lines(&self, identity: impl FnOnce() -> Result<Option<String>>) -> Result<JsonLines> {
        if self.to == Path::new("-") {
            return Ok(JsonLines::Pipe(Out::stdout(Output::default())));
        }
        let (model, amp) = (&self.parts.origin.blake3, self.opener.mode.amp);
        let amp = if amp { " amp" } else { "" };
        let identity = identity()?.map(|own| format!("{own} {model}{amp}"));
        JsonLines::open(self.to, self.replace, identity.as_deref())
    }
}

/// A task's part of a command. `OPEN` is the function that opens an evaluation or a prediction.
#[derive(Clone, Copy)]
pub struct Verb<OPEN> {
    /// Adds the options of the task.
    pub options: fn(Command) -> Command,
    /// Restores the model and opens its data.
    pub open: OPEN,
}

/// A task's part of `evaluate score`.
pub type Score = Verb<fn(&ScoreRequest) -> Result<Box<dyn Evaluation>>>;
/// A task's part of `evaluate predict`.
pub type Predict = Verb<fn(&PredictRequest) -> Result<Box<dyn Prediction>>>;

/// Returns the task of a checkpoint. Errors: 65 for an unknown task.
pub fn entry(parts: &Parts) -> Result<&'static Entry> {
    TASKS.iter().find(|entry| entry.spec.name == parts.task).ok_or_else(|| {
        let (checkpoint, task) = (parts.origin.checkpoint.display(), &parts.task);
        Error::data(format!("{checkpoint}: unknown task {task}"))
    })
}

/// A command with task-specific options: `score` or `predict`.
pub trait TaskCommand {
    /// Name of the command.
    const NAME: &'static str;
    /// Adds the options of a task.
    fn options(entry: &Entry) -> fn(Command) -> Command;
}

/// The command `evaluate score`.
#[derive(Clone, Copy, Debug)]
pub struct ScoreCommand;

/// The command `evaluate predict`.
#[derive(Clone, Copy, Debug)]
pub struct PredictCommand;

impl TaskCommand for ScoreCommand {
    const NAME: &'static str = "score";

    fn options(entry: &Entry) -> fn(Command) -> Command {
        entry.score.options
    }
}

impl TaskCommand for PredictCommand {
    const NAME: &'static str = "predict";

    fn options(entry: &Entry) -> fn(Command) -> Command {
        entry.predict.options
    }
}

/// Returns the options that a task adds to command `W`.
fn task_options<W: TaskCommand>(entry: &Entry) -> Vec<Arg> {
    W::options(entry)(Command::new("")).get_arguments().cloned().collect()
}

/// The task-specific options on a command line, for `#[command(flatten)]`. The parser accepts the options of every
/// task, since the task is known only once RUN is parsed; [`TaskOptions::of`] rejects options of other tasks.
#[derive(Clone, Debug)]
pub struct TaskOptions<W> {
    found: ArgMatches,
    command: std::marker::PhantomData<W>,
}

impl<W: TaskCommand> TaskOptions<W> {
    /// Returns the options of `entry`. Errors: 2 if an option of another task is given.
    pub fn of(&self, entry: &Entry) -> Result<&ArgMatches> {
        let (own, task) = (task_options::<W>(entry), entry.spec.name);
        let is_own = |arg: &Arg| own.iter().any(|own| own.get_id() == arg.get_id());
        for other in TASKS.iter().flat_map(task_options::<W>).filter(|arg| !is_own(arg)) {
            if is_given(&self.found, other.get_id().as_str()) {
                return Err(Error::usage(format!(
                    "--{}: not an option of task {task}; see evaluate {} RUN --help",
                    other.get_long().unwrap_or_default(),
                    W::NAME
                )));
            }
        }
        Ok(&self.found)
    }
}

/// Returns whether option `id` is on the command line.
fn is_given(found: &ArgMatches, id: &str) -> bool {
    found.try_contains_id(id).is_ok_and(|there| there)
        && found.value_source(id) == Some(ValueSource::CommandLine)
}

/// Refuses (2) options that have no effect on the data of a model; `why` completes `--OPTION: `.
pub(crate) fn refuse(found: &ArgMatches, options: fn(Command) -> Command, why: &str) -> Result<()> {
    let command = options(Command::new(""));
    let given = command.get_arguments().filter(|arg| is_given(found, arg.get_id().as_str()));
    let given: Vec<String> =
        given.map(|arg| format!("--{}", arg.get_long().unwrap_or_default())).collect();
    match given.is_empty() {
        true => Ok(()),
        false => Err(Error::usage(format!("{}: {why}", given.join(", ")))),
    }
}

impl<W: TaskCommand> FromArgMatches for TaskOptions<W> {
    fn from_arg_matches(found: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self { found: found.clone(), command: std::marker::PhantomData })
    }

    fn update_from_arg_matches(&mut self, found: &ArgMatches) -> Result<(), clap::Error> {
        self.found = found.clone();
        Ok(())
    }
}

impl<W: TaskCommand> clap::Args for TaskOptions<W> {
    /// Adds the options of all tasks, under headings that name the tasks. Where tasks describe an option differently,
    /// all descriptions are listed.
    fn augment_args(mut command: Command) -> Command {
        let mut all: Vec<(Arg, Vec<&str>)> = Vec::new();
        for entry in &TASKS {
            for arg in task_options::<W>(entry) {
                let name = entry.spec.name;
                let Some((known, tasks)) =
                    all.iter_mut().find(|(known, _)| known.get_id() == arg.get_id())
                else {
                    all.push((arg, vec![name]));
                    continue;
                };
                tasks.push(name);
                let text = |arg: &Arg| arg.get_help().map(ToString::to_string).unwrap_or_default();
                let (found, own) = (text(known), text(&arg));
                if !found.contains(&own) {
                    let default = arg.get_default_values().iter().map(|own| own.to_string_lossy());
                    let default =
                        default.map(|own| format!(" [default: {own}]")).collect::<String>();
                    *known = known.clone().help(format!("{found}. {name}: {own}{default}"));
                }
            }
        }
        for (arg, tasks) in all {
            command = command.arg(arg.help_heading(format!("Options of {}", tasks.join(", "))));
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Hides the options of `score` and `predict` that do not apply to the task of RUN in `words`, if there is a RUN.
pub fn hide_inapplicable_options(command: Command, words: &[OsString]) -> Command {
    let verb = |command: Command, name: &str| {
        let lenient = command.clone().ignore_errors(true).disable_help_flag(true);
        let lenient = lenient.mut_subcommands(|own| own.disable_help_flag(true));
        let found = lenient.try_get_matches_from(words).ok()?;
        let own = found.subcommand_matches(name)?;
        let run = own.try_get_one::<std::path::PathBuf>("run").ok()??;
        let newest = learn::checkpoint::one_in(run).ok()?;
        learn::checkpoint::manifest_of(&newest).ok().map(|manifest| manifest.task)
    };
    let mut command = command;
    for (name, options) in [
        (ScoreCommand::NAME, task_options::<ScoreCommand> as fn(&Entry) -> Vec<Arg>),
        (PredictCommand::NAME, task_options::<PredictCommand>),
    ] {
        let Some(task) = verb(command.clone(), name) else { continue };
        let Some(entry) = TASKS.iter().find(|entry| entry.spec.name == task) else { continue };
        let own = options(entry);
        for arg in own.clone() {
            // Another task may have an option with the same name, but another default.
            let (id, heading) = (arg.get_id().clone(), format!("Options of {task}"));
            command = command
                .mut_subcommand(name, |verb| verb.mut_arg(id, |_| arg.help_heading(heading)));
        }
        for other in TASKS.iter().flat_map(options) {
            if !own.iter().any(|own| own.get_id() == other.get_id()) {
                let id = other.get_id().clone();
                command =
                    command.mut_subcommand(name, |verb| verb.mut_arg(id, |arg| arg.hide(true)));
            }
        }
    }
    command
}
