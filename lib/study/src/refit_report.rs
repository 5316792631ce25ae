//! The results of a refit over its seeds: rows for stdout, and the report.

use crate::plot::PlotKind;
use crate::record::Record;
use crate::refit::{On, Spread};
use crate::study::Study;
use clap::ValueEnum;
use report::chart::Chart;
use report::document::{Cell, Document, Table, equal_precision};
use report::picture::{self, Format};
use serde_json::{Map, Value, json};
use unix::Result;

/// Configurations are listed if they are worse than the retrained trial by at most this many standard deviations over
/// seeds.
const MARGIN: f64 = 2.0;

/// Results over the seeds.
pub struct Results<'a> {
    /// The study that the retrained trial belongs to.
    pub search: &'a Study,
    /// The trial that was retrained.
    pub trial: &'a Record,
    /// The study of the refit.
    pub refit: Study,
    /// The splits that the models were trained on.
    pub on: On,
    /// Validation value by seed; `None` if the model was trained on the validation split.
    pub validation: Vec<Option<f64>>,
    /// Test results by seed.
    pub tests: Vec<Map<String, Value>>,
}

/// A measured quantity.
struct Quantity<'a> {
    /// The split on which it was measured.
    on: &'static str,
    name: &'a str,
    /// The value measured with each seed; `None` if it was not measured.
    values: Vec<Option<f64>>,
    spread: Spread,
}

impl Results<'_> {
    fn quantities(&self) -> Vec<Quantity<'_>> {
        let of = |on, name, values: Vec<Option<f64>>| {
            let spread = Spread::of(&values.iter().flatten().copied().collect::<Vec<_>>())?;
            Some(Quantity { on, name, values, spread })
        };
        let metric = self.search.config().metric.as_str();
        let validation = of("validation", metric, self.validation.clone());
        let first = self.tests.iter().find(|test| !test.is_empty());
        let tests = first.into_iter().flat_map(Map::keys).filter_map(|name| {
            let mut found = self.tests.iter().filter_map(|test| test.get(name));
            // An integer that is the same for all seeds is a setting, such as the number of steps.
            let first = found.next().filter(|first| !first.is_f64());
            let is_setting = first.is_some_and(|first| found.all(|value| value == first));
            let value = |test: &Map<String, Value>| test.get(name).and_then(Value::as_f64);
            let values = self.tests.iter().map(value).collect();
            if is_setting { None } else { of("test", name, values) }
        });
        validation.into_iter().chain(tests).collect()
    }

    /// Returns mean and spread of each quantity.
    pub fn rows(&self) -> impl Iterator<Item = Value> {
        self.quantities().into_iter().map(|Quantity { on, name, spread, .. }| {
            json!({
                "on": on, "metric": name, "seeds": spread.count, "mean": spread.mean, "std": spread.std,
                "min": spread.low, "max": spread.high,
            })
        })
    }

    /// Creates the report. Errors: 65, 66, 74.
    pub fn document(&self) -> Result<Document> {
        let (config, trial) = (self.search.config(), self.trial);
        let mut document = Document::new(format!("Refit of {}", self.search.name()));
        let round = self.search.round_of(trial.number).unwrap_or(0);
        let of_round = self.search.ranking(round);
        let records: Vec<&Record> = self.refit.records().values().collect();
        let seed = |record: Option<&&Record>| record.map_or(0, |record| record.start.seed);
        let rank = of_round.iter().position(|other| other.number == trial.number).unwrap_or(0) + 1;
        document.paragraph(format!(
            "Trial {} of round {}, ranked {rank} of {} complete trials by {} on the validation split ({} is better), \
             retrained with {} new seeds ({} to {}) on {}. The test split was used only for the numbers below, never \
             for selection.",
            trial.number,
            trial.start.round,
            of_round.len(),
            config.metric,
            if config.direction.sign() > 0.0 { "lower" } else { "higher" },
            records.len(),
            seed(records.first()),
            seed(records.last()),
            match self.on {
                On::Train => "the training split",
                On::TrainValidation => "the training and validation splits",
            },
        ));
        let quantities = self.quantities();
        document.heading("Results");
        let mut table = Table::new(["split", "metric", "mean", "std", "min", "max", "seeds"]);
        for Quantity { on, name, spread, .. } in &quantities {
            let numbers = [Some(spread.mean), spread.std, Some(spread.low), Some(spread.high)];
            let numbers =
                equal_precision(&numbers, 3).into_iter().chain([spread.count.to_string()]);
            let cells = [*on, name].into_iter().map(Cell::text);
            table.row(cells.chain(numbers.map(Cell::number)));
        }
        document.table(table);
        if self.tests.iter().all(Map::is_empty) {
            document.paragraph("No test was run: study.yaml has no test command.");
        }
        let validation = quantities.iter().find(|own| own.on == "validation");
        let validation = validation.map(|own| own.spread);
        if let Some(Spread { mean, .. }) = validation {
            let value = trial.value().unwrap_or(f64::NAN);
            let mut text =
                format!("The search found {value:.6}; the mean over the seeds is {mean:.6}.");
            if rank == 1 {
                text += &format!(
                    " The former is the best of {} values and therefore optimistically biased.",
                    of_round.len()
                );
            }
            document.paragraph(text);
        }
        document.heading("Seeds");
        let names = quantities.iter().map(|own| format!("{} {}", own.on, own.name));
        let first = ["trial", "seed", "state"].map(String::from).into_iter();
        let mut table = Table::new(first.chain(names));
        let columns: Vec<Vec<String>> =
            quantities.iter().map(|own| equal_precision(&own.values, 4)).collect();
        for (at, record) in records.iter().enumerate() {
            let numbers = [record.number, record.start.seed].map(|number| number.to_string());
            let state = record.end.as_ref().map_or("open", |end| end.state.name());
            let values = columns.iter().map(|column| Cell::number(&column[at]));
            let start = numbers.map(Cell::number).into_iter().chain([Cell::text(state)]);
            table.row(start.chain(values));
        }
        document.table(table);
        document.heading("Configuration");
        let mut table = Table::new(["key", "value"]);
        for (name, value) in records.first().into_iter().flat_map(|own| &own.start.params) {
            let changed = trial.start.params.get(name).is_some_and(|old| old != value);
            let text = if changed { format!("{value} (changed)") } else { value.to_string() };
            table.row([Cell::text(config.key(name)), Cell::text(text)]);
        }
        document.table(table);
        if let Some(std) = validation.and_then(|spread| spread.std) {
            self.neighbours(MARGIN * std, &mut document);
        }
        document.heading("Search");
        let plots = self.search.plots(round, PlotKind::value_variants())?;
        let charts: Vec<Chart> = plots.into_iter().map(|plot| plot.chart).collect();
        let picture = picture::draw(&charts, Format::Png)?;
        document.picture(format!("Round {} of the search", trial.start.round), picture);
        Ok(document)
    }

    /// Lists the configurations that differ from the retrained trial by no more than the noise over seeds.
    fn neighbours(&self, margin: f64, document: &mut Document) {
        document.heading("Configurations within noise");
        let found = self.search.within(self.trial, margin);
        let metric = &self.search.config().metric;
        let text = format!(
            "complete trials of the round are at most {MARGIN} standard deviations over the seeds ({margin:.3e} in \
             {metric}) worse than trial {}",
            self.trial.number
        );
        if found.is_empty() {
            return document.paragraph(format!("No other {text}."));
        }
        let count = found.len();
        document.paragraph(format!(
            "{count} other {text}; the search cannot distinguish them from it."
        ));
        let names = || self.trial.start.params.keys();
        let mut table =
            Table::new(["trial", metric].into_iter().chain(names().map(String::as_str)));
        for record in std::iter::once(self.trial).chain(found) {
            let value = record.value().unwrap_or(f64::NAN);
            let start = [record.number.to_string(), format!("{value:.6}")].map(Cell::number);
            let param =
                |name| record.start.params.get(name).map_or(String::new(), Value::to_string);
            table.row(start.into_iter().chain(names().map(|name| Cell::text(param(name)))));
        }
        document.table(table);
    }
}
