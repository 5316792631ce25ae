//! Generates the man page (section 1) of a program from its clap definition.
//!
//! clap_mangen writes name, description and options; this module adds the synopsis, a subsection for every subcommand,
//! and the sections in `after_long_help`:
//!
//! ```text
//! EXAMPLES                      a line in capitals at the left edge starts a section
//!   How long is left:           two blanks: text; an empty line starts a paragraph
//!     $ timekeep left           four blanks: verbatim (commands and their output)
//!   75   run me again           two blanks, a term, two or more blanks: a list
//!        and what I mean        six or more blanks in a list: continues the item
//! ```

use clap::Command;
use clap_mangen::Man;

use crate::{Error, Result};

/// Date in the page footer: the release date, so that the page does not depend on the build machine.
const DATE: &str = "2026-11-20";

const EXIT_STATUS: &str = "
EXIT STATUS
  0   The work is done.
  2   The command line is wrong.
  65  The data is bad.
  66  An input is missing or unreadable.
  70  A fault of the program: please report it.
  73  An output cannot be created.
  74  Reading or writing failed midway.
  75  Stopped early; run the same command again.
  78  The configuration is wrong.
  1   Any other failure.
";

/// Returns the man page as roff text; EXIT STATUS and SEE ALSO are added if the program has none of its own.
pub fn page(command: &Command) -> Result<String> {
    let mut command = command.clone().disable_help_subcommand(true);
    command.build();
    let name = command.get_name().to_string();
    let man = Man::new(with_own_description(&command))
        .title(name.to_uppercase())
        .date(DATE)
        .source(concat!("longhaul ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    let mut page = piece(|text| man.render_title(text))?;
    page += &piece(|text| man.render_name_section(text))?;
    page += &format!(".SH SYNOPSIS\n{}", synopsis(&command));
    page += &piece(|text| man.render_description_section(text))?;
    page += &piece(|text| man.render_options_section(text))?;
    if command.has_subcommands() {
        page += ".SH COMMANDS\n";
        for subcommand in shown(&command) {
            page += &subsection(subcommand)?;
        }
    }
    let mut manual = command.get_after_long_help().map(|text| text.to_string()).unwrap_or_default();
    if !has_section(&manual, "EXIT STATUS") {
        manual.push_str(EXIT_STATUS);
    }
    if !has_section(&manual, "SEE ALSO") {
        manual.push_str("\nSEE ALSO\n  longhaul(7), longhaul-config(5)\n");
    }
    page += &sections(&manual);
    Ok(tidy(&page))
}

/// Returns a `.SS` subsection with the synopsis, description and options of a subcommand, or the subsections of its own
/// subcommands.
fn subsection(command: &Command) -> Result<String> {
    if command.has_subcommands() {
        return shown(command).map(subsection).collect();
    }
    let man = Man::new(with_own_description(command));
    let heading = command.get_bin_name().unwrap_or(command.get_name());
    let mut text = format!(".SS {}\n", escape(heading));
    text += &synopsis(command);
    text += ".PP\n";
    text += &without_head(&piece(|text| man.render_description_section(text))?);
    text += &without_head(&piece(|text| man.render_options_section(text))?);
    if let Some(manual) = command.get_after_long_help() {
        text += ".PP\n";
        text += &sections(&manual.to_string());
    }
    Ok(text)
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set())
}

/// Returns the usage line; for a command with subcommands, the usage lines of all of them.
fn synopsis(command: &Command) -> String {
    let lines: Vec<String> = shown(command).map(synopsis).collect();
    if !lines.is_empty() {
        return lines.join(".br\n");
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let name = command.get_bin_name().unwrap_or(command.get_name());
    format!("\\fB{}\\fR{}\n", escape(name), escape(usage.strip_prefix(name).unwrap_or(usage)))
}

/// Removes the first paragraph of the long description, which already appears in NAME or the heading.
fn with_own_description(command: &Command) -> Command {
    let short = command.get_about().map(|text| text.to_string()).unwrap_or_default();
    let long = command.get_long_about().map(|text| text.to_string()).unwrap_or_default();
    match long.strip_prefix(&short).map(str::trim_start) {
        Some(rest) if !rest.is_empty() => command.clone().long_about(rest.to_string()),
        _ => command.clone(),
    }
}

fn piece(render: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>) -> Result<String> {
    let mut bytes = Vec::new();
    render(&mut bytes).map_err(|cause| Error::bug(format!("manual page: {cause}")))?;
    String::from_utf8(bytes).map_err(|cause| Error::bug(format!("manual page: {cause}")))
}

/// Removes `.SH` lines and the preamble in front of them.
fn without_head(section: &str) -> String {
    let body = section.split_once(".SH ").map(|(_, rest)| rest).unwrap_or(section);
    let lines = body.lines().skip(1).filter(|line| !line.starts_with(".SH "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn is_heading(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_uppercase())
        && line.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
}

fn has_section(text: &str, heading: &str) -> bool {
    text.lines().any(|line| line == heading)
}

/// Converts the sections of an `after_long_help` to roff.
fn sections(text: &str) -> String {
    let mut roff = String::new();
    let (mut literal, mut in_item) = (false, false);
    for line in text.lines() {
        if in_item && line.starts_with("      ") {
            roff += &format!("{}\n", escape(line.trim_start()));
            continue;
        }
        let is_literal = line.starts_with("    ") || (literal && line.trim().is_empty());
        in_item = false;
        if literal != is_literal {
            roff += if is_literal { ".PP\n.RS 4\n.nf\n" } else { ".fi\n.RE\n.PP\n" };
            literal = is_literal;
        }
        if is_heading(line) {
            roff += &format!(".SH {line}\n");
        } else if literal {
            roff += &format!("{}\n", escape(line.trim_start()));
        } else if line.trim().is_empty() {
            roff += ".PP\n";
        } else if let Some((term, about)) = line.trim_start().split_once("  ") {
            roff += &format!(".TP\n\\fB{}\\fR\n{}\n", escape(term), escape(about.trim_start()));
            in_item = true;
        } else {
            roff += &format!("{}\n", escape(line.trim_start()));
        }
    }
    if literal {
        roff += ".fi\n.RE\n";
    }
    roff
}

/// Escapes text for roff: backslashes, hyphens (so that they can be copied as minus signs), quotes and leading dots.
fn escape(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// Removes paragraph macros before or after a heading, duplicate ones, and a second line break; mandoc warns about all
/// of these.
fn tidy(page: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in page.lines().filter(|line| !line.trim().is_empty()) {
        let before = lines.last().copied().unwrap_or("");
        let opens = |line: &str| [".SH", ".SS", ".TP", ".PP"].iter().any(|m| line.starts_with(m));
        let again = line == ".br" && before == ".br";
        if again || line == ".PP" && (opens(before) || before.is_empty()) {
            continue;
        }
        if opens(line) && before == ".PP" {
            lines.pop();
        }
        lines.push(line);
    }
    while lines.last() == Some(&".PP") {
        lines.pop();
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_lists_and_commands() {
        let text = "EXIT STATUS\n  0   Done.\n  75  Again,\n      please.\n\nEXAMPLES\n  Ask:\n    $ x -y 'a'\n    .b\n";
        let expected = "\
.SH EXIT STATUS
.TP
\\fB0\\fR
Done.
.TP
\\fB75\\fR
Again,
please.
.SH EXAMPLES
Ask:
.PP
.RS 4
.nf
$ x \\-y \\(aqa\\(aq
\\&.b
.fi
.RE
";
        assert_eq!(tidy(&sections(text)), expected);
    }

    #[test]
    fn every_page_tells_the_exit_status_once() {
        let own = Command::new("x").about("does").after_long_help("EXIT STATUS\n  9  Odd.\n");
        let plain = Command::new("x").about("does");
        for (command, word) in [(own, "Odd"), (plain, "Stopped early")] {
            let page = page(&command).unwrap();
            assert_eq!(page.matches(".SH EXIT STATUS").count(), 1, "{page}");
            assert!(page.contains(word), "{page}");
        }
    }
}
