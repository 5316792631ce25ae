//! Named metrics with their bootstrap intervals.

use learn::evaluate::{Stratum, bootstrap, interval};
use report::evaluation::{Metric as Scored, MetricsByName};
use serde_json::{Value, json};

/// Metrics by name, in the order of an evaluation file.
pub type NamedValues = Vec<(&'static str, Option<f64>)>;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its key in an evaluation file.
    pub name: &'static str,
    /// Its value; `None` if it is undefined for these samples.
    pub value: Option<f64>,
    /// Bounds of its 95 % interval, if one was computed.
    pub interval: Option<[f64; 2]>,
}

/// Metrics in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(pub Vec<Metric>);

impl Metrics {
    /// The metric called `name`, if there is one and it is defined.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|metric| metric.name == name)?.value
    }

    /// The metrics that `of` computes with all weights 1, with bootstrap confidence intervals unless `resampling` is
    /// None.
    ///
    /// `of` takes the weight of each sample: how often a resample contains it. Resamples in which a metric is undefined
    /// are left out of its interval.
    pub(crate) fn of(
        samples: usize,
        resampling: Resampling,
        of: impl Fn(&[u32]) -> NamedValues + Sync,
    ) -> Self {
        let values = of(&vec![1; samples]);
        let resampled = match resampling {
            Resampling::None => Vec::new(),
            Resampling::Samples => {
                bootstrap(&[Stratum { number: 0, clusters: samples }], |draws| {
                    of(&counts(samples, &draws[0]))
                })
            }
            Resampling::Groups(groups) => {
                let clusters = groups.iter().max().map_or(0, |last| last + 1);
                bootstrap(&[Stratum { number: 0, clusters }], |draws| {
                    let drawn = counts(clusters, &draws[0]);
                    of(&groups.iter().map(|group| drawn[*group]).collect::<Vec<_>>())
                })
            }
        };
        let metric = |(at, (name, value)): (usize, (&'static str, Option<f64>))| {
            let mut defined = resampled.iter().filter_map(|values| values[at].1).peekable();
            let bounded = value.is_some() && defined.peek().is_some();
            Metric { name, value, interval: bounded.then(|| interval(defined)) }
        };
        Self(values.into_iter().enumerate().map(metric).collect())
    }
}

/// How often each of `all` was drawn.
fn counts(all: usize, draws: &[usize]) -> Vec<u32> {
    let mut counts = vec![0; all];
    draws.iter().for_each(|drawn| counts[*drawn] += 1);
    counts
}

/// What a bootstrap resamples.
#[derive(Clone, Copy, Debug)]
pub enum Resampling<'a> {
    /// Nothing: values have no intervals.
    None,
    /// Single samples.
    Samples,
    /// All samples of a group together; the group of each sample, numbered from 0 without gaps.
    Groups(&'a [usize]),
}

/// Metrics for which smaller values are better.
const ERRORS: [&str; 4] = ["log_loss", "brier", "ece", "ece_top_label"];

impl Metrics {
    /// In the form of metrics.json, with names that begin with `prefix`.
    pub fn scored(&self, prefix: &str) -> MetricsByName {
        let of = |metric: &Metric| {
            let value = metric.value.unwrap_or(f64::NAN);
            let is_error = ERRORS.contains(&metric.name);
            let scored = if is_error { Scored::error(value) } else { Scored::score(value) };
            (format!("{prefix}{}", metric.name), scored.with_interval(metric.interval))
        };
        self.0.iter().map(of).collect()
    }

    /// A map from names to values; null where a metric is undefined.
    pub fn values(&self) -> Value {
        let pair = |metric: &Metric| (metric.name.to_string(), json!(metric.value));
        Value::Object(self.0.iter().map(pair).collect())
    }
}
