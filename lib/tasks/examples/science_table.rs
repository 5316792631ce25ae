//! The table of a science protocol: reads the results of `evaluate score` of several methods and seeds, and writes
//! means and spreads as Markdown. benches/science/*.sh call it:
//!
//!     science_table ROOT OUT --title TEXT [--method LABEL=FOLDER:MODEL]... [--note TEXT]...
//!
//! The result of a method with one seed is ROOT/seed-N/FOLDER/metrics.json. The first method is the reference of the
//! ratios: persistence.

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

/// A quantity of the table: its column, and its path below a model.
const QUANTITIES: [(&str, &str, usize); 4] = [
    ("RMSE / RMS", "nrmse_validation_scale", 4),
    ("one step", "nrmse_validation_scale", 4),
    ("geometric mean", "nrmse_geometric_mean", 3),
    ("95th percentile", "nrmse_p95", 3),
];

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
            let scope = regime.map_or(&result["overall"], |at| &result["regimes"][at]);
            let found = &scope["field"][&self.model][quantity];
            step.map_or(&found["rollout"], |step| &found["by_step"][step]).as_f64()
        };
        self.results.iter().map(|result| of(result).unwrap_or(f64::NAN)).collect()
    }
}

fn mean_and_spread(all: &[Vec<f64>], digits: usize) -> Vec<Cell> {
    let moments: Vec<(f64, f64)> = all.iter().map(|values| moments(values)).collect();
    let means: Vec<Option<f64>> = moments.iter().map(|(mean, _)| Some(*mean)).collect();
    let texts = equal_precision(&means, digits.min(3));
    let decimals = |text: &str| text.split_once('.').map_or(0, |(_, after)| after.len());
    let cell =
        |((text, (_, spread)), values): ((&String, &(f64, f64)), &Vec<f64>)| match values.len() > 1
            && *spread > 0.0
        {
            true => Cell::number(format!("{text} ± {spread:.*}", decimals(text))),
            false => Cell::number(text.clone()),
        };
    texts.iter().zip(&moments).zip(all).map(cell).collect()
}

fn overall(methods: &[Method]) -> Table {
    let mut columns = vec!["method", "of persistence"];
    columns.splice(1..1, QUANTITIES.iter().map(|(name, ..)| *name));
    columns.push("interval over trajectories");
    let mut table = Table::new(columns);
    let column = |at: usize| -> Vec<Cell> {
        let (name, quantity, digits) = QUANTITIES[at];
        let step = (name == "one step").then_some(1);
        let all: Vec<_> = methods.iter().map(|m| m.values(None, quantity, step)).collect();
        mean_and_spread(&all, digits)
    };
    let columns: Vec<Vec<Cell>> = (0..QUANTITIES.len()).map(column).collect();
    let pooled: Vec<Vec<f64>> =
        methods.iter().map(|m| m.values(None, QUANTITIES[0].1, None)).collect();
    let reference = moments(&pooled[0]).0;
    let ratios: Vec<Vec<f64>> =
        pooled.iter().map(|all| all.iter().map(|x| x / reference).collect()).collect();
    let ratios = mean_and_spread(&ratios, 3);
    for (at, method) in methods.iter().enumerate() {
        let [low, high] = ["nrmse_low", "nrmse_high"]
            .map(|quantity| moments(&method.values(None, quantity, None)).0);
        let bounds = equal_precision(&[Some(low), Some(high)], 3).join(" to ");
        let cells = columns.iter().map(|column| column[at].clone());
        let first = Cell::text(method.label.clone());
        let rest = [ratios[at].clone(), Cell::text(bounds)];
        table.row([first].into_iter().chain(cells).chain(rest));
    }
    table
}

fn by_regime(methods: &[Method]) -> Table {
    let mut table = Table::new(
        std::iter::once("regime".to_string()).chain(methods.iter().map(|m| m.label.clone())),
    );
    let regimes = methods[0].results[0]["regimes"].as_array().map_or(0, Vec::len);
    for at in 0..regimes {
        let parameter = &methods[0].results[0]["regimes"][at]["parameter"];
        let name = format!("{} = {}", parameter["name"].as_str().unwrap_or(""), parameter["value"]);
        let all: Vec<_> =
            methods.iter().map(|m| m.values(Some(at), QUANTITIES[0].1, None)).collect();
        table.row([Cell::text(name)].into_iter().chain(mean_and_spread(&all, 3)));
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
            "science_table ROOT OUT --title TEXT [--method LABEL=FOLDER:MODEL] [--note TEXT]",
        )
    };
    let (root, out) = (words.next().ok_or_else(usage)?, words.next().ok_or_else(usage)?);
    let (mut title, mut methods, mut notes) = (String::new(), Vec::new(), Vec::new());
    while let Some(option) = words.next() {
        let value = words.next().ok_or_else(usage)?;
        match option.as_str() {
            "--title" => title = value,
            "--note" => notes.push(value),
            "--method" => {
                let (label, rest) = value.split_once('=').ok_or_else(usage)?;
                let (folder, model) = rest.split_once(':').ok_or_else(usage)?;
                let [label, folder, model] = [label, folder, model].map(String::from);
                methods.push(Method { label, folder, model, results: Vec::new() });
            }
            _ => return Err(usage()),
        }
    }
    let seeds = seeds(Path::new(&root))?;
    for method in &mut methods {
        for seed in &seeds {
            let file = seed.join(&method.folder).join("metrics.json");
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
    document.paragraph(format!(
        "Means and standard deviations over {} seeds. RMSE / RMS: root mean square error of the decoded fields over all \
         steps of a rollout, divided by the root mean square of the validation split. Geometric mean and 95th percentile: \
         of the NRMSE of single rollouts. Interval: bootstrap over trajectories (95 %) of the pooled NRMSE, within a seed. \
         Differences below the spread over seeds are noise.",
        seeds.len()
    ));
    document.table(overall(&methods));
    document.heading("RMSE / RMS by regime");
    document.table(by_regime(&methods));
    unix::publish::publish_bytes(Path::new(&out), document.markdown().as_bytes())
}
