//! `timekeep watch`: shows the state of runs on the terminal.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use report::watch::Watch;
use unix::cli::Output;
use unix::out::Out;
use unix::terminal::{self, Page, Style};
use unix::time::{format_utc, parse_duration};
use unix::{Error, Exit, Result};

/// The arguments of `timekeep watch`.
#[derive(clap::Args)]
pub struct WatchArgs {
    /// Run directories; waits for those that do not exist yet
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// Time between two refreshes
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    interval: Duration,
    /// Print the page once, as when stdout is not a terminal
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    output: Output,
}

fn interval(text: &str) -> Result<Duration> {
    let found = parse_duration(text)?;
    if found < Duration::from_millis(100) {
        return Err(Error::usage("must be at least 100ms"));
    }
    Ok(found)
}

/// Shows the state of runs until the user quits, or once if stdout is not a terminal; then returns the exit status of
/// the first run that cannot be read.
pub fn watch(args: &WatchArgs) -> Result<u8> {
    let mut watch = Watch::new(&args.runs);
    let mut out = Out::stdout(args.output);
    if args.once || out.is_json() || !std::io::stdout().is_terminal() {
        watch.refresh();
        let failed = watch.reports().find_map(|found| Some(found.as_ref().err()?.exit));
        if out.is_json() {
            for found in watch.reports() {
                match found {
                    Ok(report) => out.row(report)?,
                    Err(error) => unix::diagnostics::say_error(error),
                }
            }
        } else {
            let page = watch.page(terminal::size().0, None, Style::stdout());
            out.raw((page.join("\n") + "\n").as_bytes())?;
        }
        return Ok(failed.unwrap_or(Exit::Done) as u8);
    }
    let mut page = Page::open()?;
    loop {
        watch.refresh();
        let (width, height) = terminal::size();
        let style = Style::stdout();
        let time = format_utc(std::time::SystemTime::now());
        let head =
            format!("{}  q quits", time.split('.').next().unwrap_or_default().replace('T', " "));
        let mut lines = vec![head.chars().take(width).collect()];
        lines.extend(watch.page(width, Some(height.saturating_sub(1).max(1)), style));
        page.show(&lines)?;
        if !page.wait(args.interval) {
            return Ok(0);
        }
    }
}
