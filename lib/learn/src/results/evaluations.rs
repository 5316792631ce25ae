//! Results of `evaluate score` side by side.

use super::compare::Line;
use super::difference::{self, Known};
use super::{cells, names};
use crate::checkpoint::manifest_of;
use report::document::{Cell, Document, Table};
use report::evaluation::{Metric, MetricsFile, pictures};
use serde_json::Value;
use std::path::{Path, PathBuf};
use unix::{Error, Result, note, text};

/// Evaluations that followed the same protocol; the first is the reference.
pub(super) struct Evaluations {
    /// Folders, as passed in.
    paths: Vec<PathBuf>,
    files: Vec<MetricsFile>,
    /// Difference from the first result, for every other result.
    differences: Vec<Known>,
}

/// Name of a metric, and its value in each result.
type Row<'e> = (String, Vec<Option<&'e Metric>>);

impl Evaluations {
    /// Reads results. Errors: 65 if protocols differ, listing the differing fields; otherwise as in
    /// [`MetricsFile::read`].
    pub fn read(paths: &[PathBuf]) -> Result<Self> {
        let files: Vec<MetricsFile> =
            paths.iter().map(|path| MetricsFile::read(path)).collect::<Result<_>>()?;
        for (path, other) in paths.iter().zip(&files).skip(1) {
            let differences = files[0].subject.differences(&other.subject);
            if !differences.is_empty() {
                return Err(Error::data(format!(
                    "{} and {} cannot be compared: their protocols differ ({})",
                    paths[0].display(),
                    path.display(),
                    differences.join("; ")
                )));
            }
        }
        let mut differences = Vec::new();
        if files.len() > 1 {
            let first = difference::losses(&paths[0])?;
            for (path, other) in paths.iter().zip(&files).skip(1) {
                let own = difference::losses(path)?;
                differences.push(Known::of((&files[0], first.as_ref()), (other, own.as_ref())));
            }
        }
        Ok(Self { paths: paths.to_vec(), files, differences })
    }

    /// Returns the settings of each evaluation that may differ, except the data path.
    pub fn settings(&self) -> Vec<Value> {
        let of = |file: &MetricsFile| {
            let settings = file.subject.settings.iter().filter(|(key, _)| *key != "data");
            settings.map(|(key, value)| (format!("evaluation.{key}"), value.clone())).collect()
        };
        self.files.iter().map(of).collect()
    }

    /// Reads the configurations of the evaluated models from their checkpoints; None if one cannot be read.
    pub fn configs(&self) -> Option<Vec<Value>> {
        let of = |(path, file): (&PathBuf, &MetricsFile)| {
            let model = file.subject.models.get(&file.subject.task)?;
            let manifest = manifest_of(Path::new(model["checkpoint"].as_str()?));
            if let Err(error) = &manifest {
                note!("{}: its configuration is unknown: {error}", path.display());
            }
            Some(manifest.ok()?.config)
        };
        self.paths.iter().zip(&self.files).map(of).collect()
    }

    /// Metrics of the evaluated models; the task name of the model may differ between results.
    fn metrics(&self) -> Vec<Row<'_>> {
        let own = self.files.iter().filter_map(|file| file.scores.methods.values().next());
        self.rows(names(own.flat_map(|metrics| metrics.keys())))
    }

    /// Primary metric of each of the other methods.
    fn baselines(&self) -> Vec<Row<'_>> {
        let metric = &self.files[0].subject.metric;
        let methods = self.files.iter().flat_map(|file| &file.scores.methods);
        let evaluated = |name: &String| {
            self.files.iter().any(|file| file.scores.methods.keys().next() == Some(name))
        };
        let others = methods.filter(|(name, own)| !evaluated(name) && own.contains_key(metric));
        let others: Vec<String> = others.map(|(name, _)| format!("{name}.{metric}")).collect();
        self.rows(names(others.iter()))
    }

    fn rows(&self, names: Vec<String>) -> Vec<Row<'_>> {
        let row = |name: String| {
            let values = self.files.iter().map(|file| file.scores.metric(&name)).collect();
            (name, values)
        };
        names.into_iter().map(row).collect()
    }

    /// Primary metric of the evaluated models by group, for each kind of group.
    fn groups(&self) -> Vec<(String, Vec<Row<'_>>)> {
        let metric = &self.files[0].subject.metric;
        let all = || self.files.iter().flat_map(|file| &file.groups);
        let row = |kind: &str, name: String| {
            let values = self.files.iter().map(|file| {
                let mut groups = file.groups.iter();
                groups.find(|group| group.kind == kind && group.name == name)?.scores.metric(metric)
            });
            let values = values.collect();
            (name, values)
        };
        let rows = |kind: String| {
            let own = all().filter(|group| group.kind == kind).map(|group| &group.name);
            let rows = names(own).into_iter().map(|name| row(&kind, name)).collect();
            (kind, rows)
        };
        names(all().map(|group| &group.kind)).into_iter().map(rows).collect()
    }

    /// Lines for all metrics and known differences.
    pub fn lines(&self) -> Vec<Line> {
        let lines = |kind, group: Option<String>, rows: Vec<Row>| {
            let line = move |(name, metrics): Row| Line {
                group: group.clone(),
                intervals: metrics.iter().map(|metric| metric.and_then(|m| m.interval)).collect(),
                ..Line::new(kind, name, metrics.iter().map(|metric| metric.map(|m| m.value)))
            };
            rows.into_iter().map(line).collect::<Vec<_>>()
        };
        let mut all = lines("metric", None, self.metrics());
        all.extend(lines("baseline", None, self.baselines()));
        for (kind, rows) in self.groups() {
            all.extend(lines("group", Some(kind), rows));
        }
        let paired = |known: &Known| match known {
            Known::Paired { loss, difference, .. } => Some((loss.clone(), *difference)),
            _ => None,
        };
        let found: Vec<_> = self.differences.iter().map(paired).collect();
        if let Some((loss, _)) = found.iter().flatten().next() {
            let of_all = || std::iter::once(None).chain(found.iter().map(Option::as_ref));
            all.push(Line {
                intervals: of_all().map(|found| found.map(|(_, of)| of.interval)).collect(),
                ..Line::new(
                    "difference",
                    loss.clone(),
                    of_all().map(|found| found.map(|(_, of)| of.mean)),
                )
            });
        }
        all
    }

    /// Adds the tables, with `names` as the names of the results.
    pub fn add_to(&self, document: &mut Document, names: &[String]) {
        let subject = &self.files[0].subject;
        document.paragraph(format!("{}.", subject.describe()));
        let changes =
            names.iter().skip(1).flat_map(|name| [name.clone(), "change (%)".to_string()]);
        let columns: Vec<String> = names.iter().take(1).cloned().chain(changes).collect();
        let mut add = |heading: &str, first: &str, rows: Vec<Row>| {
            if rows.is_empty() {
                return;
            }
            let mut table = Table::new(std::iter::once(first.to_string()).chain(columns.clone()));
            for (name, metrics) in rows {
                table.row(std::iter::once(Cell::text(text::line(&name))).chain(compared(&metrics)));
            }
            document.heading(heading);
            document.table(table);
        };
        add("Metrics", "metric", self.metrics());
        add("Baselines", "metric", self.baselines());
        for (kind, rows) in self.groups() {
            add(&text::line(&format!("{} by {kind}", subject.metric)), &kind, rows);
        }
        if !self.differences.is_empty() {
            document.heading("Differences");
        }
        let described = names.iter().skip(1).zip(&self.differences);
        document.list(described.map(|(name, known)| text::line(&known.describe(name))).collect());
        document.heading("Models");
        let fields = ["update", "parameters", "weights", "checkpoint"];
        let mut table = Table::new(["run", "task"].into_iter().chain(fields));
        for (name, file) in names.iter().zip(&self.files) {
            for (task, model) in &file.subject.models {
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

    /// Adds the pictures that `evaluate score` drew. Errors: as in [`pictures`].
    pub fn add_pictures(&self, document: &mut Document) -> Result<()> {
        for path in &self.paths {
            let pictures = pictures(path)?;
            if !pictures.is_empty() {
                document.heading(format!("Pictures of {}", path.display()));
            }
            for (name, png) in pictures {
                let name = text::line(name.trim_end_matches(".png"));
                document.picture(format!("{}: {name}", path.display()), png);
            }
        }
        Ok(())
    }
}

/// Formats the values of one metric as cells, each but the first with its change relative to the first.
fn compared(metrics: &[Option<&Metric>]) -> Vec<Cell> {
    let value = |metric: &Option<&Metric>| metric.map(|metric| metric.value);
    let direction = metrics.iter().flatten().find_map(|metric| metric.direction);
    let first = metrics.first().and_then(value);
    let change = |metric: &Option<&Metric>| match (first, value(metric)) {
        (Some(first), Some(value)) if first == value => Cell::number("0.0"),
        (Some(first), Some(value)) if first != 0.0 => {
            Cell::number(format!("{:+.1}", 100.0 * (value - first) / first.abs()))
        }
        _ => Cell::number("–"),
    };
    let cells = cells(metrics, direction).into_iter().zip(metrics).enumerate();
    cells
        .flat_map(|(at, (cell, metric))| {
            std::iter::once(cell).chain((at > 0).then(|| change(metric)))
        })
        .collect()
}
