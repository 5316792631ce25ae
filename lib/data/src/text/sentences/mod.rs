//! A synthetic language whose sentences have a known meaning, with vectors of the meaning: pairs of a text and a vector
//! on which encoders, decoders and searches can be measured exactly.
//!
//! A meaning is the values of ten slots: who gives what to whom, and how. One meaning has many sentences, which differ in
//! their surface: synonyms, voice, the form of a negation, a preposition, and in the large language opening words and
//! the place of the time. The surface is drawn with known probabilities, so the entropy of the sentences of a meaning
//! ([`Language::entropy`]) is a floor of what a model of texts given their meanings can reach.

mod files;
mod grammar;
mod latent;
mod lexicon;
mod parse;

pub use files::{SentenceFile, Sentences};
pub use grammar::{Surface, Voice};

use crate::draw::Draw;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::random::{Philox, Purpose};

/// The size of a synthetic language.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Language {
    /// 173 words, sentences of 9 to 19 words.
    #[default]
    Small,
    /// 387 words, sentences of 11 to 24 words.
    Large,
}

/// Number of slots.
pub const SLOTS: usize = 10;

/// The value of each slot, in the order of [`SLOT_NAMES`]. Place and time are 0 where there is none; polarity is 1 for
/// a negation; tenses are past, present and future.
pub type Meaning = [u8; SLOTS];

/// The names of the slots. Agent and recipient are two different persons.
pub const SLOT_NAMES: [&str; SLOTS] = [
    "agent",
    "recipient",
    "verb",
    "thing",
    "adjective",
    "count",
    "place",
    "time",
    "polarity",
    "tense",
];

/// How much each slot contributes to the vector of a meaning.
pub const SLOT_WEIGHTS: [f64; SLOTS] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.7, 0.9, 0.8, 0.6, 0.6];

/// Indices of slots.
pub mod slot {
    #![allow(missing_docs)]
    pub const AGENT: usize = 0;
    pub const RECIPIENT: usize = 1;
    pub const VERB: usize = 2;
    pub const THING: usize = 3;
    pub const ADJECTIVE: usize = 4;
    pub const COUNT: usize = 5;
    pub const PLACE: usize = 6;
    pub const TIME: usize = 7;
    pub const POLARITY: usize = 8;
    pub const TENSE: usize = 9;
}

impl Language {
    /// Number of values of each slot.
    pub fn slot_sizes(self) -> [usize; SLOTS] {
        match self {
            Self::Small => [12, 12, 8, 12, 6, 4, 7, 6, 2, 3],
            Self::Large => [32, 32, 14, 32, 12, 6, 16, 12, 2, 3],
        }
    }

    /// Number of meanings.
    pub fn meanings(self) -> u64 {
        let sizes = self.slot_sizes().map(|size| size as u64);
        sizes.iter().product::<u64>() / sizes[slot::RECIPIENT] * (sizes[slot::RECIPIENT] - 1)
    }

    /// Number of dimensions of the vectors.
    pub fn latent_len(self) -> usize {
        match self {
            Self::Small => 32,
            Self::Large => 64,
        }
    }

    /// Returns meaning number `index` of a seed, uniformly distributed.
    pub fn random_meaning(self, seed: u64, index: u64) -> Meaning {
        self.draw_meaning(&mut Draw::new(Philox::new(seed, Purpose::Texts), index))
    }

    fn draw_meaning(self, draw: &mut Draw) -> Meaning {
        let mut meaning = self.slot_sizes().map(|size| draw.below(size) as u8);
        // Any person but the agent.
        let other = draw.below(self.slot_sizes()[slot::RECIPIENT] - 1) as u8;
        meaning[slot::RECIPIENT] = other + u8::from(other >= meaning[slot::AGENT]);
        meaning
    }

    /// Returns a different value of a slot than that of the meaning, uniformly distributed.
    fn draw_other(self, meaning: &Meaning, slot: usize, draw: &mut Draw) -> u8 {
        let other = draw.below(self.slot_sizes()[slot] - 1) as u8;
        other + u8::from(other >= meaning[slot])
    }
}

/// Returns the meaning with agent and recipient exchanged.
pub fn swapped(mut meaning: Meaning) -> Meaning {
    meaning.swap(slot::AGENT, slot::RECIPIENT);
    meaning
}

/// Returns the meaning with the other polarity.
pub fn flipped(mut meaning: Meaning) -> Meaning {
    meaning[slot::POLARITY] ^= 1;
    meaning
}

/// Returns the share of equal slots of two meanings, by [`SLOT_WEIGHTS`]: 1 for equal ones.
pub fn likeness(a: &Meaning, b: &Meaning) -> f64 {
    let equal = a.iter().zip(b).zip(SLOT_WEIGHTS).filter(|((a, b), _)| a == b);
    // From 0, as the sum of no numbers is -0.
    equal.fold(0.0, |sum, (_, weight)| sum + weight) / SLOT_WEIGHTS.iter().sum::<f64>()
}

/// Returns the meaning as text, for groups: `3-7-1-0-2-0-6-0-1-2`.
pub fn meaning_text(meaning: &Meaning) -> String {
    meaning.map(|value| value.to_string()).join("-")
}
