//! The table of a science protocol: reads the results of `evaluate score` of several methods and seeds, and writes
//! means and spreads as Markdown. benches/science/*.sh call it:
//!
//!     science_table ROOT OUT --title TEXT [--method LABEL=FOLDER[:METHOD]]... [--column LABEL=METRIC[@STEP]]...
//!         [--ratio yes] [--interval METRIC] [--groups METRIC] [--note TEXT]...
//!
//! The result of a method with one seed is ROOT/seed-N/FOLDER/metrics.json; METHOD is the one of it that is shown, by
//! default the evaluated model. Columns that no method has are left out. `--ratio yes` adds the ratio of the first column
//! to that of the first method, `--interval` the 95 % interval of a metric in units of the first column, and `--groups` a
//! table of a metric by group.

use report::document::{Cell, Document, Table, equal_precision};
use report::evaluation::{Group, Metric, MetricsFile, Scores};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

struct Method {
    label: String,
    folder: String,
    /// Empty for the evaluated model.
    name: String,
    /// One result for each seed.
    results: Vec<MetricsFile>,
}

struct Column {
    label: String,
    metric: String,
    step: Option<usize>,
}

/// Mean and standard deviation (with the divisor n - 1) over seeds.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

impl Method {
    /// What `of` gives for a metric, over seeds; NaN where it is missing.
    fn values<'m>(
        &'m self,
        metric: &str,
        scores: impl Fn(&'m MetricsFile) -> Option<&'m Scores>,
        of: impl Fn(&'m Metric) -> Option<f64>,
    ) -> Vec<f64> {
        let name = match self.name.as_str() {
            "" => metric.to_string(),
            method => format!("{method}.{metric}"),
        };
        let value = |file| of(scores(file)?.metric(&name)?);
        self.results.iter().map(|file| value(file).unwrap_or(f64::NAN)).collect()
    }

    fn column(&self, column: &Column) -> Vec<f64> {
        self.values(
            &column.metric,
            |file| Some(&file.scores),
            |metric| match column.step {
                Some(step) => metric.by_step.get(step).copied(),
                None => Some(metric.value),
            },
        )
    }

    /// The mean bounds of the interval of a metric, in units of a column.
    fn bounds(&self, metric: &str, unit: &Column) -> String {
        let mean = |of: &dyn Fn(&Metric) -> Option<f64>| {
            moments(&self.values(metric, |file| Some(&file.scores), of)).0
        };
        let scale = moments(&self.column(unit)).0 / mean(&|metric| Some(metric.value));
        let bounds = [0, 1].map(|at| scale * mean(&|metric| Some(metric.interval?[at])));
        match bounds.iter().all(|bound| bound.is_finite()) {
            true => equal_precision(&bounds.map(Some), 3).join(" to "),
            false => String::new(),
        }
    }
}

/// Mean and spread, with two digits of the spread; three digits of a mean without spread.
fn shown(values: &[f64]) -> Cell {
    let (mean, spread) = moments(values);
    if !mean.is_finite() {
        return Cell::text("");
    }
    // Rounding alone makes a spread.
    let spread = if spread > 1e-9 * mean.abs() { spread } else { 0.0 };
    let digits = |x: f64, count: i32| (count - 1 - x.abs().log10().floor() as i32).max(0) as usize;
    let is_plain = mean == 0.0 || (1e-3..1e4).contains(&mean.abs());
    Cell::number(match (is_plain, spread > 0.0) {
        (true, true) => {
            let decimals = digits(spread, 2).max(digits(mean, 2));
            format!("{mean:.decimals$} ± {spread:.decimals$}")
        }
        (true, false) if mean == 0.0 => "0".into(),
        (true, false) => format!("{mean:.*}", digits(mean, 3)),
        (false, true) => format!("{mean:.1e} ± {spread:.0e}"),
        (false, false) => format!("{mean:.1e}"),
    })
}

fn overall(methods: &[Method], columns: &[Column], ratio: bool, interval: Option<&str>) -> Table {
    let mut labels = vec!["method".to_string()];
    let mut cells: Vec<Vec<Cell>> = Vec::new();
    for (at, column) in columns.iter().enumerate() {
        let values: Vec<Vec<f64>> = methods.iter().map(|method| method.column(column)).collect();
        if values.iter().flatten().all(|value| value.is_nan()) {
            continue;
        }
        labels.push(column.label.clone());
        cells.push(values.iter().map(|values| shown(values)).collect());
        if ratio && at == 0 {
            let reference = moments(&values[0]).0;
            let ratio = |all: &Vec<f64>| all.iter().map(|x| x / reference).collect::<Vec<_>>();
            labels.push(format!("of {}", methods[0].label));
            cells.push(values.iter().map(|values| shown(&ratio(values))).collect());
        }
    }
    if let Some(metric) = interval {
        labels.push("95 % interval".into());
        let bounds = |method: &Method| Cell::text(method.bounds(metric, &columns[0]));
        cells.push(methods.iter().map(bounds).collect());
    }
    let mut table = Table::new(labels);
    for (at, method) in methods.iter().enumerate() {
        let row = cells.iter().map(|column| column[at].clone());
        table.row(std::iter::once(Cell::text(method.label.clone())).chain(row));
    }
    table
}

/// The scores of a group.
fn same<'f>(file: &'f MetricsFile, group: &Group) -> Option<&'f Scores> {
    let mut groups = file.groups.iter();
    let same = groups.find(|own| (&own.kind, &own.name) == (&group.kind, &group.name));
    same.map(|same| &same.scores)
}

fn by_group(methods: &[Method], metric: &str) -> Table {
    let labels = methods.iter().map(|method| method.label.clone());
    let mut table = Table::new(std::iter::once("group".to_string()).chain(labels));
    for group in &methods[0].results[0].groups {
        let cell = |method: &Method| {
            shown(&method.values(metric, |file| same(file, group), |metric| Some(metric.value)))
        };
        table.row(std::iter::once(Cell::text(group.name.clone())).chain(methods.iter().map(cell)));
    }
    table
}

/// Seeds below `root`, in order.
fn seeds(root: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(root).map_err(|cause| Error::open(root, cause))?;
    let folders = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_seed = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-"))
    };
    let mut seeds: Vec<PathBuf> = folders.filter(is_seed).collect();
    seeds.sort();
    Ok(seeds)
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let usage = || {
        Error::usage(
            "science_table ROOT OUT --title TEXT [--method LABEL=FOLDER[:METHOD]] [--column LABEL=METRIC[@STEP]] \
             [--ratio yes] [--interval METRIC] [--groups METRIC] [--note TEXT]",
        )
    };
    let (root, out) = (words.next().ok_or_else(usage)?, words.next().ok_or_else(usage)?);
    let (mut title, mut methods, mut notes) = (String::new(), Vec::new(), Vec::new());
    let (mut columns, mut groups) = (Vec::new(), None);
    let (mut ratio, mut interval) = (false, None);
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(usage)?;
        match option.as_str() {
            "--title" => title = value,
            "--note" => notes.push(value),
            "--groups" => groups = Some(value),
            "--ratio" => ratio = value == "yes",
            "--interval" => interval = Some(value),
            "--column" => {
                let (label, metric) = value.split_once('=').ok_or_else(usage)?;
                let (metric, step) = match metric.split_once('@') {
                    Some((metric, step)) => (metric, Some(step.parse().map_err(|_| usage())?)),
                    None => (metric, None),
                };
                columns.push(Column { label: label.into(), metric: metric.into(), step });
            }
            "--method" => {
                let (label, rest) = value.split_once('=').ok_or_else(usage)?;
                let (folder, name) = rest.split_once(':').unwrap_or((rest, ""));
                let [label, folder, name] = [label, folder, name].map(String::from);
                methods.push(Method { label, folder, name, results: Vec::new() });
            }
            _ => return Err(usage()),
        }
    }
    let seeds = seeds(Path::new(&root))?;
    if methods.is_empty() || columns.is_empty() || seeds.is_empty() {
        return Err(usage());
    }
    for method in &mut methods {
        for seed in &seeds {
            method.results.push(MetricsFile::read(&seed.join(&method.folder))?);
        }
    }
    let mut document = Document::new(title);
    document.list(notes);
    document.paragraph(format!(
        "Means and standard deviations over {} seeds. Differences below the spread over seeds are noise.",
        seeds.len()
    ));
    document.table(overall(&methods, &columns, ratio, interval.as_deref()));
    if let Some(metric) = groups {
        let known = columns.iter().find(|column| column.metric == metric);
        document.heading(format!("{} by group", known.map_or(&metric, |column| &column.label)));
        document.table(by_group(&methods, &metric));
    }
    unix::publish::publish_bytes(Path::new(&out), document.markdown().as_bytes())
}
