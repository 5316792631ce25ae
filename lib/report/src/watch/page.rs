//! The page of `timekeep watch`.

use super::{Watch, WatchReport, WatchedRun};
use crate::axis::plain;
use crate::chart::Chart;
use crate::terminal::{ascii, colour, columns, page};
use std::time::Duration;
use unix::terminal::Style;
use unix::time::format_duration;
use unix::timekeep::runs::RunState;
use unix::{Error, Exit, text};

/// SGR codes.
const BOLD: u8 = 1;
const RED: u8 = 31;
const GREEN: u8 = 32;
const YELLOW: u8 = 33;
/// Minimum and maximum height of a chart.
const CHART: (usize, usize) = (9, 24);

impl Watch {
    /// Returns the page as lines of at most `width` characters, in `height` lines, or in as many as it needs.
    pub fn page(&self, width: usize, height: Option<usize>, style: Style) -> Vec<String> {
        let page = Page { width, style, marked: self.runs.len() > 1 };
        let blocks = self.runs.iter().enumerate().map(|(at, run)| page.block(at, run));
        let mut lines = blocks.collect::<Vec<_>>().join(&String::new());
        let room = height.unwrap_or(usize::MAX);
        if lines.len() > room {
            lines = self.runs.iter().enumerate().map(|(at, run)| page.line(at, run)).collect();
        }
        if lines.len() > room {
            let hidden = lines.len() - room + 1;
            lines.truncate(room - 1);
            lines.push(page.cut(&format!("{hidden} more runs; enlarge the window")));
        }
        let free = height.map_or(4 * 18, |height| height.saturating_sub(lines.len() + 1));
        lines.extend(page.charts(&self.charts(), free));
        lines
    }

    /// Creates the charts of the loss and of the monitored metrics.
    fn charts(&self) -> Vec<Chart> {
        let runs: Vec<_> = self.runs.iter().map(|run| (run.name.clone(), &run.history)).collect();
        let mut names = vec!["loss".to_string()];
        for report in self.reports().flatten() {
            let metric =
                report.validation.as_ref().map(|last| format!("validation.{}", last.metric));
            names.extend(metric.filter(|metric| !names.contains(metric)));
        }
        Chart::all(&names, &runs)
    }
}

/// Drawing settings.
struct Page {
    width: usize,
    style: Style,
    /// Whether runs are marked with the colours of their curves.
    marked: bool,
}

impl Page {
    /// Formats a run as a block of lines.
    fn block(&self, at: usize, run: &WatchedRun) -> Vec<String> {
        let report = match &run.found {
            Ok(report) => report,
            Err(error) => return vec![self.head(at, run, "", YELLOW, ""), self.error(error)],
        };
        let state = state(report.run.state);
        let mut facts = Vec::new();
        facts.extend(report.run.host.clone());
        facts.push(format!("attempt {}", report.run.restarts + 1));
        facts.extend(report.run.job.as_ref().map(|job| format!("job {job}")));
        let task = report.run.task.clone().unwrap_or_default();
        let facts = format!("{task}; {}", facts.join(", "));
        let mut lines = vec![self.head(at, run, state.0, state.1, &facts)];
        let note = report.run.row()["note"].as_str().map(str::to_string);
        let rest =
            [Some(self.bar(report, 40)), time_left(report), cost(report), scores(report), note];
        lines.extend(rest.into_iter().flatten().map(|text| self.cut(&format!("  {text}"))));
        let warning =
            |text: &String| self.style.paint(YELLOW, &self.cut(&format!("  warning: {text}")));
        lines.extend(report.warnings.iter().map(warning));
        lines
    }

    /// Formats a run in one line.
    fn line(&self, at: usize, run: &WatchedRun) -> String {
        let report = match &run.found {
            Ok(report) => report,
            Err(error) => return self.head(at, run, "", YELLOW, self.error(error).trim_start()),
        };
        let state = state(report.run.state);
        let left = report.run.eta.map(|eta| format!("{} left", duration(eta)));
        let parts = [Some(self.bar(report, 10)), left, scores(report)];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        self.head(at, run, state.0, state.1, &parts.join("  "))
    }

    /// Formats the first line of a run: name, state and `more`.
    fn head(&self, at: usize, run: &WatchedRun, state: &str, code: u8, more: &str) -> String {
        let mark = match (self.marked, self.style) {
            (false, _) => "",
            (true, Style { unicode: true, .. }) => "● ",
            (true, _) => "* ",
        };
        let mark = if self.style.colour { mark } else { "" };
        let name = self.cut(&text::line(&run.name));
        let used = mark.chars().count() + name.chars().count() + 2;
        let state = self.fit(state, used);
        let more = self.fit(more, used + state.chars().count() + 2);
        let parts = [
            self.style.paint(colour(at), mark) + &self.style.paint(BOLD, &name),
            self.style.paint(code, &state),
            more,
        ];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
    }

    fn error(&self, error: &Error) -> String {
        let waits = if error.exit == Exit::NoInput { "waiting: " } else { "" };
        self.cut(&format!("  {waits}{error}"))
    }

    /// Formats a progress bar and the progress as text.
    fn bar(&self, report: &WatchReport, width: usize) -> String {
        let done = report.run.update;
        let Some(all) = report.run.updates.filter(|all| *all > 0) else {
            return format!("update {done}");
        };
        let part = (done as f64 / all as f64).min(1.0);
        let full = (part * width as f64).floor() as usize;
        let [filled, empty] = if self.style.unicode { ["█", "░"] } else { ["#", "-"] };
        let bar = filled.repeat(full) + &empty.repeat(width - full);
        format!("{bar} {done}/{all} {:.0} %", (100.0 * part).floor())
    }

    /// Cuts text to one line of the page width.
    fn cut(&self, text: &str) -> String {
        self.fit(text, 0)
    }

    /// Cuts text to one line in the width that `used` characters leave.
    fn fit(&self, text: &str, used: usize) -> String {
        let text = text::line(text);
        let text = if self.style.unicode { text } else { ascii(&text) };
        text.chars().take(self.width.saturating_sub(used)).collect()
    }

    /// Draws as many charts as fit into `free` lines, after an empty line.
    fn charts(&self, charts: &[Chart], free: usize) -> Vec<String> {
        let columns = columns(charts.len(), self.width);
        let rows = charts.len().div_ceil(columns).min(free / (CHART.0 + 1));
        if rows == 0 {
            return Vec::new();
        }
        let height = (free / rows - 1).min(CHART.1);
        let shown = &charts[..charts.len().min(rows * columns)];
        let lines = page(shown, self.width, height, self.style);
        std::iter::once(String::new()).chain(lines).take(rows * (height + 1)).collect()
    }
}

fn state(state: RunState) -> (&'static str, u8) {
    match state {
        RunState::New => ("new", YELLOW),
        RunState::Running => ("running", GREEN),
        RunState::Lost => ("lost", RED),
        RunState::Stopped => ("stopped", YELLOW),
        RunState::Finished => ("finished", GREEN),
        RunState::Failed => ("failed", RED),
        RunState::Held => ("held", RED),
    }
}

fn duration(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or("-".into(), format_duration)
}

fn time_left(report: &WatchReport) -> Option<String> {
    let pace = |seconds: f64| match seconds {
        small if small < 0.1 => format!(" at {} ms per update", plain(1000.0 * small)),
        large => format!(" at {} s per update", plain(large)),
    };
    let pace = report.seconds_per_update.map_or(String::new(), pace);
    let left = report.run.eta.map(|eta| format!("{} left{pace}", duration(eta)));
    let limit = report.run.limit.map(|limit| {
        let is_short = report.run.eta.is_some_and(|eta| eta > limit as f64);
        let more = if is_short { ", before the run ends" } else { "" };
        format!("time limit in {}{more}", duration(limit as f64))
    });
    let parts: Vec<String> = left.into_iter().chain(limit).collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn cost(report: &WatchReport) -> Option<String> {
    let run = &report.run;
    let total = report.estimated_hours.filter(|_| run.state != RunState::Finished);
    let total =
        |text: String| if total.is_some() { format!(" of about {text}") } else { String::new() };
    let hours = report.estimated_hours.unwrap_or_default();
    let time = format!("time {}{}", duration(3600.0 * run.hours), total(duration(3600.0 * hours)));
    let devices = match run.device_hours > run.hours {
        true => format!(" ({} device hours)", plain(run.device_hours)),
        false => String::new(),
    };
    let money = report.cost.map_or(String::new(), |cost| {
        let all = report.estimated_cost.unwrap_or_default();
        format!("; cost {cost:.2}{}", total(format!("{all:.2}")))
    });
    (run.hours > 0.0).then(|| format!("{time}{devices}{money}"))
}

fn scores(report: &WatchReport) -> Option<String> {
    let loss = report.loss.map(|loss| format!("loss {}", plain(loss)));
    let last = report
        .validation
        .as_ref()
        .map(|last| format!("{} {} at update {}", last.metric, plain(last.value), last.update));
    let best = report.run.best.as_ref().and_then(|best| {
        let (value, update) = (best.get("value")?.as_f64()?, best.get("update")?.as_u64()?);
        Some(format!("best {} at update {update}", plain(value)))
    });
    let parts: Vec<String> = [loss, last, best].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
