//! Leaderboards: `leaderboard.jsonl`, an append-only file with one row per evaluation.

use super::{Scored, cells, names};
use report::document::{Cell, Document, Table};
use report::evaluation::{Direction, Metric};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use unix::log::{Damaged, append_once, each};
use unix::time::now_utc;
use unix::{Error, Result, text};

/// Default number of metrics shown in a table.
const SHOWN: usize = 6;

/// A row of a leaderboard.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Time at which the row was added, UTC.
    pub time: String,
    /// Label of the row, e.g. `baseline`.
    pub label: String,
    /// Name of the evaluated model or report.
    pub name: String,
    /// Free-text remarks.
    pub notes: Option<String>,
    /// Scores and subject of the evaluation.
    #[serde(flatten)]
    pub scored: Scored,
}

impl Row {
    /// Creates a row for a result with the current time.
    pub fn new(label: &str, name: &str, notes: Option<&str>, scored: Scored) -> Self {
        Self {
            time: now_utc(),
            label: label.into(),
            name: name.into(),
            notes: notes.map(String::from),
            scored,
        }
    }

    /// Whether both rows record the same evaluation with the same scores under the same label.
    fn is_same(&self, other: &Self) -> bool {
        // NaN is null in JSON, so it equals itself.
        let key = |row: &Self| json!([row.label, row.scored.evaluation, row.scored.scores]);
        key(self) == key(other)
    }

    /// Appends the row to a board, which is created if absent. Returns false, and leaves the board unchanged, if it
    /// already has the same row. Errors: as in [`append_once`].
    pub fn append(&self, board: &Path) -> Result<bool> {
        append_once(board, self, |record| parse(record).is_some_and(|row| self.is_same(&row)))
    }
}

fn parse(record: &Map<String, Value>) -> Option<Row> {
    serde_json::from_value(Value::Object(record.clone())).ok()
}

/// A leaderboard.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// Rows in the order in which they were added.
    pub rows: Vec<Row>,
}

impl Board {
    /// Reads a board; an absent file is an empty board if `may_be_absent`. Damaged lines and rows of an earlier version
    /// are skipped with a warning, and duplicate rows that two processes added concurrently are skipped silently.
    /// Errors: 66, 74.
    pub fn read(path: &Path, may_be_absent: bool) -> Result<Self> {
        let mut board = Self::default();
        if may_be_absent && fs::symlink_metadata(path).is_err() {
            return Ok(board);
        }
        let (mut earlier, mut foreign) = (0, 0);
        let damaged: Damaged = each(path, |record| match parse(&record) {
            Some(row) if board.rows.iter().any(|other| other.is_same(&row)) => {}
            Some(row) => board.rows.push(row),
            None if record.contains_key("metrics") => earlier += 1,
            None => foreign += 1,
        })?;
        damaged.tell(path);
        if earlier > 0 {
            unix::warn!(
                "{}: skipped {earlier} rows of an earlier version; to add them again, score their models with evaluate \
                 score, and then use evaluate leaderboard add",
                path.display()
            );
        }
        if foreign > 0 {
            unix::warn!("{}: skipped {foreign} records that are not rows", path.display());
        }
        Ok(board)
    }

    /// Groups the rows by protocol, in the order of their first rows. Shows `metrics` and sorts rows by the first of
    /// them; if `metrics` is empty, by the primary metric of the first row.
    pub fn rankings(&self, metrics: &[String]) -> Vec<Ranking<'_>> {
        let mut groups: Vec<Vec<&Row>> = Vec::new();
        for row in &self.rows {
            let protocol = &row.scored.subject.protocol;
            let same = |group: &&mut Vec<&Row>| group[0].scored.subject.protocol == *protocol;
            match groups.iter_mut().find(same) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        groups.into_iter().map(|rows| Ranking::of(rows, metrics)).collect()
    }

    /// Creates a document with one table per protocol.
    pub fn document(&self, metrics: &[String]) -> Document {
        let mut document = Document::new("Leaderboard");
        document.paragraph("Results of different protocols are in different tables.");
        for (number, ranking) in self.rankings(metrics).iter().enumerate() {
            document.heading(format!("Protocol {}", number + 1));
            ranking.add_to(&mut document);
        }
        document
    }

    /// Formats all rows as CSV: fixed columns, then the protocol fields, then the metrics of all rows with their
    /// intervals.
    pub fn csv(&self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut write = |cells: Vec<String>| writer.write_record(cells).map_err(Error::bug);
        let protocol = |row: &Row| row.scored.subject.protocol.clone();
        let protocols: Vec<_> = self.rows.iter().map(protocol).collect();
        let numbers: Vec<_> = self.rows.iter().map(|row| row.scored.scores.numbers('.')).collect();
        let keys = names(protocols.iter().flat_map(Map::keys));
        let metrics = names(numbers.iter().flat_map(|numbers| numbers.keys()));
        let fixed = ["time", "label", "name", "notes", "task", "evaluation"];
        write(
            fixed
                .iter()
                .map(|name| name.to_string())
                .chain(keys.clone())
                .chain(metrics.clone())
                .collect(),
        )?;
        for ((row, protocol), numbers) in self.rows.iter().zip(&protocols).zip(&numbers) {
            let notes = row.notes.clone().unwrap_or_default();
            let Scored { evaluation, subject, .. } = &row.scored;
            let fixed = [&row.time, &row.label, &row.name, &notes, &subject.task, evaluation];
            let own = keys.iter().map(|key| plain(protocol.get(key)));
            let measured = metrics
                .iter()
                .map(|name| numbers.get(name).map_or(String::new(), |value| format!("{value:?}")));
            write(fixed.map(String::clone).into_iter().chain(own).chain(measured).collect())?;
        }
        writer.into_inner().map_err(Error::bug)
    }
}

/// Rows with the same protocol, best first; rows where the metric is missing or NaN come last.
#[derive(Clone, Debug)]
pub struct Ranking<'b> {
    /// Metrics shown; rows are sorted by the first one.
    pub metrics: Vec<String>,
    /// Rows, best first.
    pub rows: Vec<&'b Row>,
}

impl<'b> Ranking<'b> {
    fn of(rows: Vec<&'b Row>, metrics: &[String]) -> Self {
        let metrics = match metrics {
            [] => shown(&rows),
            chosen => chosen.to_vec(),
        };
        let mut ranking = Self { metrics, rows };
        let (first, direction) = (&ranking.metrics[0], ranking.direction(&ranking.metrics[0]));
        let order = |row: &&Row| row.scored.order(first, direction.unwrap_or_default());
        ranking.rows.sort_by(|a, b| order(a).total_cmp(&order(b)));
        ranking
    }

    /// Direction in which a metric improves; None if no row specifies it.
    fn direction(&self, metric: &str) -> Option<Direction> {
        self.rows.iter().find_map(|row| row.scored.metric(metric)?.direction)
    }

    /// Rank of the row at index `at`, counted from 1; None if its metric is missing or not finite.
    pub fn rank(&self, at: usize) -> Option<usize> {
        let found = self.rows.get(at)?.scored.metric(&self.metrics[0])?;
        found.value.is_finite().then_some(at + 1)
    }

    fn add_to(&self, document: &mut Document) {
        let (rows, metrics) = (&self.rows, &self.metrics);
        let order = match self.direction(&metrics[0]).unwrap_or_default() {
            Direction::Minimize => "lowest",
            Direction::Maximize => "highest",
        };
        let subject = &rows[0].scored.subject;
        let first = text::line(&metrics[0]);
        document
            .paragraph(format!("{}. Sorted by {first}, the {order} first.", subject.describe()));
        let fixed = ["rank", "label", "name"].map(String::from).into_iter();
        let last = ["parameters", "added", "notes"].map(String::from);
        let names = metrics.iter().map(|metric| text::line(metric));
        let mut table = Table::new(fixed.chain(names).chain(last));
        let column = |metric: &String| {
            let found: Vec<Option<&Metric>> =
                rows.iter().map(|row| row.scored.metric(metric)).collect();
            cells(&found, self.direction(metric))
        };
        let columns: Vec<Vec<Cell>> = metrics.iter().map(column).collect();
        for (at, row) in rows.iter().enumerate() {
            let rank = self.rank(at).map_or("–".into(), |rank| rank.to_string());
            let subject = &row.scored.subject;
            let model = subject.models.get(&subject.task);
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
}

/// Returns the primary metric of the first row, then the same metric for the other methods.
fn shown(rows: &[&Row]) -> Vec<String> {
    let metric = &rows[0].scored.subject.metric;
    let of_others = rows.iter().flat_map(|row| {
        let others = row.scored.scores.methods.iter().skip(1);
        others
            .filter(|(_, own)| own.contains_key(metric))
            .map(|(name, _)| format!("{name}.{metric}"))
    });
    let all: Vec<String> = std::iter::once(metric.clone()).chain(of_others).collect();
    let mut names = names(all.iter());
    names.truncate(SHOWN);
    names
}

/// Formats a value for CSV: list elements are separated by spaces.
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

#[cfg(test)]
mod tests {
    use super::super::examples::result;
    use super::*;

    fn row(name: &str, error: f64, score: f64) -> Row {
        Row::new("x", name, None, Scored::from(result(error, score)))
    }

    fn texts(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    #[test]
    fn rows_are_kept_and_ranked_in_the_direction_of_the_metric() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("board.jsonl");
        let rows = [row("a", 0.5, 0.9), row("nan", f64::NAN, f64::NAN), row("b", 0.25, 0.75)];
        for row in &rows {
            assert!(row.append(&path).unwrap() && !row.append(&path).unwrap());
        }
        let board = Board::read(&path, false).unwrap();
        for (metric, names) in [("error", ["b", "a", "nan"]), ("f1", ["a", "b", "nan"])] {
            let rankings = board.rankings(&texts(&[metric]));
            assert_eq!(rankings.len(), 1);
            assert_eq!(rankings[0].rows.iter().map(|row| &*row.name).collect::<Vec<_>>(), names);
            assert_eq!([0, 1, 2].map(|at| rankings[0].rank(at)), [Some(1), Some(2), None]);
        }
        assert_eq!(board.rankings(&[])[0].metrics, ["error", "naive.error"]);
        let text = board.document(&[]).text();
        assert!(text.contains("12 items; data 0123456789ab. Sorted by error, the lowest first."));
        assert!(text.contains("0.2500 [0.2000, 0.3000]*"), "{text}");
        let text = board.document(&texts(&["f1", "count"])).text();
        assert!(
            text.contains("the highest first") && text.contains("0.9000 [0.8500, 0.9500]*"),
            "{text}"
        );
        let csv = String::from_utf8(board.csv().unwrap()).unwrap();
        let header = "data_hash,split,tool.error,tool.error_low,tool.error_high,tool.f1,";
        assert!(csv.lines().next().unwrap().contains(header), "{csv}");
        assert!(csv.lines().nth(1).unwrap().contains("test,0.5,0.45,0.55,0.9,"), "{csv}");
        assert!(csv.lines().nth(2).unwrap().contains("test,NaN,,,NaN,"), "{csv}");
    }

    #[test]
    fn other_protocols_and_rows_of_an_earlier_version_are_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("board.jsonl");
        let mut other = result(0.125, 0.5);
        other.subject.protocol["split"] = "validation".into();
        row("a", 0.5, 0.9).append(&path).unwrap();
        Row::new("x", "b", None, Scored::from(other)).append(&path).unwrap();
        let earlier =
            json!({"time": "2026-01-01T00:00:00Z", "label": "x", "name": "old", "metrics": {}});
        append_once(&path, &earlier, |record| record.contains_key("metrics")).unwrap();
        let board = Board::read(&path, false).unwrap();
        let groups: Vec<usize> = board.rankings(&[]).iter().map(|group| group.rows.len()).collect();
        assert_eq!(groups, [1, 1]);
    }
}
