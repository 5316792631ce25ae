use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether a metric is minimised or maximised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Smaller is better: losses, errors.
    #[default]
    Minimize,
    /// Larger is better: accuracy, F1.
    Maximize,
}

impl Direction {
    /// Whether `a` is strictly better than `b`; a NaN never is.
    pub fn is_better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Minimize => a < b,
            Self::Maximize => a > b,
        }
    }
}
