//! Baselines without a network, in closed form: fitted to the training split and scored with the metrics of the models.
//! Texts are token ids without padding, vectors are [records, dim].

mod counts;
mod linear_slots;
mod nearest;
mod ridge;
#[cfg(test)]
mod tests;
mod unigram;

pub use linear_slots::LinearSlots;
pub use nearest::nearest;
pub use ridge::{TextFeatures, TextRidge};
pub use unigram::Unigram;
