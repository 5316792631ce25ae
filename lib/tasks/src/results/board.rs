//! Leaderboards: `leaderboard.jsonl`, an append-only file with one row per evaluation.

use super::{Report, Scored, cells, is_error, names};
use report::document::{Cell, Document, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs;
use std::path::Path;
use unix::log::{Damaged, append_once, each};
use unix::time::now_utc;
use unix::{Error, Result, text};

/// A row of a leaderboard.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// When it was added, UTC.
    pub time: String,
    /// What the row is, e.g. `baseline`.
    pub label: String,
    /// Name of the evaluated model or report.
    pub name: String,
    /// Remarks.
    pub notes: Option<String>,
    /// The result.
    #[serde(flatten)]
    pub scored: Scored,
}

impl Row {
    /// A row for a report, now.
    pub fn new(label: &str, name: &str, notes: Option<&str>, report: &Report) -> Self {
        Self {
            time: now_utc(),
            label: label.into(),
            name: name.into(),
            notes: notes.map(String::from),
            scored: report.scored.clone(),
        }
    }

    /// Whether it records the same evaluation under the same label.
    fn is_same(&self, other: &Self) -> bool {
        let key = |row: &Self| (row.label.clone(), row.scored.evaluation.clone());
        key(self) == key(other) && self.scored.metrics == other.scored.metrics
    }

    /// Appends it to a board, which is created if absent. A board that has the same row already is not changed; returns
    /// whether it was. Errors: those of [`append_once`].
    pub fn append(&self, board: &Path) -> Result<bool> {
        append_once(board, self, |record| parse(record).is_some_and(|row| self.is_same(&row)))
    }
}

fn parse(record: &Map<String, Value>) -> Option<Row> {
    serde_json::from_value(Value::Object(record.clone())).ok()
}

/// The rows of a leaderboard.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// The rows in the order in which they were added.
    pub rows: Vec<Row>,
}

impl Board {
    /// Reads a board; an absent one is empty if `may_be_absent`. Damaged lines, and rows that two processes added at
    /// once, are skipped; the former with a warning. Errors: 66, 74.
    pub fn read(path: &Path, may_be_absent: bool) -> Result<Self> {
        let mut board = Self::default();
        if may_be_absent && fs::symlink_metadata(path).is_err() {
            return Ok(board);
        }
        let mut foreign = 0;
        let damaged: Damaged = each(path, |record| match parse(&record) {
            Some(row) if board.rows.iter().any(|other| other.is_same(&row)) => {}
            Some(row) => board.rows.push(row),
            None => foreign += 1,
        })?;
        damaged.tell(path);
        if foreign > 0 {
            unix::warn!("{}: skipped {foreign} records that are not rows", path.display());
        }
        Ok(board)
    }

    /// The rows by protocol, in the order of their first rows, each group sorted by `metric`, the lowest first; rows
    /// without the metric, or with NaN, are last.
    pub fn groups(&self, metric: &str) -> Vec<Vec<&Row>> {
        let mut groups: Vec<Vec<&Row>> = Vec::new();
        for row in &self.rows {
            let same = |group: &&mut Vec<&Row>| group[0].scored.protocol == row.scored.protocol;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        let value = |row: &&Row| row.scored.metric(metric).unwrap_or(f64::INFINITY);
        groups.iter_mut().for_each(|group| group.sort_by(|a, b| value(a).total_cmp(&value(b))));
        groups
    }

    /// A table for each protocol, sorted by the first of `metrics`.
    pub fn document(&self, metrics: &[String]) -> Document {
        let mut document = Document::new("Leaderboard");
        let first = metrics.first().map_or("", String::as_str);
        document.paragraph(format!(
            "Sorted by {first}, the lowest first. Results of different protocols are in different tables."
        ));
        for (number, group) in self.groups(first).iter().enumerate() {
            document.heading(format!("Protocol {}", number + 1));
            document.paragraph(format!("{}.", group[0].scored.describe()));
            let fixed = ["rank", "label", "name"].map(String::from).into_iter();
            let last = ["parameters", "added", "notes"].map(String::from);
            let mut table = Table::new(fixed.chain(metrics.iter().cloned()).chain(last));
            let columns: Vec<Vec<Cell>> = (metrics.iter())
                .map(|metric| {
                    let values: Vec<_> = group.iter().map(|r| r.scored.metric(metric)).collect();
                    cells(&values, is_error(metric))
                })
                .collect();
            for (at, row) in group.iter().enumerate() {
                let ranked = row.scored.metric(first).is_some_and(f64::is_finite);
                let rank = if ranked { (at + 1).to_string() } else { "–".into() };
                let model = row.scored.models.get(&row.scored.task);
                let parameters = model.and_then(|model| model["parameters"].as_u64());
                let start = [
                    Cell::number(rank),
                    Cell::text(text::line(&row.label)),
                    Cell::text(text::line(&row.name)),
                ];
                let end = [
                    Cell::number(parameters.map_or(String::new(), |count| count.to_string())),
                    Cell::text(row.time.chars().take(10).collect::<String>()),
                    Cell::text(text::line(row.notes.as_deref().unwrap_or(""))),
                ];
                let measured = columns.iter().map(|column| column[at].clone());
                table.row(start.into_iter().chain(measured).chain(end));
            }
            document.table(table);
        }
        document
    }

    /// All rows as CSV: fixed columns, then the fields of the protocol, then every metric of any row.
    pub fn csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut write = |cells: Vec<String>| writer.write_record(cells).map_err(Error::bug);
        let columns = |of: fn(&Scored) -> &Map<String, Value>| {
            names(self.rows.iter().map(|row| of(&row.scored)))
        };
        let (protocol, metrics) = (columns(|scored| &scored.protocol), columns(|s| &s.metrics));
        let fixed = ["time", "label", "name", "notes", "task", "evaluation"];
        let names = protocol.iter().chain(&metrics).cloned();
        write(fixed.map(String::from).into_iter().chain(names).collect())?;
        for row in &self.rows {
            let scored = &row.scored;
            let notes = row.notes.clone().unwrap_or_default();
            let fixed =
                [&row.time, &row.label, &row.name, &notes, &scored.task, &scored.evaluation];
            let own = protocol.iter().map(|name| plain(scored.protocol.get(name)));
            let measured = metrics.iter().map(|name| match scored.metrics.get(name) {
                Some(Value::Null) => "NaN".into(),
                value => plain(value),
            });
            write(fixed.map(String::clone).into_iter().chain(own).chain(measured).collect())?;
        }
        writer.into_inner().map_err(Error::bug)
    }
}

/// A value in CSV: the elements of a list are separated by blanks.
fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(items)) => {
            items.iter().map(|item| plain(Some(item))).collect::<Vec<_>>().join(" ")
        }
        Some(other) => other.to_string(),
    }
}
