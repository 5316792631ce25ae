//! Comparison of training runs, or of evaluations that followed the same protocol.

use super::analysis::{self, Analysis};
use super::metrics::{Metric, baselines, is_bound, metrics, regimes};
use super::{Report, cells, flatten, is_error, names};
use learn::checkpoint::manifest_of;
use report::document::{Cell, Document, Table};
use report::export::refuse_texts;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use unix::run_dir::RunDir;
use unix::{Error, Result, note, small, text};

/// Maximum size of a picture in bytes.
const MAX_PICTURE: u64 = 64 << 20;

/// Runs or evaluations side by side; the others are compared with the first.
pub struct Comparison {
    names: Vec<String>,
    subjects: Subjects,
    /// Configuration keys whose values differ, with the value of each; settings of evaluations as `evaluation.KEY`.
    keys: Vec<(String, Vec<Value>)>,
    /// Whether the configurations are known.
    is_known: bool,
}

enum Subjects {
    Reports(Vec<Report>),
    Runs(Vec<Analysis>),
}

/// One line of a comparison: a metric, or a configuration key.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// `metric`, `regime` or `config`.
    pub kind: &'static str,
    /// Name of the metric, parameter value or key.
    pub name: String,
    /// The value of each run, in the order in which they were given.
    pub values: Vec<Value>,
}

impl Comparison {
    /// Reads folders of `evaluate score`, or run directories.
    ///
    /// Errors: 2 for a mixture of both and for results of texts, 65 when the protocols of evaluations, or the tasks or data of runs, differ; 66.
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let names = paths.iter().map(|path| path.display().to_string()).collect();
        paths.iter().try_for_each(|path| refuse_texts(path))?;
        let is_run = |path: &Path| RunDir::open(path).is_ok_and(|run| run.log().exists());
        if let Some(path) = paths.iter().find(|path| !Report::is_at(path) && !is_run(path)) {
            let text = "it has neither metrics.json, as a result of evaluate score has, nor the log.jsonl of a run";
            return Err(Error::open(path, text));
        }
        let reports = paths.iter().filter(|path| Report::is_at(path)).count();
        let subjects = match paths.iter().find(|path| !Report::is_at(path)) {
            None => Subjects::Reports(comparable_reports(paths)?),
            Some(_) if reports == 0 => Subjects::Runs(comparable_runs(paths)?),
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
            Subjects::Reports(reports) => {
                let settings = |report: &Report| json!({"evaluation": report.scored.settings});
                (reports.iter().map(config_of).collect(), reports.iter().map(settings).collect())
            }
        };
        let is_known = configs.is_some();
        let mut keys = differing(&settings);
        keys.extend(differing(&configs.unwrap_or_else(Vec::new)));
        Ok(Self { names, subjects, keys, is_known })
    }

    /// Metrics, regimes and differing keys.
    pub fn lines(&self) -> Vec<Line> {
        let number = |value: Option<f64>| value.map_or(Value::Null, Value::from);
        let line = |kind, name: String, values: Vec<Option<f64>>| Line {
            kind,
            name,
            values: values.into_iter().map(number).collect(),
        };
        let mut lines: Vec<Line> = match &self.subjects {
            Subjects::Runs(runs) => {
                let names = names(runs.iter().map(|run| &run.quantities));
                let values = |name: &String| runs.iter().map(|run| run.get(name)).collect();
                names.iter().map(|name| line("metric", name.clone(), values(name))).collect()
            }
            Subjects::Reports(reports) => {
                let metrics = metrics(reports).into_iter().chain(baselines(reports));
                let metrics = metrics.map(|(n, v)| line("metric", n, v));
                let regimes = regimes(reports).into_iter().map(|(n, v)| line("regime", n, v));
                metrics.chain(regimes).collect()
            }
        };
        let config = |(name, values): &(String, Vec<Value>)| Line {
            kind: "config",
            name: name.clone(),
            values: values.clone(),
        };
        lines.extend(self.keys.iter().map(config));
        lines
    }

    /// The report, with all pictures.
    ///
    /// Errors: 65, 66 or 74 when a picture cannot be read.
    pub fn document(&self) -> Result<Document> {
        let title = match self.names.as_slice() {
            [one] => format!("Report on {one}"),
            all => format!("Comparison of {}", all.join(", ")),
        };
        let mut document = Document::new(title);
        match &self.subjects {
            Subjects::Reports(reports) => self.of_reports(&mut document, reports),
            Subjects::Runs(runs) => {
                document.heading("Training");
                document.table(analysis::table(&runs.iter().collect::<Vec<_>>()));
            }
        }
        if self.names.len() > 1 {
            self.of_keys(&mut document);
        }
        match &self.subjects {
            Subjects::Reports(reports) => {
                reports.iter().try_for_each(|r| pictures(&mut document, r))?
            }
            Subjects::Runs(runs) => {
                analysis::curves(&mut document, &runs.iter().collect::<Vec<_>>())?;
            }
        }
        Ok(document)
    }

    fn columns(&self, first: &str) -> impl Iterator<Item = String> {
        std::iter::once(first.to_string()).chain(self.names.clone())
    }

    fn of_keys(&self, document: &mut Document) {
        if !self.is_known {
            document.paragraph("The configurations are unknown: a checkpoint is missing.");
        } else if self.keys.is_empty() {
            document.paragraph("The configurations are equal.");
        }
        if self.keys.is_empty() {
            return;
        }
        document.heading("Differing configuration keys");
        let mut table = Table::new(self.columns("key"));
        for (key, values) in &self.keys {
            let values = values.iter().map(|value| Cell::text(text::summary(value)));
            table.row(std::iter::once(Cell::text(key.clone())).chain(values));
        }
        document.table(table);
    }

    fn of_reports(&self, document: &mut Document, reports: &[Report]) {
        document.paragraph(format!("{}.", reports[0].scored.describe()));
        let others = self.names.iter().skip(1);
        let changes = others.flat_map(|name| [name.clone(), "change (%)".to_string()]);
        let columns: Vec<String> = self.names.iter().take(1).cloned().chain(changes).collect();
        let mut add = |heading: &str, first: &str, rows: Vec<Metric>| {
            if rows.is_empty() {
                return;
            }
            let mut table = Table::new(std::iter::once(first.to_string()).chain(columns.clone()));
            let names: Vec<String> = rows.iter().map(|(name, _)| name.clone()).collect();
            for (name, values) in rows {
                let mark = first == "regime" || is_error(&name) && !is_bound(&name, &names);
                let cells = compared(&values, mark);
                table.row(std::iter::once(Cell::text(name)).chain(cells));
            }
            document.heading(heading);
            document.table(table);
        };
        let of = if reports[0].regimes.is_empty() { "all records" } else { "whole rollouts" };
        add(&format!("Errors over {of}"), "metric", metrics(reports));
        add("NRMSE of other models and baselines", "metric", baselines(reports));
        add("NRMSE by parameter value, mean over start frames", "regime", regimes(reports));
        document.heading("Models");
        let fields = ["update", "parameters", "weights", "checkpoint"];
        let mut table = Table::new(["run", "task"].into_iter().chain(fields));
        for (name, report) in self.names.iter().zip(reports) {
            for (task, model) in &report.scored.models {
                let cell = |field: &str| match &model[field] {
                    Value::Number(number) => Cell::number(number.to_string()),
                    other => Cell::text(text::summary(other)),
                };
                let start = [Cell::text(name.clone()), Cell::text(task.clone())];
                table.row(start.into_iter().chain(fields.map(cell)));
            }
        }
        document.table(table);
    }
}

/// Errors: 65 with the fields in which protocols differ.
fn comparable_reports(paths: &[PathBuf]) -> Result<Vec<Report>> {
    let reports: Vec<Report> =
        paths.iter().map(|path| Report::read(path)).collect::<Result<_>>()?;
    for other in &reports[1..] {
        let differences = reports[0].scored.differences(&other.scored);
        if !differences.is_empty() {
            return Err(Error::data(format!(
                "{} and {} cannot be compared, their protocols differ: {}",
                reports[0].path.display(),
                other.path.display(),
                differences.join("; ")
            )));
        }
    }
    Ok(reports)
}

/// Errors: 65 for runs of different tasks, or whose validation metrics are not of the same data.
fn comparable_runs(paths: &[PathBuf]) -> Result<Vec<Analysis>> {
    let runs: Vec<Analysis> =
        paths.iter().map(|path| Analysis::read(path)).collect::<Result<_>>()?;
    let data = |path: &Path| {
        let newest = learn::checkpoint::one_in(path).ok()?;
        Some(manifest_of(&newest).ok()?.data_hash)
    };
    let first = (&runs[0].task, data(&paths[0]));
    for (run, path) in runs.iter().zip(paths).skip(1) {
        let differ = |what: &str, a: &str, b: &str| {
            Err(Error::data(format!(
                "{} and {} cannot be compared, {what} differ: {a} and {b}",
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

/// The configuration of an evaluated model, from its checkpoint; None if the checkpoint is gone.
fn config_of(report: &Report) -> Option<Value> {
    let model = report.scored.models.get(&report.scored.task)?;
    let checkpoint = Path::new(model["checkpoint"].as_str()?);
    let manifest = manifest_of(checkpoint);
    if let Err(error) = &manifest {
        note!("{}: its configuration is unknown: {error}", report.path.display());
    }
    Some(manifest.ok()?.config)
}

/// Every key whose values differ, with null for an absent one.
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
    let names = names(all.iter());
    let rows = names.iter().map(|name| (name.clone(), values(name)));
    rows.filter(|(_, values)| values.iter().any(|value| *value != values[0])).collect()
}

/// The cells of one metric: each value, and from the second on its change relative to the first.
fn compared(values: &[Option<f64>], mark: bool) -> Vec<Cell> {
    let cells = cells(values, mark && values.len() > 1);
    let change = |value: &Option<f64>| match (values[0], value) {
        (Some(first), Some(value)) if first == *value => Cell::number("0.0"),
        (Some(first), Some(value)) if first != 0.0 => {
            Cell::number(format!("{:+.1}", 100.0 * (value - first) / first.abs()))
        }
        _ => Cell::number("–"),
    };
    let with_change = cells.into_iter().zip(values).enumerate().flat_map(|(at, (cell, value))| {
        std::iter::once(cell).chain((at > 0).then(|| change(value)))
    });
    with_change.collect()
}

/// Adds the pictures that `evaluate score` drew, the summary first.
fn pictures(document: &mut Document, report: &Report) -> Result<()> {
    let folder = report.path.join("pictures");
    let listed = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = listed
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "png"))
        .collect();
    files.sort_by_key(|path| (!path.ends_with("summary.png"), path.clone()));
    if files.is_empty() {
        return Ok(());
    }
    document.heading(format!("Pictures of {}", report.path.display()));
    for file in files {
        let png = small::read(&file, MAX_PICTURE)?;
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        let caption = match &*name {
            "summary" => "all parameter values".into(),
            name => text::line(name),
        };
        document.picture(format!("{}: {caption}", report.path.display()), png);
    }
    Ok(())
}
