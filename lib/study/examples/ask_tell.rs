//! An in-memory search driven by another program: each line of stdin is a [`Request`] in JSON, answered by one line.
//! tests/interop/study.py uses it to compare the samplers with Optuna's.

use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Write, stdin, stdout};
use study::pruners::Pruner;
use study::samplers::Sampler;
use study::space::Space;
use study::trial::{Point, State, Trial};

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Starts a search.
    New(Search),
    /// Requests the parameters of the next trial.
    Ask,
    /// Reports a step and its value; the answer is whether to prune the trial.
    Report(u64, f64),
    /// Ends the trial: complete with a value, pruned without.
    Tell(Option<f64>),
}

#[derive(Deserialize)]
struct Search {
    space: Space,
    sampler: Sampler,
    #[serde(default)]
    pruner: Pruner,
    seed: u64,
    #[serde(skip)]
    trials: Vec<Trial>,
}

const NO_TRIAL: &str = "no trial is open; send ask first";

impl Search {
    fn ask(&mut self) -> Result<Value, String> {
        let number = self.trials.len() as u64;
        let point = self.sampler.suggest(&self.space, &self.trials, number, self.seed);
        let point: Point = point.ok_or("every combination has been tried")?;
        let values = self.space.values(&point);
        let intermediate = BTreeMap::new();
        self.trials.push(Trial { number, state: State::Open, point, value: None, intermediate });
        Ok(json!(values))
    }

    fn report(&mut self, step: u64, value: f64) -> Result<Value, String> {
        let (own, others) = self.trials.split_last_mut().ok_or(NO_TRIAL)?;
        own.intermediate.insert(step, value);
        Ok(json!(self.pruner.prunes("search", own, others)))
    }

    fn tell(&mut self, value: Option<f64>) -> Result<Value, String> {
        let trial = self.trials.last_mut().ok_or(NO_TRIAL)?;
        trial.value = value;
        trial.state = if value.is_some() { State::Complete } else { State::Pruned };
        Ok(Value::Null)
    }
}

fn main() -> Result<(), String> {
    let mut search: Option<Search> = None;
    for line in stdin().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let request = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        let answer = match (request, &mut search) {
            (Request::New(new), search) => {
                *search = Some(new);
                Value::Null
            }
            (Request::Ask, Some(search)) => search.ask()?,
            (Request::Report(step, value), Some(search)) => search.report(step, value)?,
            (Request::Tell(value), Some(search)) => search.tell(value)?,
            (_, None) => return Err("no search has been started".into()),
        };
        writeln!(stdout(), "{answer}").map_err(|error| error.to_string())?;
    }
    Ok(())
}
