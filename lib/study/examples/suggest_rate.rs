//! Measures the time of one suggestion in 10 dimensions after 100, 1,000 and 10,000 trials in memory (`make bench`).
//! tests/interop/study.py compares it with Optuna's.

use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use study::samplers::{Cma, Sampler};
use study::space::Space;
use study::trial::{State, Trial};

fn main() -> Result<(), serde_json::Error> {
    let spaces: BTreeMap<&str, Space> = serde_json::from_str(include_str!("spaces.json"))?;
    for (sampler, settings) in [("tpe", Sampler::default()), ("cma", Sampler::Cma(Cma::default()))]
    {
        for (name, space) in &spaces {
            for count in [100, 1_000, 10_000] {
                let trials = trials(space, count);
                // The fastest of several runs: other load on the machine only adds time.
                let mut fastest = Duration::MAX;
                for seed in 0..31 {
                    let start = Instant::now();
                    std::hint::black_box(settings.suggest(space, &trials, count, seed));
                    fastest = fastest.min(start.elapsed());
                }
                let ms = fastest.as_secs_f64() * 1e3;
                println!(
                    "{}",
                    json!({"sampler": sampler, "space": name, "trials": count, "ms": ms})
                );
            }
        }
    }
    Ok(())
}

/// Random trials with arbitrary values, which do not affect the time of a suggestion.
fn trials(space: &Space, count: u64) -> Vec<Trial> {
    let trial = |number| {
        let point = Sampler::Random.suggest(space, &[], number, 0)?;
        let value = Some(point.values().sum());
        let intermediate = BTreeMap::new();
        Some(Trial { number, state: State::Complete, point, value, intermediate })
    };
    (0..count).filter_map(trial).collect()
}
