//! The optimal checkpoint interval, which balances the cost of saving against the work lost in a failure.
//!
//! Let c be the time for which a checkpoint blocks training and M the mean time between failures. Young (1974) derives
//! the interval sqrt(2 c M), and Daly (2006, equation 37), with the next terms, sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + c /
//! 18M) - c for c < 2M, else M. In the same model, with a checkpoint after every t of work, that work takes the time M
//! (exp((t + c) / M) - 1), not counting restarts; the difference from t is lost. The end of a job is not a failure: it
//! is known in advance, and a checkpoint is saved before it.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::run_dir::RunDir;
use crate::{Error, Result, log};

/// Checkpoint times in seconds that a run measured; means over its log.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CheckpointTimes {
    /// Time for which a checkpoint blocked training.
    pub cost: Option<f64>,
    /// Time until a checkpoint was on disk.
    pub saved_after: Option<f64>,
    /// Duration of an update.
    pub update: Option<f64>,
}

/// The result, which is also the record of `timekeep interval --json`. Times in seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Time between two checkpoints.
    pub seconds: f64,
    /// The interval in updates: the value for `checkpoint.every`.
    pub updates: Option<u64>,
    /// Fraction of time lost to saving and failures at this interval.
    pub lost_share: f64,
    /// Young's first-order interval.
    pub young: f64,
    /// Daly's interval.
    pub daly: f64,
    /// The cost of a checkpoint.
    pub cost: f64,
    /// Mean time between failures of the whole job.
    pub mtbf: f64,
}

/// Reads the measured times from the log of a run. Errors: 66, 74.
pub fn measured(run: &Path) -> Result<CheckpointTimes> {
    let records = log::read(&RunDir::open(run)?.log())?.records;
    let mean = |kind: &str, field: &str| {
        let of_kind = |record: &&Map<String, Value>| record.get("kind").is_some_and(|k| k == kind);
        let values =
            records.iter().filter(of_kind).filter_map(|record| record.get(field)?.as_f64());
        let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
        (count > 0).then(|| sum / f64::from(count))
    };
    Ok(CheckpointTimes {
        cost: mean("checkpoint", "blocked_s"),
        saved_after: mean("saved", "seconds"),
        update: mean("update", "seconds"),
    })
}

/// Computes the optimal interval for a job on `nodes` nodes, each with mean time between failures `node_mtbf`. Errors:
/// 2 if the cost is unknown, a time is 0, or a checkpoint costs nothing at all.
pub fn best(measured: &CheckpointTimes, node_mtbf: Duration, nodes: u32) -> Result<Interval> {
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
    // Checkpoints are written one at a time, concurrently with training: with a shorter interval, training would only
    // wait.
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
        let measured = CheckpointTimes { cost: Some(cost), ..CheckpointTimes::default() };
        best(&measured, Duration::from_secs(mtbf), nodes).unwrap()
    }

    #[test]
    fn young_and_daly() {
        // c = 50 s, M = 10 000 s: sqrt(2 * 50 * 10000) = 1000; 1000 (1 + 0.05 / 3 + 0.0025 / 9) - 50.
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
        // Daly's model: total time per unit of work, for work t and a checkpoint under failures at rate 1/M.
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
        let free = CheckpointTimes { cost: Some(0.0), saved_after: Some(8.0), update: Some(2.0) };
        let found = best(&free, Duration::from_secs(3600), 1).unwrap();
        assert_eq!((found.seconds, found.updates), (8.0, Some(4)));
        let slow = CheckpointTimes { update: Some(100.0), ..free };
        assert_eq!(best(&slow, Duration::from_secs(3600), 1).unwrap().updates, Some(1));
    }

    #[test]
    fn what_is_unknown_is_asked_for() {
        let error = best(&CheckpointTimes::default(), Duration::from_secs(1), 1).unwrap_err();
        assert!(error.to_string().contains("--cost"), "{error}");
        let some = CheckpointTimes { cost: Some(1.0), ..CheckpointTimes::default() };
        assert!(best(&some, Duration::ZERO, 1).is_err());
        assert!(best(&some, Duration::from_secs(1), 0).is_err());
        let free = CheckpointTimes { cost: Some(0.0), ..CheckpointTimes::default() };
        assert!(best(&free, Duration::from_secs(1), 1).unwrap_err().to_string().contains("--cost"));
    }
}
