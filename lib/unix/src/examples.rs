//! Extracts the commands shown under EXAMPLES as a script that a test can run.
//!
//! In the `after_long_help` of a program or a subcommand, a line `    $ COMMAND` is a command and lines `    > REST`
//! continue it, like a shell prompt; everything else is prose.

use clap::Command;

const PROMPT: &str = "    $ ";
const CONTINUED: &str = "    > ";

/// Returns all example commands of a program and its subcommands, in the order of the man page.
pub fn script(command: &Command) -> String {
    let mut script = String::new();
    collect(command, &mut script);
    script
}

fn collect(command: &Command, script: &mut String) {
    for subcommand in command.get_subcommands() {
        collect(subcommand, script);
    }
    let text = command.get_after_long_help().map(|text| text.to_string()).unwrap_or_default();
    for line in text.lines() {
        if let Some(line) = line.strip_prefix(PROMPT).or_else(|| line.strip_prefix(CONTINUED)) {
            script.push_str(line);
            script.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_continuations_are_taken() {
        let text =
            "EXAMPLES\n  Say it:\n    $ echo one \\\n    >   two\n    one two\n\n    $ true\n";
        let command = Command::new("x").after_long_help(text);
        assert_eq!(script(&command), "echo one \\\n  two\ntrue\n");
    }
}
