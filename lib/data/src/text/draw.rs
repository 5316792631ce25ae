//! Random draws for synthetic texts.

use tensor::random::Philox;

/// The draws for one sample, such as a post or a sentence, one after the other.
pub(super) struct Draw {
    pub random: Philox,
    pub sample: u64,
    next: u64,
}

impl Draw {
    pub fn new(random: Philox, sample: u64) -> Self {
        Self { random, sample, next: 0 }
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.random.below(self.sample, self.next, n as u64) as usize
    }

    /// Returns true with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        (self.below(1 << 30) as f64) < probability * f64::from(1 << 30)
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
