//! Random draws for synthetic texts and images.

use tensor::random::Philox;

/// The draws for one sample, such as a post, a sentence or a page, one after the other.
pub(crate) struct Draw {
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

    /// Returns a number from `least` to `most`, in 2³⁰ steps.
    #[cfg(feature = "images")]
    pub fn between(&mut self, least: f32, most: f32) -> f32 {
        least + (most - least) * (self.below(1 << 30) as f32 / (1u32 << 30) as f32)
    }

    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}
