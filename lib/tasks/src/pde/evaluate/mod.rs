//! Evaluation: the errors of trained models on unseen trajectories, compared with those of simple baselines.
//!
//! The operator is rolled out in the latent space of its codec from every start frame of every trajectory; every state
//! is decoded and compared with the ground truth in physical units. The baselines are persistence, the mean of the
//! training data, and the reconstruction by the codec. A regression model is compared with the mean of the training
//! solutions and with the solution of the nearest training sample.

mod batch;
pub(crate) mod errors;
mod evaluator;
pub mod options;
pub mod pictures;
mod plan;
mod protocol;
mod report;
mod result;
mod rollouts;
mod scores;
pub(crate) mod spectrum;
mod views;

pub use batch::{Batch, Cost, Frames, Space};
pub use errors::{Errors, Quantities};
pub(crate) use evaluator::{RolloutEvaluator, open};
pub use plan::{RegimePlan, RolloutPlan, RolloutRequest, Start};
pub use result::{Evaluation, Regime};
pub use rollouts::Rollouts;
pub(crate) use rollouts::require_fields;
pub use scores::{Method, Scores};
pub use spectrum::{BANDS, Spectrum, in_bands};
pub use views::{Averaged, Views};
