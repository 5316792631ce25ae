//! The history of a run: the values in its log, by update. All code that draws or analyses a log uses this module.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};
use unix::log::Follow;
use unix::time::parse_utc;
use unix::{Result, text};

/// Pairs of update and value.
pub type Series = Vec<(f64, f64)>;

/// Prefix of validation metrics.
const VALIDATION: &str = "validation.";
/// Metrics of updates: both metric names and log fields.
const OF_UPDATES: [&str; 5] = ["loss", "learning_rate", "gradient_norm", "epoch", "cost"];
/// Samples per second, computed from the seconds and the total number of samples in the log.
const THROUGHPUT: &str = "throughput";
/// Fields of a validation that are not metrics.
const NOT_METRICS: [&str; 3] = ["update", "attempt", "seconds"];

/// The current content of a log, without superseded records. Each record keeps its numbers by name; null, for a number
/// that is not finite, is NaN.
#[derive(Debug)]
pub struct History {
    log: Follow<Record>,
    names: Names,
}

/// A record of the log.
#[derive(Debug)]
struct Record {
    kind: NameIndex,
    /// Seconds since 1970; NaN if unknown.
    time: f64,
    values: Box<[(NameIndex, f64)]>,
    /// The text of a warning, the reason of a stop, or the task of a start.
    note: Option<Box<str>>,
}

/// Index of a name in [`Names`].
type NameIndex = u16;

#[derive(Debug, Default)]
struct Names {
    /// The names, in order of first occurrence.
    list: Vec<String>,
    numbers: BTreeMap<String, NameIndex>,
}

impl Names {
    fn find(&self, name: &str) -> Option<NameIndex> {
        self.numbers.get(name).copied()
    }

    /// Adds a name if it is new; None if there are too many names.
    fn add(&mut self, name: &str) -> Option<NameIndex> {
        if let Some(found) = self.find(name) {
            return Some(found);
        }
        let number = NameIndex::try_from(self.list.len()).ok()?;
        self.list.push(name.into());
        self.numbers.insert(name.into(), number);
        Some(number)
    }

    fn reduce(&mut self, record: Map<String, Value>) -> Record {
        let text = |key: &str| record.get(key).and_then(Value::as_str);
        let mut values = Vec::with_capacity(record.len());
        for (key, value) in &record {
            match value {
                // The terms of the loss.
                Value::Object(terms) => {
                    let terms = terms.iter().map(|(name, value)| (format!("{key}.{name}"), value));
                    values.extend(terms.filter_map(|(n, v)| Some((self.add(&n)?, number(v)?))));
                }
                value => values.extend(number(value).and_then(|v| Some((self.add(key)?, v)))),
            }
        }
        Record {
            kind: self.add(text("kind").unwrap_or_default()).unwrap_or_default(),
            time: text("time").and_then(parse_utc).unwrap_or(f64::NAN),
            values: values.into(),
            note: text("text").or(text("reason")).or(text("task")).map(|t| text::quote(t).into()),
        }
    }
}

fn number(value: &Value) -> Option<f64> {
    if value.is_null() { Some(f64::NAN) } else { value.as_f64() }
}

impl Record {
    fn get(&self, name: NameIndex) -> Option<f64> {
        self.values.iter().find(|(own, _)| *own == name).map(|(_, value)| *value)
    }
}

impl History {
    /// Creates the history of a log without reading it.
    pub fn new(log: &Path) -> Self {
        Self { log: Follow::new(log), names: Names::default() }
    }

    /// Reads a log. Errors: 66 when it cannot be opened, 74.
    pub fn read(log: &Path) -> Result<Self> {
        let mut history = Self::new(log);
        history.refresh()?;
        Ok(history)
    }

    /// Reads what was appended since the last call. Errors: 66 when the log cannot be opened, 74.
    pub fn refresh(&mut self) -> Result<()> {
        let Self { log, names } = self;
        log.read(|record| names.reduce(record))
    }

    /// Number of damaged lines.
    pub fn bad_lines(&self) -> usize {
        self.log.bad_lines()
    }

    /// Number of superseded records.
    pub fn superseded(&self) -> usize {
        self.log.superseded()
    }

    fn of_kind(&self, kind: &str) -> impl DoubleEndedIterator<Item = &Record> {
        let kind = self.names.find(kind);
        self.log.iter().filter(move |record| Some(record.kind) == kind)
    }

    /// Returns the number of records of a kind.
    pub fn count(&self, kind: &str) -> usize {
        self.of_kind(kind).count()
    }

    /// Returns the finite values of a field over the records of one kind, by update.
    pub fn series(&self, kind: &str, field: &str) -> Series {
        let Some([update, field]) = self.find(["update", field]) else { return Series::new() };
        let all = self.of_kind(kind).filter_map(|r| Some((r.get(update)?, r.get(field)?)));
        all.filter(|(_, value)| value.is_finite()).collect()
    }

    /// Returns the last value of a field over the records of one kind, NaN if it is not finite.
    pub fn last(&self, kind: &str, field: &str) -> Option<f64> {
        let field = self.names.find(field)?;
        self.of_kind(kind).rev().find_map(|record| record.get(field))
    }

    /// Returns the finite values of a field over the records of one kind.
    pub fn values(&self, kind: &str, field: &str) -> Vec<f64> {
        self.series(kind, field).into_iter().map(|(_, value)| value).collect()
    }

    /// Returns the maximum of a field over all records.
    pub fn highest(&self, field: &str) -> Option<f64> {
        let field = self.names.find(field)?;
        self.log.iter().filter_map(|record| record.get(field)).reduce(f64::max)
    }

    /// Returns the notes of the records of one kind with their times in seconds since 1970: the text of a warning, the
    /// reason of a stop, or the task of a start.
    pub fn notes(&self, kind: &str) -> impl DoubleEndedIterator<Item = (f64, &str)> {
        self.of_kind(kind).filter_map(|record| Some((record.time, record.note.as_deref()?)))
    }

    /// Returns the names of the metrics that can be drawn: loss, validation metrics, learning rate, gradient norm and
    /// throughput; the terms of the loss are not listed.
    pub fn metrics(&self) -> Vec<String> {
        let mut measured: Vec<NameIndex> = Vec::new();
        for (name, _) in self.of_kind("validation").flat_map(|record| &record.values) {
            if !measured.contains(name) {
                measured.push(*name);
            }
        }
        let measured = measured.into_iter().map(|name| self.names.list[usize::from(name)].as_str());
        let measured = measured.filter(|name| !NOT_METRICS.contains(name));
        let [loss, rest @ ..] = OF_UPDATES;
        let names = std::iter::once(loss.to_string())
            .chain(measured.map(|name| format!("{VALIDATION}{name}")))
            .chain(rest.into_iter().chain([THROUGHPUT]).map(str::to_string));
        names.filter(|name| !self.metric(name).is_empty()).collect()
    }

    /// Returns the series of a metric by update: loss, learning_rate, gradient_norm, epoch, cost, throughput (samples per second),
    /// loss_terms.NAME, or a validation metric with or without the prefix `validation.`; empty if the log has none.
    pub fn metric(&self, name: &str) -> Series {
        if let Some(name) = name.strip_prefix(VALIDATION) {
            return self.series("validation", name);
        }
        if name == THROUGHPUT {
            return self.throughput();
        }
        if OF_UPDATES.contains(&name) || name.starts_with("loss_terms.") {
            return self.series("update", name);
        }
        self.series("validation", name)
    }

    /// Computes the samples per second of the logged updates. The number of samples of an update is the average over
    /// the updates since the previous logged one.
    fn throughput(&self) -> Series {
        let Some(names) = self.find(["update", "samples", "seconds"]) else {
            return Series::new();
        };
        let mut before = (0.0, 0.0);
        let mut rate = |record: &Record| {
            let [update, samples, seconds] = names.map(|name| record.get(name));
            let (update, samples) = (update?, samples?);
            let per_update = (samples - before.1) / (update - before.0);
            before = (update, samples);
            let rate = per_update / seconds?;
            (rate > 0.0 && rate.is_finite()).then_some((update, rate))
        };
        self.of_kind("update").filter_map(&mut rate).collect()
    }

    /// Returns the current seconds per update, including validations and checkpoints. They are measured over the last
    /// `count` logged updates of the newest attempt, or over the updates of the last `seconds` if that is longer.
    pub fn pace(&self, count: usize, seconds: f64) -> Option<f64> {
        let [update, attempt] = self.find(["update", "attempt"])?;
        let mut newest = self.of_kind("update").rev().peekable();
        let last = *newest.peek()?;
        let is_recent = |(at, record): &(usize, &Record)| {
            let is_near = *at < count || last.time - record.time <= seconds;
            is_near && record.get(attempt) == last.get(attempt)
        };
        let (_, first) = newest.enumerate().take_while(is_recent).last()?;
        let updates = last.get(update)? - first.get(update)?;
        let pace = (last.time - first.time) / updates;
        (pace > 0.0 && pace.is_finite()).then_some(pace)
    }

    fn find<const N: usize>(&self, names: [&str; N]) -> Option<[NameIndex; N]> {
        let mut found = [0; N];
        for (number, name) in found.iter_mut().zip(names) {
            *number = self.names.find(name)?;
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;
    use unix::log::{Log, append_once};

    fn attempt(path: &Path, number: u64, updates: std::ops::RangeInclusive<u64>) {
        let mut log = Log::open(path, number).unwrap();
        let start = json!({"update": updates.start() - 1, "task": "codec", "parameters": 12});
        log.write("start", &start).unwrap();
        for update in updates {
            let fields = json!({
                "update": update, "samples": 8 * update, "loss": number as f64 / update as f64, "seconds": 0.5,
                "learning_rate": 1e-3, "gradient_norm": f64::NAN, "loss_terms": {"mse": 0.25},
            });
            log.write("update", &fields).unwrap();
            if update % 2 == 0 {
                let fields = json!({"update": update, "best": true, "seconds": 0.1, "nrmse": 0.1, "loss": 9.0});
                log.write("validation", &fields).unwrap();
            }
        }
        log.write("warning", &json!({"update": 1, "text": "slow"})).unwrap();
    }

    #[test]
    fn series_follow_the_attempts_that_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        attempt(&path, 1, 1..=5);
        attempt(&path, 2, 4..=6);
        let history = History::read(&path).unwrap();
        let loss =
            [(1.0, 1.0), (2.0, 0.5), (3.0, 1.0 / 3.0), (4.0, 0.5), (5.0, 0.4), (6.0, 2.0 / 6.0)];
        assert_eq!(history.metric("loss"), loss);
        assert_eq!(
            history.metric("throughput"),
            (1..=6).map(|n| (f64::from(n), 16.0)).collect::<Series>()
        );
        assert_eq!(history.metric("nrmse"), [(2.0, 0.1), (4.0, 0.1), (6.0, 0.1)]);
        assert_eq!(history.metric("validation.loss").len(), 3);
        assert_eq!(history.metric("loss_terms.mse").len(), 6);
        assert!(history.metric("gradient_norm").is_empty(), "a value that is not finite is null");
        let names = ["loss", "validation.nrmse", "validation.loss", "learning_rate", "throughput"];
        assert_eq!(history.metrics(), names);
        assert_eq!((history.superseded(), history.highest("attempt")), (3, Some(2.0)));
        assert_eq!(history.notes("start").map(|(_, task)| task).collect::<Vec<_>>(), ["codec"; 2]);
    }

    #[test]
    fn a_growing_log_gives_the_series_of_the_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (path, growing) = (folder.path().join("whole"), folder.path().join("growing"));
        for (number, updates) in [(1, 1..=9), (2, 5..=7), (3, 8..=12)] {
            attempt(&path, number, updates);
        }
        let bytes = std::fs::read(&path).unwrap();
        let mut file = std::fs::File::create(&growing).unwrap();
        let mut history = History::new(&growing);
        for piece in bytes.chunks(97) {
            file.write_all(piece).unwrap();
            history.refresh().unwrap();
            let whole = History::read(&growing).unwrap();
            assert_eq!(history.metrics(), whole.metrics());
            for metric in whole.metrics() {
                assert_eq!(history.metric(&metric), whole.metric(&metric), "{metric}");
            }
        }
        assert_eq!(history.metric("loss").len(), 12);
    }

    #[test]
    fn the_pace_is_that_of_the_newest_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let add = |attempt: u64, update: u64, second: u32| {
            let time = format!("2026-01-01T00:00:{second:02}.000Z");
            let record =
                json!({"time": time, "attempt": attempt, "kind": "update", "update": update});
            append_once(&path, &record, |found| found["update"] == update).unwrap();
            History::read(&path).unwrap().pace(3, 2.5)
        };
        assert_eq!(add(1, 10, 0), None);
        assert_eq!(add(1, 20, 10), Some(1.0));
        assert_eq!(add(2, 30, 40), None, "the time between attempts does not count");
        assert_eq!(add(2, 40, 45), Some(0.5));
        add(2, 50, 46);
        assert_eq!(add(2, 60, 48), Some(0.15), "of the last three updates");
        assert_eq!(add(2, 70, 49), Some(0.15), "of the last three updates");
        for update in [80, 90, 100, 110] {
            add(2, update, 49);
        }
        assert_eq!(add(2, 120, 50), Some(2.0 / 60.0), "of the last 2.5 seconds");
    }
}
