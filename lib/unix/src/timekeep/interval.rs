//! How far apart checkpoints should be: what saving costs against what a failure loses.
//!
//! With c the time that a checkpoint keeps training from going on and M the mean time between failures,
//! Young (1974) finds sqrt(2 c M), and Daly (2006, equation 37) with its next terms
//! sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + c / 18M) - c for c < 2M, else M. With a checkpoint after every t of
//! work that takes M (exp((t + c) / M) - 1) of time in the same model, restarts left out; the rest is lost. The
//! end of a job is no failure: it is known, and saved for.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::run_dir::RunDir;
use crate::{Error, Result, log};

/// What a run measured of its checkpoints, in seconds; means over its log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// How long a checkpoint kept training from going on.
    pub cost: Option<f64>,
    /// How long it took until it was on the disk.
    pub saved_after: Option<f64>,
    /// How long an update takes.
    pub update: Option<f64>,
}

/// The answer: the record of `timekeep interval --json`. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Between two checkpoints.
    pub seconds: f64,
    /// The same in updates: `checkpoint.every`.
    pub updates: Option<u64>,
    /// The share of the time that saving and failures cost then.
    pub lost_share: f64,
    /// Young's first order.
    pub young: f64,
    /// Daly's.
    pub daly: f64,
    /// What a checkpoint costs.
    pub cost: f64,
    /// Mean time between failures of the whole job.
    pub mtbf: f64,
}

/// Reads what the log of a run tells. Errors: 66, 74.
pub fn measured(run: &Path) -> Result<Measured> {
    let records = log::read(&RunDir::open(run)?.log())?.records;
    let mean = |kind: &str, field: &str| {
        let of_kind = |record: &&Map<String, Value>| record.get("kind").is_some_and(|k| k == kind);
        let values =
            records.iter().filter(of_kind).filter_map(|record| record.get(field)?.as_f64());
        let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    Ok(Measured {
        cost: mean("checkpoint", "blocked_s"),
        saved_after: mean("saved", "seconds"),
        update: mean("update", "seconds"),
    })
}

/// The best interval for a job on `nodes` nodes, each of which fails once in `node_mtbf`.
/// Errors: 2 without a cost, with a time that is 0, or where a checkpoint costs nothing at all.
pub fn best(measured: &Measured, node_mtbf: Duration, nodes: u32) -> Result<Interval> {
    let cost = measured.cost.ok_or_else(|| {
        Error::usage("no checkpoint was measured: name a run that has saved one, or give --cost")
    })?;
    if node_mtbf.is_zero() || nodes == 0 || !cost.is_finite() || cost < 0.0 {
        return Err(Error::usage("--mtbf and --nodes must be more than 0, --cost not less"));
    }
    let mtbf = node_mtbf.as_secs_f64() / f64::from(nodes);
    let young = (2.0 * cost * mtbf).sqrt();
    let daly = if cost < 2.0 * mtbf {
        young * (1.0 + (cost / (2.0 * mtbf)).sqrt() / 3.0 + cost / (18.0 * mtbf)) - cost
    } else {
        mtbf
    };
    // One at a time is saved, beside training: a shorter interval would only make it wait.
    let update = measured.update.filter(|seconds| *seconds > 0.0);
    let floor = measured.saved_after.unwrap_or(0.0).max(update.unwrap_or(0.0));
    let seconds = daly.max(floor);
    if seconds <= 0.0 {
        return Err(Error::usage(
            "a checkpoint that costs nothing can be made all the time: name a run that has saved one, \
             or give what one costs as --cost",
        ));
    }
    Ok(Interval {
        seconds,
        updates: update.map(|update| (seconds / update).round().max(1.0) as u64),
        lost_share: 1.0 - seconds / (mtbf * ((seconds + cost) / mtbf).exp_m1()),
        young,
        daly,
        cost,
        mtbf,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(cost: f64, mtbf: u64, nodes: u32) -> Interval {
        let measured = Measured { cost: Some(cost), ..Measured::default() };
        best(&measured, Duration::from_secs(mtbf), nodes).unwrap()
    }

    #[test]
    fn young_and_daly() {
        // 50 s in 10 000 s: sqrt(2 * 50 * 10000) = 1000; 1000 (1 + 0.05 / 3 + 0.0025 / 9) - 50.
        let found = of(50.0, 10_000, 1);
        assert!((found.young - 1000.0).abs() < 1e-9);
        assert!((found.daly - (1000.0 * (1.0 + 0.05 / 3.0 + 0.0025 / 9.0) - 50.0)).abs() < 1e-9);
        assert_eq!(of(50.0, 40_000, 4).daly, found.daly);
        assert_eq!(of(300.0, 100, 1).daly, 100.0, "saving takes longer than two lives");
        assert!((of(300.0, 100, 1).lost_share - (1.0 - 1.0 / (4f64.exp() - 1.0))).abs() < 1e-12);
        let small = of(1.0, 1_000_000, 1);
        let first_order = 1.0 / small.seconds + small.seconds / 2e6;
        assert!((small.lost_share / first_order - 1.0).abs() < 1e-2, "{small:?}");
    }

    #[test]
    fn daly_is_the_minimum_of_the_exact_waste() {
        // Daly's model: time for work t and a checkpoint under failures at rate 1/M, per t of work.
        let waste = |t: f64, cost: f64, mtbf: f64| mtbf * (((t + cost) / mtbf).exp() - 1.0) / t;
        for (cost, mtbf) in [(1.0, 3600.0), (60.0, 7200.0), (300.0, 86_400.0)] {
            let at = of(cost, mtbf as u64, 1).daly;
            let here = waste(at, cost, mtbf);
            for factor in [0.9, 0.95, 1.05, 1.1] {
                assert!(here < waste(factor * at, cost, mtbf), "{cost} {mtbf} {factor}");
            }
        }
    }

    #[test]
    fn never_more_often_than_saves_end_or_updates_pass() {
        let free = Measured { cost: Some(0.0), saved_after: Some(8.0), update: Some(2.0) };
        let found = best(&free, Duration::from_secs(3600), 1).unwrap();
        assert_eq!((found.seconds, found.updates), (8.0, Some(4)));
        let slow = Measured { update: Some(100.0), ..free };
        assert_eq!(best(&slow, Duration::from_secs(3600), 1).unwrap().updates, Some(1));
    }

    #[test]
    fn what_is_unknown_is_asked_for() {
        let error = best(&Measured::default(), Duration::from_secs(1), 1).unwrap_err();
        assert!(error.to_string().contains("--cost"), "{error}");
        let some = Measured { cost: Some(1.0), ..Measured::default() };
        assert!(best(&some, Duration::ZERO, 1).is_err());
        assert!(best(&some, Duration::from_secs(1), 0).is_err());
        let free = Measured { cost: Some(0.0), ..Measured::default() };
        assert!(best(&free, Duration::from_secs(1), 1).unwrap_err().to_string().contains("--cost"));
    }
}
