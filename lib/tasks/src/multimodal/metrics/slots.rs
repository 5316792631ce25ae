//! How much of a meaning a text expresses, given the slots that a parser finds in it.

use serde::{Deserialize, Serialize};

/// Counts of correct slots, for sentences whose meanings have `N` slots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotScores<const N: usize> {
    sentences: u64,
    /// By slot, the number of sentences that express its true value.
    correct: Vec<u64>,
    /// Number of sentences in which all slots are correct.
    all: u64,
    grammatical: u64,
}

impl<const N: usize> Default for SlotScores<N> {
    fn default() -> Self {
        Self { sentences: 0, correct: vec![0; N], all: 0, grammatical: 0 }
    }
}

impl<const N: usize> SlotScores<N> {
    /// Adds a sentence: the true slots, what the parser finds (`None`: missing or contradictory, which is wrong), and
    /// whether the sentence belongs to the language.
    pub fn add(&mut self, truth: &[u8; N], parsed: &[Option<u8>; N], grammatical: bool) {
        let correct: [bool; N] = std::array::from_fn(|slot| parsed[slot] == Some(truth[slot]));
        self.correct.iter_mut().zip(correct).for_each(|(n, own)| *n += u64::from(own));
        self.sentences += 1;
        self.all += u64::from(correct.iter().all(|own| *own));
        self.grammatical += u64::from(grammatical);
    }

    /// Adds the counts of other sentences.
    pub fn merge(&mut self, other: &Self) {
        self.sentences += other.sentences;
        self.correct.iter_mut().zip(&other.correct).for_each(|(n, own)| *n += own);
        self.all += other.all;
        self.grammatical += other.grammatical;
    }

    /// Number of sentences. Without sentences, every share is NaN.
    pub fn sentences(&self) -> u64 {
        self.sentences
    }

    /// The share of correct slots.
    pub fn slots(&self) -> f64 {
        self.correct.iter().sum::<u64>() as f64 / (self.sentences * N as u64) as f64
    }

    /// The share of correct values of each slot.
    pub fn by_slot(&self) -> [f64; N] {
        std::array::from_fn(|slot| self.share(self.correct[slot]))
    }

    /// The share of sentences in which all slots are correct.
    pub fn all_slots(&self) -> f64 {
        self.share(self.all)
    }

    /// The share of sentences that belong to the language.
    pub fn grammatical(&self) -> f64 {
        self.share(self.grammatical)
    }

    fn share(&self, count: u64) -> f64 {
        count as f64 / self.sentences as f64
    }
}
