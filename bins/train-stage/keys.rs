//! `train-stage TASK --help`: lists the configuration keys of a task.

use clap::Parser;
use unix::cli::Output;
use unix::config::Key;
use unix::out::Out;
use unix::{Exit, Result};

/// `train-stage TASK --help`, which lists the configuration keys of the task.
#[derive(Parser)]
#[command(name = "train-stage", disable_help_flag = true)]
pub struct KeysOf {
    #[arg(value_parser = super::names())]
    task: String,
    #[arg(short, long)]
    help: bool,
}

/// Prints the configuration keys.
pub fn list_keys(args: KeysOf) -> Result<Exit> {
    let Some(task) = super::find_task(&args.task).filter(|_| args.help) else {
        return Ok(Exit::Usage);
    };
    let mut text = format!("train-stage {}: {}\n\n", task.spec.name, task.about);
    for Key { path, takes, default, required, doc } in (task.keys)() {
        let absent = match (required, default) {
            (true, _) => "required".to_string(),
            (false, default) => format!("default {}", default.unwrap_or_default()),
        };
        text += &format!("{path}  {takes}; {absent}\n    {}\n", doc.replace('\n', " "));
    }
    Out::stdout(Output::default()).raw(text.as_bytes()).map(|()| Exit::Done)
}
