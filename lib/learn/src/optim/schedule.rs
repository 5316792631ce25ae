//! Learning-rate schedule in closed form as a function of the update number, so there is no state to save or restore.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One phase of the learning-rate schedule; its factors multiply optimizer.learning_rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Shape of the curve from start to end.
    pub kind: PhaseKind,
    /// Length of the phase in updates. Null, in at most one phase without fraction: all updates that the other phases
    /// leave.
    #[serde(default)]
    pub updates: Option<u64>,
    /// Instead of updates: length as a fraction of training.updates, rounded down. A phase without updates is skipped.
    // Not serialised when null, so that configurations older than these keys keep their hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    /// Factor at the first update of the phase. Null: the end of the previous phase, or 1 in the first phase.
    #[serde(default)]
    pub start_factor: Option<f64>,
    /// Factor at the end of the phase.
    pub end_factor: f64,
    /// Exponent p of a polynomial. Null: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// Number c of half-waves of cosine_restarts. Null: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub cycles: Option<u64>,
}

/// Shape of the curve from start s to end e over N updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// s + (e - s)·k/N.
    Linear,
    /// e + (s - e)·(1 + cos(π·k/N))/2.
    Cosine,
    /// e + (s - e)·(1 + cos(π·(c·k/N mod 1)))/2: c cosines, each from s to e.
    CosineRestarts,
    /// e + (s - e)·(1 - k/N)ᵖ.
    Polynomial,
}

/// The phases of a schedule, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    phases: Vec<Resolved>,
}

/// A phase with its first update, number of updates, start factor and end factor.
#[derive(Clone, Debug)]
struct Resolved {
    first: u64,
    updates: u64,
    start: f64,
    end: f64,
    curve: Curve,
}

#[derive(Clone, Copy, Debug)]
enum Curve {
    Linear,
    Cosine(f64),
    Polynomial(f64),
}

impl Phase {
    /// Length of the phase in updates, out of `total`; None if it takes the remaining ones. The error describes the
    /// inconsistency.
    fn length(&self, total: u64) -> Result<Option<u64>, String> {
        match (self.updates, self.fraction) {
            (Some(_), Some(_)) => Err("a phase has either updates or a fraction".into()),
            (Some(0), None) => Err("a phase needs at least one update".into()),
            (_, Some(fraction)) if !(0.0..=1.0).contains(&fraction) => {
                Err(format!("the fraction {fraction} of a phase must lie in [0, 1]"))
            }
            (updates, None) => Ok(updates),
            (None, Some(fraction)) => Ok(Some((total as f64 * fraction) as u64)),
        }
    }

    fn curve(&self) -> Result<Curve, String> {
        let (power, cycles) = (self.power, self.cycles);
        if power.is_some() && self.kind != PhaseKind::Polynomial {
            return Err("only a polynomial phase has a power".into());
        }
        if cycles.is_some() && self.kind != PhaseKind::CosineRestarts {
            return Err("only cosine_restarts has cycles".into());
        }
        Ok(match self.kind {
            PhaseKind::Linear => Curve::Linear,
            PhaseKind::Cosine => Curve::Cosine(1.0),
            PhaseKind::CosineRestarts => Curve::Cosine(cycles.unwrap_or(1) as f64),
            PhaseKind::Polynomial => match power.unwrap_or(1.0) {
                power if power > 0.0 && power.is_finite() => Curve::Polynomial(power),
                power => return Err(format!("the power {power} must be a positive number")),
            },
        })
    }
}

impl Schedule {
    /// Resolves null lengths and start factors. The error describes the inconsistency.
    pub fn new(phases: &[Phase], total: u64) -> Result<Self, String> {
        let lengths: Vec<Option<u64>> =
            phases.iter().map(|phase| phase.length(total)).collect::<Result<_, _>>()?;
        let fixed = lengths.iter().flatten().fold(0, |sum: u64, n| sum.saturating_add(*n));
        let open = lengths.iter().filter(|updates| updates.is_none()).count();
        if open > 1 {
            return Err(format!(
                "{open} phases have no updates: only one may take the remaining updates"
            ));
        }
        if !phases.is_empty() && (fixed > total || (fixed == total) == (open == 1)) {
            return Err(format!(
                "the phases have {fixed} updates{}, but training.updates is {total}",
                if open == 1 { " and an open one needs at least 1" } else { "" }
            ));
        }
        let (mut first, mut reached) = (0, 1.0);
        let mut laid = Vec::new();
        for (phase, updates) in phases.iter().zip(lengths) {
            let updates = updates.unwrap_or(total - fixed);
            let (start, end) = (phase.start_factor.unwrap_or(reached), phase.end_factor);
            if ![start, end].iter().all(|f| *f >= 0.0 && f.is_finite()) {
                return Err("factors must not be negative".into());
            }
            let curve = phase.curve()?;
            if updates > 0 {
                laid.push(Resolved { first, updates, start, end, curve });
            }
            first += updates;
            reached = end;
        }
        Ok(Self { phases: laid })
    }

    /// Learning-rate factor at an update, counted from 0.
    pub fn factor(&self, update: u64) -> f64 {
        let Some(phase) = self.phases.iter().rev().find(|phase| phase.first <= update) else {
            return 1.0;
        };
        let Resolved { first, updates, start: s, end: e, curve } = *phase;
        let part = ((update - first) as f64 / updates as f64).min(1.0);
        match curve {
            Curve::Linear => s + (e - s) * part,
            // The last cosine ends at e instead of restarting at s.
            Curve::Cosine(cycles) if cycles > 1.0 && part == 1.0 => e,
            Curve::Cosine(cycles) => {
                let part = if cycles > 1.0 { (cycles * part).fract() } else { part };
                e + (s - e) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0
            }
            Curve::Polynomial(power) => e + (s - e) * (1.0 - part).powf(power),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(kind: PhaseKind, updates: Option<u64>, start: Option<f64>, end: f64) -> Phase {
        Phase {
            kind,
            updates,
            fraction: None,
            start_factor: start,
            end_factor: end,
            power: None,
            cycles: None,
        }
    }

    /// Learning-rate factors of transformers and PyTorch at every update and after the last one
    /// (`tests/golden/schedules.py`).
    #[test]
    fn factors_are_those_of_transformers_and_pytorch() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/schedules.json");
        let golden: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let mut compared = 0;
        for case in golden["phases"].as_array().unwrap() {
            let total = case["updates"].as_u64().unwrap();
            let phases: Vec<Phase> = serde_json::from_value(case["schedule"].clone()).unwrap();
            let schedule = Schedule::new(&phases, total).unwrap();
            for (update, expected) in (0..).zip(case["factors"].as_array().unwrap()) {
                let (found, expected) = (schedule.factor(update), expected.as_f64().unwrap());
                let what = format!("{} at {update}: {found}, not {expected}", case["name"]);
                assert!((found - expected).abs() < 1e-12, "{what}");
                compared += 1;
            }
        }
        assert!(compared > 100, "{compared}");
        // The golden file's first lists, made with PyTorch's schedulers in sequence.
        for case in golden["schedules"].as_array().unwrap() {
            let total = case["total_updates"].as_u64().unwrap();
            let numbers = |key: &str| -> Vec<f64> {
                case[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
            };
            let stages = case["stages"].as_array().unwrap().iter();
            let stages = stages.zip(numbers("lengths")).zip(numbers("start_factors"));
            let phases: Vec<Phase> = stages
                .map(|((stage, length), start)| {
                    let kind = match stage["name"].as_str().unwrap() {
                        "LinearLR" => PhaseKind::Linear,
                        _ => PhaseKind::Cosine,
                    };
                    phase(
                        kind,
                        Some(length as u64),
                        Some(start),
                        stage["end_factor"].as_f64().unwrap(),
                    )
                })
                .collect();
            let schedule = Schedule::new(&phases, total).unwrap();
            let base = case["learning_rate"].as_f64().unwrap();
            for (update, expected) in (0..).zip(numbers("torch")) {
                let found = base * schedule.factor(update);
                assert!((found - expected).abs() < 1e-13 * base, "{} at {update}", case["name"]);
            }
        }
    }

    #[test]
    fn lengths_may_be_fractions_and_vanish() {
        let of = |text: &str, total| {
            let phases: Vec<Phase> = serde_json::from_str(text).unwrap();
            Schedule::new(&phases, total)
        };
        let warmup = |fraction: f64| {
            format!(
                r#"[{{"kind": "linear", "fraction": {fraction}, "start_factor": 0.0, "end_factor": 1.0}},
                    {{"kind": "linear", "end_factor": 0.0}}]"#
            )
        };
        let factors = |fraction| {
            let schedule = of(&warmup(fraction), 10).unwrap();
            [0, 1, 2, 5].map(|update| schedule.factor(update))
        };
        assert_eq!(factors(0.0), [1.0, 0.9, 0.8, 0.5]);
        assert_eq!(factors(0.09), factors(0.0));
        assert_eq!(factors(0.29), [0.0, 0.5, 1.0, 0.625]);
        for (fraction, word) in [(1.0, "open one"), (1.1, "[0, 1]"), (-0.1, "[0, 1]")] {
            let error = of(&warmup(fraction), 10).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        for (keys, word) in [
            (r#""kind": "linear", "updates": 5, "fraction": 0.5"#, "either"),
            (r#""kind": "linear", "power": 2.0"#, "only a polynomial"),
            (r#""kind": "cosine", "cycles": 2"#, "only cosine_restarts"),
            (r#""kind": "polynomial", "power": 0.0"#, "positive"),
        ] {
            let error = of(&format!(r#"[{{{keys}, "end_factor": 0.0}}]"#), 10).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn three_phases_switch_at_cumulative_sums() {
        use PhaseKind::{Cosine, Linear};
        let phases = [
            phase(Linear, Some(50), Some(0.001), 1.0),
            phase(Cosine, None, None, 0.01),
            phase(Linear, Some(10), None, 0.0),
        ];
        let schedule = Schedule::new(&phases, 600).unwrap();
        assert_eq!(schedule.factor(0), 0.001);
        assert!((schedule.factor(25) - 0.5005).abs() < 1e-12);
        assert_eq!(schedule.factor(50), 1.0);
        assert!((schedule.factor(320) - 0.505).abs() < 1e-12); // half of the cosine's 540 updates
        // The last phase starts from the factor reached at update 590, not 540.
        assert!((schedule.factor(540) - 0.030_4).abs() < 1e-3);
        assert!((schedule.factor(590) - 0.01).abs() < 1e-12);
        assert!((schedule.factor(595) - 0.005).abs() < 1e-12);
        assert!((schedule.factor(599) - 0.001).abs() < 1e-12);
    }

    #[test]
    fn lengths_must_add_up() {
        use PhaseKind::Linear;
        assert!(Schedule::new(&[], 7).unwrap().factor(3) == 1.0);
        let open = phase(Linear, None, None, 0.5);
        let ten = phase(Linear, Some(10), None, 0.5);
        let zero = phase(Linear, Some(0), None, 0.5);
        assert!(Schedule::new(&[open.clone(), open.clone()], 20).unwrap_err().contains("only one"));
        assert!(Schedule::new(std::slice::from_ref(&ten), 11).is_err());
        assert!(Schedule::new(std::slice::from_ref(&ten), 9).is_err());
        assert!(Schedule::new(&[ten.clone(), open.clone()], 10).is_err());
        assert!(Schedule::new(&[zero, open.clone()], 10).is_err());
        assert!(Schedule::new(std::slice::from_ref(&ten), 10).is_ok());
        assert!(Schedule::new(&[ten, open], 11).is_ok());
    }
}
