//! Rotary position embedding on the host: frequencies of each rope type of transformers, and tables of cosines and
//! sines for the op [`Rotary`](tensor::ops::rotary::Rotary).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;
use tensor::{Dtype, Tensor};
use unix::config::Violations;

/// The rope types that are supported, as config.json names them.
pub const ROPE_TYPES: [&str; 4] = ["default", "linear", "llama3", "yarn"];

/// Angles of positions, with the names of transformers' `rope_parameters`. Frequency k of D/2 is f_k = θ^(-2k/D)
/// (Su et al. 2021, §3.3), where D is the head size; the angle at position p is p·f_k.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "rope_type", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeParameters {
    /// The frequencies as they are.
    Default {
        /// θ, the base of the frequencies.
        rope_theta: f64,
    },
    /// All frequencies divided by a factor (Chen et al. 2023, "Extending context window of large language models via
    /// positional interpolation").
    Linear {
        /// θ, the base of the frequencies.
        rope_theta: f64,
        /// Divides the frequencies.
        factor: f64,
    },
    /// Low frequencies divided by a factor, high ones kept, linear interpolation between them (Llama 3.1).
    Llama3 {
        /// θ, the base of the frequencies.
        rope_theta: f64,
        /// Divides the low frequencies.
        factor: f64,
        /// Frequencies with fewer periods than this in the original context are divided.
        low_freq_factor: f64,
        /// Frequencies with more periods than this in the original context are kept.
        high_freq_factor: f64,
        /// Longest sequence before the extension.
        original_max_position_embeddings: usize,
    },
    /// Low frequencies divided by a factor, high ones kept, linear interpolation over their numbers, and a larger
    /// temperature of the attention (Peng et al. 2023, "YaRN", §3.2 to 3.4).
    Yarn {
        /// θ, the base of the frequencies.
        rope_theta: f64,
        /// Divides the low frequencies.
        factor: f64,
        /// Longest sequence before the extension.
        original_max_position_embeddings: usize,
        /// Multiplies cosines and sines. Null: that of the paper, 0.1·ln(factor) + 1.
        #[serde(default)]
        attention_factor: Option<f64>,
        /// Frequencies with more periods than this in the original context are kept.
        #[serde(default = "beta_fast")]
        beta_fast: f64,
        /// Frequencies with fewer periods than this in the original context are divided.
        #[serde(default = "beta_slow")]
        beta_slow: f64,
        /// With `mscale_all_dim`, the attention factor is (0.1·mscale·ln(factor) + 1) / (0.1·mscale_all_dim·ln(factor) +
        /// 1) (DeepSeek-V3).
        #[serde(default)]
        mscale: Option<f64>,
        /// See `mscale`.
        #[serde(default)]
        mscale_all_dim: Option<f64>,
        /// Round the ends of the interpolation to whole numbers of frequencies, outwards.
        #[serde(default = "truncate")]
        truncate: bool,
    },
}

fn beta_fast() -> f64 {
    32.0
}

fn beta_slow() -> f64 {
    1.0
}

fn truncate() -> bool {
    true
}

impl RopeParameters {
    /// θ, the base of the frequencies.
    pub fn theta(&self) -> f64 {
        match self {
            Self::Default { rope_theta }
            | Self::Linear { rope_theta, .. }
            | Self::Llama3 { rope_theta, .. }
            | Self::Yarn { rope_theta, .. } => *rope_theta,
        }
    }

    /// Violations that the schema does not express, by key.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut say = |key: &str, text: String| violations.push((key.into(), text));
        let mut above = |key: &str, number: f64, bound: f64| {
            if !(number.is_finite() && number > bound) {
                say(key, format!("must be greater than {bound}, not {number}"));
            }
        };
        // YaRN divides by its logarithm.
        above("rope_theta", self.theta(), 1.0);
        match self {
            Self::Default { .. } => {}
            Self::Linear { factor, .. } => above("factor", *factor, 0.0),
            Self::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
                ..
            } => {
                above("factor", *factor, 0.0);
                above("low_freq_factor", *low_freq_factor, 0.0);
                above("high_freq_factor", *high_freq_factor, *low_freq_factor);
                above("original_max_position_embeddings", *original as f64, 0.0);
            }
            Self::Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
                ..
            } => {
                above("factor", *factor, 0.0);
                above("original_max_position_embeddings", *original as f64, 0.0);
                above("attention_factor", attention_factor.unwrap_or(1.0), 0.0);
                above("beta_slow", *beta_slow, 0.0);
                above("beta_fast", *beta_fast, *beta_slow);
                above("mscale", mscale.unwrap_or(1.0), 0.0);
                above("mscale_all_dim", mscale_all_dim.unwrap_or(1.0), 0.0);
            }
        }
        violations
    }
}

/// Frequencies of a head, and what multiplies cosines and sines.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// D/2 angles per position.
    frequencies: Vec<f64>,
    factor: f64,
}

impl Rope {
    /// The frequencies of a head of `dim` elements, an even number. `parameters` have no violations.
    pub fn new(parameters: &RopeParameters, dim: usize) -> Self {
        let theta = parameters.theta();
        let plain: Vec<f64> =
            (0..dim / 2).map(|k| theta.powf(-2.0 * k as f64 / dim as f64)).collect();
        let all = |f: &dyn Fn(usize, f64) -> f64| -> Vec<f64> {
            plain.iter().enumerate().map(|(k, frequency)| f(k, *frequency)).collect()
        };
        match parameters {
            RopeParameters::Default { .. } => Self { frequencies: plain, factor: 1.0 },
            RopeParameters::Linear { factor, .. } => {
                Self { frequencies: all(&|_, f| f / factor), factor: 1.0 }
            }
            RopeParameters::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: original,
                ..
            } => {
                let scaled = |_, f: f64| {
                    let periods = *original as f64 * f / TAU;
                    let kept = ((periods - low) / (high - low)).clamp(0.0, 1.0);
                    f * (kept + (1.0 - kept) / factor)
                };
                Self { frequencies: all(&scaled), factor: 1.0 }
            }
            RopeParameters::Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
                truncate,
                ..
            } => {
                // The number of the frequency with so many periods in the original context.
                let number = |periods: f64| {
                    dim as f64 * (*original as f64 / (periods * TAU)).ln() / (2.0 * theta.ln())
                };
                let ends = [number(*beta_fast), number(*beta_slow)];
                let [low, high] = if *truncate { [ends[0].floor(), ends[1].ceil()] } else { ends };
                let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
                // transformers avoids a division by zero in the same way.
                let width = if low == high { 0.001 } else { high - low };
                let scaled = |k: usize, f: f64| {
                    let divided = ((k as f64 - low) / width).clamp(0.0, 1.0);
                    f * (divided / factor + 1.0 - divided)
                };
                let temperature = |scale: f64| match *factor > 1.0 {
                    true => 0.1 * scale * factor.ln() + 1.0,
                    false => 1.0,
                };
                let inferred = match (mscale, mscale_all_dim) {
                    (Some(scale), Some(all)) => temperature(*scale) / temperature(*all),
                    _ => temperature(1.0),
                };
                let factor = attention_factor.unwrap_or(inferred);
                Self { frequencies: all(&scaled), factor }
            }
        }
    }

    /// The table of `positions`: in each row D/2 cosines, then the D/2 sines of the same angles, in `dtype` (f32 or f64),
    /// [positions, D]. Angles are computed in f64, because those of distant positions have no fraction left in f32.
    pub fn table(&self, positions: &[i32], dtype: Dtype) -> Tensor {
        self.table_of(positions, |position, _| *position, dtype)
    }

    /// The table of positions on three axes: time, height and width. Frequency k has the angle of the height if k mod 3 = 1
    /// and k < 3·sections\[1\], that of the width if k mod 3 = 2 and k < 3·sections\[2\], and otherwise that of the time
    /// (interleaved M-RoPE: Bai et al. 2025, "Qwen3-VL technical report", §2.1).
    pub fn table_of_axes(
        &self,
        positions: &[[i32; 3]],
        sections: [usize; 3],
        dtype: Dtype,
    ) -> Tensor {
        let axis = |k: usize| if k < 3 * sections[k % 3] { k % 3 } else { 0 };
        self.table_of(positions, |position, k| position[axis(k)], dtype)
    }

    /// The table of any kind of positions; `of` is what frequency k multiplies.
    fn table_of<P>(&self, positions: &[P], of: impl Fn(&P, usize) -> i32, dtype: Dtype) -> Tensor {
        let mut values = Vec::with_capacity(positions.len() * 2 * self.frequencies.len());
        for position in positions {
            let frequencies = self.frequencies.iter().enumerate();
            let angles = frequencies.map(|(k, f)| f64::from(of(position, k)) * f);
            values.extend(angles.clone().map(|angle| angle.cos() * self.factor));
            values.extend(angles.map(|angle| angle.sin() * self.factor));
        }
        Tensor::from_slice(&values, &[positions.len(), 2 * self.frequencies.len()]).to_dtype(dtype)
    }
}
