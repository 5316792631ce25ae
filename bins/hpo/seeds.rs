//! The results of a refit over its seeds: rows for stdout, and the report.

use report::document::{Cell, Document, Table, equal_precision};
use report::picture::Format;
use serde_json::{Map, Value, json};
use study::Study;
use study::record::Record;
use study::refit::Spread;
use unix::Result;

use crate::figures::KINDS;
use crate::plot::picture;
use crate::refit::On;

/// Configurations at most this many standard deviations over the seeds worse than the retrained trial are listed.
const MARGIN: f64 = 2.0;

/// Results over the seeds.
pub struct Results<'a> {
    /// The study of the search.
    pub search: &'a Study,
    /// The trial that was retrained.
    pub trial: &'a Record,
    /// The study of the refit.
    pub refit: &'a Study,
    /// The splits that the models were trained on.
    pub on: On,
    /// Validation value by seed; `None` if the model was trained on the validation split.
    pub validation: Vec<Option<f64>>,
    /// Test results by seed.
    pub tests: Vec<Map<String, Value>>,
}

impl Results<'_> {
    /// The measured quantities: split, name and values by seed.
    fn quantities(&self) -> Vec<(&'static str, &str, Vec<f64>)> {
        let metric = &self.search.config().metric;
        let values: Vec<f64> = self.validation.iter().flatten().copied().collect();
        let validation = (!values.is_empty()).then_some(("validation", metric.as_str(), values));
        let first = self.tests.iter().find(|test| !test.is_empty());
        let names = first.into_iter().flat_map(Map::keys);
        // An integer that is the same for all seeds is a setting, such as the number of steps.
        let is_setting = |name: &str| {
            let mut values = self.tests.iter().filter_map(|test| test.get(name));
            let first = values.next();
            first.is_some_and(|first| !first.is_f64() && values.all(|value| value == first))
        };
        let tests = names.filter(|name| !is_setting(name)).map(|name| {
            let of = |test: &Map<String, Value>| test.get(name).and_then(Value::as_f64);
            ("test", name.as_str(), self.tests.iter().filter_map(of).collect())
        });
        validation.into_iter().chain(tests).collect()
    }

    fn validation_spread(&self) -> Option<Spread> {
        Spread::of(&self.validation.iter().flatten().copied().collect::<Vec<_>>())
    }

    /// Mean and spread of each quantity.
    pub fn rows(&self) -> Vec<Value> {
        let row = |(on, name, values): (&str, &str, Vec<f64>)| {
            let spread = Spread::of(&values)?;
            Some(json!({
                "on": on, "metric": name, "seeds": spread.count, "mean": spread.mean, "std": spread.std,
                "min": spread.low, "max": spread.high,
            }))
        };
        self.quantities().into_iter().filter_map(row).collect()
    }

    /// The report.
    pub fn document(&self) -> Result<Document> {
        let (config, trial) = (self.search.config(), self.trial);
        let mut document = Document::new(format!("Refit of {}", self.search.name()));
        let of_round = self.search.ranking(self.search.round_of(trial.number).unwrap_or(0));
        let seeds: Vec<u64> = self.refit.records().values().map(|own| own.start.seed).collect();
        let (first, last) = (seeds.first().copied(), seeds.last().copied());
        let rank = of_round.iter().position(|other| other.number == trial.number).unwrap_or(0) + 1;
        let direction = if config.direction.sign() > 0.0 { "lower" } else { "higher" };
        let value = trial.end.as_ref().and_then(|end| end.value).unwrap_or(f64::NAN);
        document.paragraph(format!(
            "Trial {} of round {}, ranked {rank} of {} complete trials by {} on the validation split ({direction} is \
             better), retrained with {} new seeds ({} to {}) on {}. The test split was used only for the numbers \
             below, never for selection.",
            trial.number,
            trial.start.round,
            of_round.len(),
            config.metric,
            seeds.len(),
            first.unwrap_or(0),
            last.unwrap_or(0),
            match self.on {
                On::Train => "the training split",
                On::TrainValidation => "the training and validation splits",
            },
        ));
        self.results_table(&mut document);
        if let Some(spread) = self.validation_spread() {
            let mean = spread.mean;
            let text =
                format!("The search found {value:.6}; the mean over the seeds is {mean:.6}.");
            document.paragraph(match rank {
                1 => {
                    let count = of_round.len();
                    format!(
                        "{text} The former is the best of {count} values and therefore optimistically biased."
                    )
                }
                _ => text,
            });
        }
        self.seeds_table(&mut document);
        document.heading("Configuration");
        let mut table = Table::new(["key", "value"]);
        for (name, value) in
            self.refit.records().values().next().map(|own| &own.start.params).into_iter().flatten()
        {
            let changed = trial.start.params.get(name).is_some_and(|old| old != value);
            let text = if changed { format!("{value} (changed)") } else { value.to_string() };
            table.row([Cell::text(config.key(name)), Cell::text(text)]);
        }
        document.table(table);
        self.neighbours(&mut document);
        document.heading("Search");
        let round = self.search.round_of(trial.number).unwrap_or(0);
        let picture = picture(self.search, round, &KINDS, Format::Png)?;
        document.picture(format!("Round {} of the search", trial.start.round), picture);
        Ok(document)
    }

    fn results_table(&self, document: &mut Document) {
        document.heading("Results");
        let mut table = Table::new(["split", "metric", "mean", "std", "min", "max", "seeds"]);
        for (on, name, values) in self.quantities() {
            let Some(spread) = Spread::of(&values) else { continue };
            let numbers = [Some(spread.mean), spread.std, Some(spread.low), Some(spread.high)];
            let shown = equal_precision(&numbers, 3);
            let start = [Cell::text(on), Cell::text(name)].into_iter();
            let cells = start.chain(shown.into_iter().map(Cell::number));
            table.row(cells.chain([Cell::number(spread.count.to_string())]));
        }
        document.table(table);
        if self.tests.iter().all(Map::is_empty) {
            document.paragraph("No test was run: study.yaml has no test command.");
        }
    }

    fn seeds_table(&self, document: &mut Document) {
        document.heading("Seeds");
        let quantities = self.quantities();
        let names = quantities.iter().map(|(on, name, _)| format!("{on} {name}"));
        let first = ["trial", "seed", "state"].map(String::from).into_iter();
        let mut table = Table::new(first.chain(names));
        let column = |(on, name, _): &(&str, &str, Vec<f64>)| -> Vec<String> {
            let of = |test: &Map<String, Value>| test.get(*name).and_then(Value::as_f64);
            match *on {
                "validation" => equal_precision(&self.validation, 4),
                _ => equal_precision(&self.tests.iter().map(of).collect::<Vec<_>>(), 4),
            }
        };
        let columns: Vec<Vec<String>> = quantities.iter().map(column).collect();
        for (at, record) in self.refit.records().values().enumerate() {
            let state = record.end.as_ref().map_or("open", |end| end.state.name());
            let start = [
                Cell::number(record.number.to_string()),
                Cell::number(record.start.seed.to_string()),
                Cell::text(state),
            ];
            let values = columns.iter().map(|column| Cell::number(column[at].clone()));
            table.row(start.into_iter().chain(values));
        }
        document.table(table);
    }

    /// Lists the configurations that differ from the retrained trial by no more than the noise over seeds.
    fn neighbours(&self, document: &mut Document) {
        let Some(std) = self.validation_spread().and_then(|spread| spread.std) else { return };
        document.heading("Configurations within noise");
        let found = self.search.within(self.trial, MARGIN * std);
        let metric = &self.search.config().metric;
        let text = format!(
            "complete trials of the round are at most {MARGIN} standard deviations over the seeds ({:.3e} in {metric}) \
             worse than trial {}",
            MARGIN * std,
            self.trial.number
        );
        if found.is_empty() {
            return document.paragraph(format!("No other {text}."));
        }
        document.paragraph(format!(
            "{} other {text}; the search cannot distinguish them from it.",
            found.len()
        ));
        let names: Vec<&String> = self.trial.start.params.keys().collect();
        let columns = ["trial".to_string(), metric.clone()].into_iter();
        let mut table = Table::new(columns.chain(names.iter().map(|name| name.to_string())));
        for record in std::iter::once(self.trial).chain(found) {
            let value = record.end.as_ref().and_then(|end| end.value).unwrap_or(f64::NAN);
            let start =
                [Cell::number(record.number.to_string()), Cell::number(format!("{value:.6}"))];
            let params = names.iter().map(|name| {
                Cell::text(record.start.params.get(*name).map_or(String::new(), Value::to_string))
            });
            table.row(start.into_iter().chain(params));
        }
        document.table(table);
    }
}
