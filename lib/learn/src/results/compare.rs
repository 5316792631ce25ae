//! Comparison of training runs, or of evaluations that followed the same protocol.

use super::analysis::{self, Analysis};
use super::evaluations::Evaluations;
use super::{flatten, names};
use crate::checkpoint::manifest_of;
use report::document::{Cell, Document, Table};
use report::evaluation::MetricsFile;
use serde::Serialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use unix::run_dir::RunDir;
use unix::{Error, Result, text};

/// Runs or evaluations side by side; the first is the reference.
pub struct Comparison {
    names: Vec<String>,
    subjects: Subjects,
    /// Configuration keys whose values differ, with one value per run; evaluation settings are named `evaluation.KEY`.
    keys: Vec<(String, Vec<Value>)>,
    /// Whether the configurations are known.
    is_known: bool,
}

enum Subjects {
    Evaluations(Evaluations),
    Runs(Vec<Analysis>),
}

/// One line of a comparison: a metric, a difference, or a configuration key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Kind of line: `metric`, `baseline`, `group`, `difference` or `config`.
    pub kind: &'static str,
    /// For a group, the kind of group, e.g. `label`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Name of the metric, group, loss or configuration key.
    pub name: String,
    /// Value for each run, in input order; for a difference, the mean loss minus that of the first run.
    pub values: Vec<Value>,
    /// 95 % confidence intervals of the values; omitted if there are none.
    #[serde(skip_serializing_if = "no_interval")]
    pub intervals: Vec<Option<[f64; 2]>>,
}

fn no_interval(intervals: &[Option<[f64; 2]>]) -> bool {
    intervals.iter().all(Option::is_none)
}

impl Line {
    /// Creates a line without intervals; null stands for a missing or non-finite value.
    pub(super) fn new(
        kind: &'static str,
        name: String,
        values: impl IntoIterator<Item = Option<f64>>,
    ) -> Self {
        let number = |value: Option<f64>| value.map_or(Value::Null, Value::from);
        let values = values.into_iter().map(number).collect();
        Self { kind, group: None, name, values, intervals: Vec::new() }
    }
}

impl Comparison {
    /// Reads output folders of `evaluate score`, or run directories.
    ///
    /// Errors: 2 for a mixture of both, 65 when the protocols of evaluations, or the tasks or data of runs, differ, and
    /// for results of another version; 66 when a file is missing.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let names = paths.iter().map(|path| path.display().to_string()).collect();
        let is_run = |path: &Path| RunDir::open(path).is_ok_and(|run| run.log().exists());
        let is_neither = |path: &&PathBuf| !MetricsFile::is_in(path) && !is_run(path);
        if let Some(path) = paths.iter().find(is_neither) {
            let text = "it has neither metrics.json, as a result of evaluate score has, nor the log.jsonl of a run";
            return Err(Error::open(path, text));
        }
        let results = paths.iter().filter(|path| MetricsFile::is_in(path)).count();
        let subjects = match paths.iter().find(|path| !MetricsFile::is_in(path)) {
            None => Subjects::Evaluations(Evaluations::read(paths)?),
            Some(_) if results == 0 => Subjects::Runs(comparable_runs(paths)?),
            Some(path) => {
                return Err(Error::usage(format!(
                    "{} has no metrics.json, others have: give only results of evaluate score, or only run directories",
                    path.display()
                )));
            }
        };
        let (configs, settings) = match &subjects {
            Subjects::Runs(runs) => {
                (Some(runs.iter().map(|run| run.config.clone()).collect()), Vec::new())
            }
            Subjects::Evaluations(found) => (found.configs(), found.settings()),
        };
        let is_known = configs.is_some();
        let mut keys = differing(&settings);
        keys.extend(differing(&configs.unwrap_or_else(Vec::new)));
        Ok(Self { names, subjects, keys, is_known })
    }

    /// Lines for all metrics, differences and differing keys.
    pub fn lines(&self) -> Vec<Line> {
        let mut lines: Vec<Line> = match &self.subjects {
            Subjects::Runs(runs) => {
                let names = names(runs.iter().flat_map(|run| run.quantities.keys()));
                let values =
                    |name: &String| runs.iter().map(|run| run.get(name)).collect::<Vec<_>>();
                names.iter().map(|name| Line::new("metric", name.clone(), values(name))).collect()
            }
            Subjects::Evaluations(found) => found.lines(),
        };
        let config = |(name, values): &(String, Vec<Value>)| Line {
            values: values.clone(),
            ..Line::new("config", name.clone(), [])
        };
        lines.extend(self.keys.iter().map(config));
        lines
    }

    /// Creates the report, including all pictures.
    ///
    /// Errors: 65, 66 or 74 when a picture cannot be read.
    pub fn document(&self) -> Result<Document> {
        let title = match self.names.as_slice() {
            [one] => format!("Report on {one}"),
            all => format!("Comparison of {}", all.join(", ")),
        };
        let mut document = Document::new(title);
        match &self.subjects {
            Subjects::Evaluations(found) => found.add_to(&mut document, &self.names),
            Subjects::Runs(runs) => {
                document.heading("Training");
                document.table(analysis::table(&runs.iter().collect::<Vec<_>>()));
            }
        }
        if self.names.len() > 1 {
            self.add_config_differences(&mut document);
        }
        match &self.subjects {
            Subjects::Evaluations(found) => found.add_pictures(&mut document)?,
            Subjects::Runs(runs) => {
                analysis::curves(&mut document, &runs.iter().collect::<Vec<_>>())?;
            }
        }
        Ok(document)
    }

    fn add_config_differences(&self, document: &mut Document) {
        if !self.is_known {
            document.paragraph("The configurations are unknown: a checkpoint is missing.");
        } else if self.keys.is_empty() {
            document.paragraph("The configurations are equal.");
        }
        if self.keys.is_empty() {
            return;
        }
        document.heading("Differing configuration keys");
        let mut table = Table::new(std::iter::once("key".to_string()).chain(self.names.clone()));
        for (key, values) in &self.keys {
            let values = values.iter().map(|value| Cell::text(text::summary(value)));
            table.row(std::iter::once(Cell::text(key.clone())).chain(values));
        }
        document.table(table);
    }
}

/// Reads runs that can be compared. Errors: 65 for runs with different tasks or validation data.
fn comparable_runs(paths: &[PathBuf]) -> Result<Vec<Analysis>> {
    let runs: Vec<Analysis> =
        paths.iter().map(|path| Analysis::read(path)).collect::<Result<_>>()?;
    let data = |path: &Path| {
        let newest = crate::checkpoint::one_in(path).ok()?;
        Some(manifest_of(&newest).ok()?.data_hash)
    };
    let first = (&runs[0].task, data(&paths[0]));
    for (run, path) in runs.iter().zip(paths).skip(1) {
        let differ = |what: &str, a: &str, b: &str| {
            Err(Error::data(format!(
                "{} and {} cannot be compared: {what} differ ({a} and {b})",
                runs[0].run, run.run
            )))
        };
        match (first.0, &run.task) {
            (Some(a), Some(b)) if a != b => return differ("their tasks", a, b),
            _ => {}
        }
        match (&first.1, data(path)) {
            (Some(a), Some(b)) if *a != b => {
                return differ("the hashes of their data", &text::quote(a), &text::quote(&b));
            }
            _ => {}
        }
    }
    Ok(runs)
}

/// Returns every key whose values differ, with null where it is absent.
fn differing(configs: &[Value]) -> Vec<(String, Vec<Value>)> {
    let flat = |config: &Value| {
        let mut keys = Map::new();
        flatten("", config, &mut keys);
        keys
    };
    let all: Vec<Map<String, Value>> = configs.iter().map(flat).collect();
    let values = |name: &String| {
        all.iter().map(|keys| keys.get(name).cloned().unwrap_or_default()).collect::<Vec<_>>()
    };
    let names = names(all.iter().flat_map(Map::keys));
    let rows = names.iter().map(|name| (name.clone(), values(name)));
    rows.filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

#[cfg(test)]
mod tests {
    use super::super::examples::{result, store};
    use super::*;
    use report::evaluation::Group;
    use serde_json::json;
    use unix::Exit;

    fn folders(of: &[(&str, MetricsFile)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().unwrap();
        let paths = of.iter().map(|(name, file)| {
            let path = folder.path().join(name);
            store(&path, file);
            path
        });
        let paths = paths.collect();
        (folder, paths)
    }

    #[test]
    fn metrics_baselines_groups_and_differences_are_compared() {
        let [mut first, mut second] = [result(0.5, 0.25), result(0.375, 0.125)];
        second.subject.settings.insert("views".into(), json!(2));
        for (file, part) in [(&mut first, 0.5), (&mut second, 0.75)] {
            let scores = result(part, 1.0).scores;
            file.groups.push(Group { kind: "label".into(), name: "yes".into(), scores });
            file.subject.settings.insert("data".into(), json!(part));
        }
        let (_folder, paths) = folders(&[("first", first), ("second", second)]);
        let comparison = Comparison::read(&paths).unwrap();
        let lines = comparison.lines();
        let kinds: Vec<_> = lines.iter().map(|line| (line.kind, line.name.as_str())).collect();
        assert_eq!(
            kinds,
            [
                ("metric", "error"),
                ("metric", "f1"),
                ("metric", "count"),
                ("baseline", "naive.error"),
                ("group", "yes"),
                ("config", "evaluation.views"),
            ]
        );
        assert_eq!(
            json!(lines[0]),
            json!({"kind": "metric", "name": "error", "values": [0.5, 0.375],
                "intervals": [[0.45, 0.55], [0.325, 0.425]]})
        );
        assert_eq!(
            json!(lines[3]),
            json!({"kind": "baseline", "name": "naive.error", "values": [1.0, 1.0]})
        );
        assert_eq!((&lines[4].group, &lines[4].values[1]), (&Some("label".into()), &json!(0.75)));
        let text = comparison.document().unwrap().text();
        for words in
            ["12 items; data 0123456789ab", "0.3750 [0.3250, 0.4250]*", "0.2500 [0.2000, 0.3000]*"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.contains("error by label") && text.contains("-25.0"), "{text}");
        assert!(text.contains("do not overlap: the result is better"), "{text}");
        // Adds the loss of each item.
        for (path, shift) in paths.iter().zip([0.0, 0.125]) {
            let losses = (0..12).map(|i| format!("{i},{i},{}\n", f64::from(i) - shift));
            let losses = format!("item,cluster,loss\n{}", losses.collect::<String>());
            std::fs::write(path.join("losses.csv"), losses).unwrap();
        }
        let comparison = Comparison::read(&paths).unwrap();
        let lines = comparison.lines();
        let line = lines.iter().find(|line| line.kind == "difference").unwrap();
        assert_eq!(
            json!(line),
            json!({"kind": "difference", "name": "loss", "values": [null, -0.125],
                "intervals": [null, [-0.125, -0.125]]})
        );
        let text = comparison.document().unwrap().text();
        assert!(text.contains("mean loss of 12 items is lower by 0.125 [0.125, 0.125]"), "{text}");
        let text = Comparison::read(&paths[..1]).unwrap().document().unwrap().text();
        assert!(
            text.contains("0.5000 [0.4500, 0.5500]") && !text.contains("Differences"),
            "{text}"
        );
    }

    #[test]
    fn other_protocols_and_versions_are_refused() {
        let mut other = result(0.5, 0.25);
        other.subject.protocol.insert("records".into(), json!(7));
        let (folder, paths) = folders(&[("first", result(0.5, 0.25)), ("other", other)]);
        let refused = |paths: &[PathBuf], exit, words: &str| {
            let error = Comparison::read(paths).err().unwrap();
            assert!(error.to_string().contains(words), "{error}");
            assert_eq!(error.exit, exit);
        };
        refused(&paths, Exit::Data, "their protocols differ (records is none and 7)");
        let earlier = json!({"format": "longhaul-evaluation", "version": 1, "protocol": {}});
        let path = folder.path().join("earlier");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("metrics.json"), earlier.to_string()).unwrap();
        let both = [paths[0].clone(), path.clone()];
        refused(&both, Exit::Data, "make it again: evaluate score RUN --data DATA -o");
        std::fs::rename(path.join("metrics.json"), path.join("evaluation_results.json")).unwrap();
        refused(&both, Exit::Data, "make it again: evaluate score RUN --data DATA -o");
        let later = json!({"format": "longhaul-evaluation", "version": 1000, "protocol": {}});
        std::fs::write(path.join("metrics.json"), later.to_string()).unwrap();
        refused(&both, Exit::Data, "the result has version 1000, but this program reads version");
        refused(&both, Exit::Data, "; use a newer longhaul");
        refused(&[folder.path().join("none")], Exit::NoInput, "it has neither metrics.json");
    }
}
