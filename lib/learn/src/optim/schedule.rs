//! Learning-rate schedule as a closed form of the update number, so it has no state to save or restore.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One phase of the learning-rate schedule; its factors multiply optimizer.learning_rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Shape of the curve from start to end.
    pub kind: PhaseKind,
    /// Length of the phase in updates. Null, in at most one phase: all updates that the other phases leave.
    #[serde(default)]
    pub updates: Option<u64>,
    /// Factor at the first update of the phase. Null: the end of the previous phase, or 1 in the first phase.
    #[serde(default)]
    pub start_factor: Option<f64>,
    /// Factor at the end of the phase.
    pub end_factor: f64,
}

/// Shape of the curve from start s to end e over N updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// s + (e - s)·k/N.
    Linear,
    /// e + (s - e)·(1 + cos(π·k/N))/2.
    Cosine,
}

/// The phases of a schedule, in order.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// First update, number of updates, start factor and end factor of each phase.
    phases: Vec<(u64, u64, f64, f64, PhaseKind)>,
}

impl Schedule {
    /// Resolves null lengths and starts. The error says what is inconsistent.
    pub fn new(phases: &[Phase], total: u64) -> Result<Self, String> {
        let fixed = phases.iter().filter_map(|p| p.updates).fold(0, u64::saturating_add);
        let open = phases.iter().filter(|p| p.updates.is_none()).count();
        if open > 1 {
            return Err(format!(
                "{open} phases have no updates: only one may take the remaining updates"
            ));
        }
        if phases.iter().any(|p| p.updates == Some(0)) {
            return Err("a phase needs at least one update".into());
        }
        if !phases.is_empty() && (fixed > total || (fixed == total) == (open == 1)) {
            return Err(format!(
                "the phases have {fixed} updates{}, but training.updates is {total}",
                if open == 1 { " and an open one needs at least 1" } else { "" }
            ));
        }
        let (mut first, mut reached) = (0, 1.0);
        let mut laid = Vec::new();
        for phase in phases {
            let updates = phase.updates.unwrap_or(total - fixed);
            let start = phase.start_factor.unwrap_or(reached);
            if ![start, phase.end_factor].iter().all(|f| *f >= 0.0 && f.is_finite()) {
                return Err("factors must not be negative".into());
            }
            laid.push((first, updates, start, phase.end_factor, phase.kind));
            first += updates;
            reached = phase.end_factor;
        }
        Ok(Self { phases: laid })
    }

    /// Learning-rate factor at an update, counted from 0.
    pub fn factor(&self, update: u64) -> f64 {
        let Some((first, updates, s, e, kind)) =
            self.phases.iter().rev().find(|(first, ..)| *first <= update)
        else {
            return 1.0;
        };
        let part = ((update - first) as f64 / *updates as f64).min(1.0);
        match kind {
            PhaseKind::Linear => s + (e - s) * part,
            PhaseKind::Cosine => e + (s - e) * (1.0 + (std::f64::consts::PI * part).cos()) / 2.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(kind: PhaseKind, updates: Option<u64>, start: Option<f64>, end: f64) -> Phase {
        Phase { kind, updates, start_factor: start, end_factor: end }
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
