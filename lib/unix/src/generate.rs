//! The hidden first option `--generate man|bash|zsh|fish|examples` of every program.
//!
//! It writes the man page, a shell completion, or the commands under EXAMPLES as a shell script, all generated from the
//! clap definition.

use std::ffi::OsString;

use clap::Command;
use clap_complete::Shell;

use crate::cli::Output;
use crate::out::Out;
use crate::{Error, Exit, Result, examples, man};

/// Handles `PROGRAM --generate WHAT`; returns `None` for any other command line.
pub fn asked(command: Command, words: &[OsString]) -> Option<Result<Exit>> {
    if words.get(1)?.to_str()? != "--generate" {
        return None;
    }
    let what = words.get(2).and_then(|word| word.to_str()).unwrap_or("");
    Some(generate(command, what))
}

fn generate(mut command: Command, what: &str) -> Result<Exit> {
    let name = command.get_name().to_string();
    let mut text = Vec::new();
    match what {
        "man" => text = man::page(&command)?.into_bytes(),
        "bash" => clap_complete::generate(Shell::Bash, &mut command, name, &mut text),
        "zsh" => clap_complete::generate(Shell::Zsh, &mut command, name, &mut text),
        "fish" => clap_complete::generate(Shell::Fish, &mut command, name, &mut text),
        "examples" => text = examples::script(&command).into_bytes(),
        _ => return Err(Error::usage("--generate takes one of man, bash, zsh, fish, examples")),
    }
    Out::stdout(Output::default()).raw(&text)?;
    Ok(Exit::Done)
}
