//! The table of a science protocol: reads the results of `evaluate score` of several methods and seeds, and writes
//! means and spreads as Markdown. benches/science/*.sh call it, for fields
//!
//!     science_table ROOT OUT --title TEXT [--method LABEL=FOLDER:MODEL]... [--column LABEL=QUANTITY]... [--regimes QUANTITY]
//!         [--note TEXT]...
//!
//! and for texts
//!
//!     science_table ROOT OUT --title TEXT --file NAME [--method LABEL=FOLDER]... [--column LABEL=POINTER]... [--note TEXT]...
//!
//! whose columns are the numbers at a JSON pointer (RFC 6901) of ROOT/seed-N/FOLDER/NAME.
//!
//! The result of a method with one seed is ROOT/seed-N/FOLDER/metrics.json. The first method, persistence where there is
//! one, is the reference of the ratios. Further columns have quantities of whole rollouts, which not every method has; the
//! table of regimes has QUANTITY, by default RMSE / RMS.

use report::document::{Cell, Document, Table, equal_precision};
use serde_json::Value;
use std::path::{Path, PathBuf};
use unix::{Error, Result};

struct Method {
    label: String,
    folder: String,
    model: String,
    /// One result for each seed.
    results: Vec<Value>,
}

/// The columns of every table: their labels and quantities.
const COLUMNS: [(&str, &str); 4] = [
    ("RMSE / RMS", SCALED),
    (ONE_STEP, SCALED),
    ("geometric mean", "nrmse_geometric_mean"),
    ("95th percentile", "nrmse_p95"),
];
const SCALED: &str = "nrmse_validation_scale";
/// Averaged over start frames and regimes; the other quantities are pooled.
const OF_STARTS: &str = "nrmse_of_starts";
/// The column of the first step; all others are of whole rollouts.
const ONE_STEP: &str = "one step";

/// Mean and standard deviation (with the divisor n - 1) over seeds.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (mean, (squares / (n - 1.0).max(1.0)).sqrt())
}

impl Method {
    /// The values of a quantity over seeds, of all regimes or of one.
    fn values(&self, regime: Option<usize>, quantity: &str, step: Option<usize>) -> Vec<f64> {
        let of = |result: &Value| {
            if quantity == OF_STARTS {
                return self.of_starts(result, regime);
            }
            let scope = regime.map_or(&result["overall"], |at| &result["regimes"][at]);
            let found = &scope["field"][&self.model][quantity];
            step.map_or(&found["rollout"], |step| &found["by_step"][step]).as_f64()
        };
        self.results.iter().map(|result| of(result).unwrap_or(f64::NAN)).collect()
    }

    /// The NRMSE averaged over start frames, of one regime or their mean.
    fn of_starts(&self, result: &Value, regime: Option<usize>) -> Option<f64> {
        let regimes = result["regimes"].as_array()?;
        let which = regime.map_or(0..regimes.len(), |at| at..at + 1);
        let of = |regime: &Value| regime["nrmse_of_starts"][&self.model]["mean"].as_f64();
        let all: Option<Vec<f64>> = regimes[which].iter().map(of).collect();
        all.map(|all| all.iter().sum::<f64>() / all.len() as f64)
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

fn overall(methods: &[Method], further: &[(String, String)]) -> Table {
    let further = further.iter().map(|(label, quantity)| (label.as_str(), quantity.as_str()));
    // A steady problem has no steps.
    let has_steps = methods[0].values(None, SCALED, Some(1)).iter().any(|value| value.is_finite());
    let columns = COLUMNS.into_iter().filter(|(label, _)| has_steps || *label != ONE_STEP);
    let columns: Vec<(&str, &str)> = columns.chain(further).collect();
    let mut labels: Vec<&str> = columns.iter().map(|(label, _)| *label).collect();
    labels.insert(0, "method");
    let of_first = format!("of {}", methods[0].label);
    labels.insert(2, &of_first);
    labels.push("interval over trajectories");
    let mut table = Table::new(labels);
    let column = |(label, quantity): &(&str, &str)| -> Vec<Cell> {
        let step = (*label == ONE_STEP).then_some(1);
        methods.iter().map(|m| shown(&m.values(None, quantity, step))).collect()
    };
    let cells: Vec<Vec<Cell>> = columns.iter().map(column).collect();
    let pooled: Vec<Vec<f64>> = methods.iter().map(|m| m.values(None, SCALED, None)).collect();
    let reference = moments(&pooled[0]).0;
    let ratio = |all: &Vec<f64>| shown(&all.iter().map(|x| x / reference).collect::<Vec<_>>());
    let ratios: Vec<Cell> = pooled.iter().map(ratio).collect();
    for (at, method) in methods.iter().enumerate() {
        let [nrmse, low, high] = ["nrmse", "nrmse_low", "nrmse_high"]
            .map(|quantity| moments(&method.values(None, quantity, None)).0);
        // In units of the first column.
        let scale = moments(&pooled[at]).0 / nrmse;
        let bounds = equal_precision(&[Some(scale * low), Some(scale * high)], 3).join(" to ");
        let mut row: Vec<Cell> = cells.iter().map(|column| column[at].clone()).collect();
        row.insert(0, Cell::text(method.label.clone()));
        row.insert(2, ratios[at].clone());
        row.push(Cell::text(bounds));
        table.row(row);
    }
    table
}

fn by_regime(methods: &[Method], quantity: &str) -> Table {
    let mut table = Table::new(
        std::iter::once("regime".to_string()).chain(methods.iter().map(|m| m.label.clone())),
    );
    let regimes = methods[0].results[0]["regimes"].as_array().map_or(0, Vec::len);
    for at in 0..regimes {
        let parameter = &methods[0].results[0]["regimes"][at]["parameter"];
        let name = format!("{} = {}", parameter["name"].as_str().unwrap_or(""), parameter["value"]);
        let cells = methods.iter().map(|m| shown(&m.values(Some(at), quantity, None)));
        table.row([Cell::text(name)].into_iter().chain(cells));
    }
    table
}

/// The numbers at JSON pointers of the results.
fn at_pointers(methods: &[Method], columns: &[(String, String)]) -> Table {
    let labels = columns.iter().map(|(label, _)| label.clone());
    let mut table = Table::new(std::iter::once(String::new()).chain(labels));
    for method in methods {
        let of = |(_, pointer): &(String, String)| {
            let number = |result: &Value| result.pointer(pointer).and_then(Value::as_f64);
            let values = method.results.iter().map(|result| number(result).unwrap_or(f64::NAN));
            shown(&values.collect::<Vec<_>>())
        };
        table.row(std::iter::once(Cell::text(&method.label)).chain(columns.iter().map(of)));
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
            "science_table ROOT OUT --title TEXT [--method LABEL=FOLDER:MODEL] [--column LABEL=QUANTITY] \
             [--regimes QUANTITY] [--file NAME] [--note TEXT]",
        )
    };
    let (root, out) = (words.next().ok_or_else(usage)?, words.next().ok_or_else(usage)?);
    let (mut title, mut methods, mut notes) = (String::new(), Vec::new(), Vec::new());
    let (mut further, mut regimes) = (Vec::new(), SCALED.to_string());
    let mut name = None;
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(usage)?;
        match option.as_str() {
            "--title" => title = value,
            "--note" => notes.push(value),
            "--regimes" => regimes = value,
            "--file" => name = Some(value),
            "--column" => {
                let (label, quantity) = value.split_once('=').ok_or_else(usage)?;
                further.push((label.to_string(), quantity.to_string()));
            }
            "--method" => {
                let (label, rest) = value.split_once('=').ok_or_else(usage)?;
                let (folder, model) = rest.split_once(':').unwrap_or((rest, ""));
                let [label, folder, model] = [label, folder, model].map(String::from);
                methods.push(Method { label, folder, model, results: Vec::new() });
            }
            _ => return Err(usage()),
        }
    }
    let seeds = seeds(Path::new(&root))?;
    for method in &mut methods {
        for seed in &seeds {
            let name = name.as_deref().unwrap_or("metrics.json");
            let file = seed.join(&method.folder).join(name);
            let text = std::fs::read(&file).map_err(|cause| Error::open(&file, cause))?;
            let value = serde_json::from_slice(&text)
                .map_err(|cause| Error::data(format!("{}: {cause}", file.display())))?;
            method.results.push(value);
        }
    }
    if methods.is_empty() || seeds.is_empty() {
        return Err(usage());
    }
    let mut document = Document::new(title);
    document.list(notes);
    if name.is_some() {
        let count = seeds.len();
        document.paragraph(format!("Means and standard deviations over {count} seeds."));
        document.table(at_pointers(&methods, &further));
        return unix::publish::publish_bytes(Path::new(&out), document.markdown().as_bytes());
    }
    document.paragraph(format!(
        "Means and standard deviations over {} seeds. RMSE / RMS: root mean square error of the decoded fields over all \
         steps of a rollout, divided by the root mean square of the validation split. Geometric mean and 95th percentile: \
         of the NRMSE of single rollouts, without meaning where \
         fields decay to almost zero. Interval: bootstrap over trajectories (95 %) of \
         RMSE / RMS, within a seed. \
         Differences below the spread over seeds are noise.",
        seeds.len()
    ));
    document.table(overall(&methods, &further));
    let columns = COLUMNS.map(|(label, quantity)| (label.to_string(), quantity.to_string()));
    let known = columns.iter().chain(&further).find(|(_, quantity)| *quantity == regimes);
    document.heading(format!("{} by regime", known.map_or(&regimes, |(label, _)| label)));
    document.table(by_regime(&methods, &regimes));
    unix::publish::publish_bytes(Path::new(&out), document.markdown().as_bytes())
}
