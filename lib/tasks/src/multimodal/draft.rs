//! Texts that are sampled step by step.

use super::sample::{Reveal, TextSampler};
use std::f64::consts::FRAC_PI_2;
use tensor::random::Philox;

/// Fraction of the tokens that each step of remasking predicts again.
const REMASKED: f64 = 0.25;

/// A text in progress.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub ids: Vec<i32>,
    /// Minus the entropy, in nats, of the distribution from which each known token was chosen; -∞ for masked ones.
    pub confidence: Vec<f32>,
}

/// Returns the entropy, in nats, of the distribution with these logits over all tokens but the mask. Its order is better
/// than that of the highest probability: where two synonyms share the probability, less is open than where a token is a
/// little more probable and the rest is spread over many.
fn entropy(x: &[f32], mask: usize) -> f32 {
    let own = || x.iter().enumerate().filter(|(id, _)| *id != mask).map(|(_, x)| *x);
    let most = own().fold(f32::NEG_INFINITY, f32::max);
    let (sum, weighted) = own().fold((0.0, 0.0), |(sum, weighted), x| {
        let p = (x - most).exp();
        (sum + p, weighted + p * (x - most))
    });
    f32::ln(sum) - weighted / sum
}

/// Returns the most probable token but the mask or, with a temperature, the one at which the cumulative distribution that
/// is proportional to exp(x/temperature) exceeds `u`.
fn chosen_of(x: &[f32], mask: usize, temperature: f64, u: f64) -> usize {
    let own = || x.iter().enumerate().filter(|(id, _)| *id != mask);
    let (best, most) = own().fold((0, f32::NEG_INFINITY), |best, (id, x)| match *x > best.1 {
        true => (id, *x),
        false => best,
    });
    if temperature <= 0.0 {
        return best;
    }
    let inverse = (1.0 / temperature) as f32;
    let weight = |x: &f32| f64::from(((x - most) * inverse).exp());
    let mut left = u * own().map(|(_, x)| weight(x)).sum::<f64>();
    let passed = own().find(|(_, x)| {
        left -= weight(x);
        left < 0.0
    });
    passed.map_or(best, |(id, _)| id)
}

/// Returns ln Σ exp(x).
pub(super) fn log_sum_exp(x: &[f32]) -> f32 {
    let most = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    most + x.iter().map(|x| (x - most).exp()).sum::<f32>().ln()
}

impl Draft {
    /// Chooses a token for every masked position, and keeps those that the sampler reveals in this step.
    pub fn reveal(
        &mut self,
        sampler: &TextSampler,
        step: usize,
        (random, key): (&Philox, u64),
        (logits, mask): (&[f32], i32),
    ) {
        let (length, width) = (self.ids.len(), logits.len() / self.ids.len());
        let mut chosen: Vec<(usize, i32, f32)> = Vec::new();
        for (place, row) in logits.chunks_exact(width).enumerate() {
            if self.ids[place] != mask {
                continue;
            }
            let u = random.uniform64(key, place as u64);
            let id = chosen_of(row, mask as usize, sampler.temperature, u);
            chosen.push((place, id as i32, -entropy(row, mask as usize)));
        }
        let last = step + 1 >= sampler.steps;
        if sampler.reveal == Reveal::Ancestral && !last {
            // A token that is masked at time t is revealed by time s with probability (t - s)/t.
            let left = (sampler.steps - step) as f64;
            let of_place = |place: usize| random.uniform64(key, (length + place) as u64);
            chosen.retain(|(place, ..)| of_place(*place) * left < 1.0);
        } else {
            let known = length - chosen.len();
            let wanted = if last { length } else { sampler.known(step, length) };
            // The most confident ones first; ties by place.
            chosen.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
            chosen.truncate(wanted.max(known + 1) - known);
        }
        for (place, id, confidence) in chosen {
            self.ids[place] = id;
            self.confidence[place] = confidence;
        }
    }

    /// Masks the tokens with the least confidence again.
    pub fn remask(&mut self, mask: i32) {
        let mut order: Vec<usize> = (0..self.ids.len()).collect();
        order.sort_by(|a, b| self.confidence[*a].total_cmp(&self.confidence[*b]).then(a.cmp(b)));
        let count = (REMASKED * self.ids.len() as f64).ceil() as usize;
        for place in order.into_iter().take(count) {
            self.ids[place] = mask;
            self.confidence[place] = f32::NEG_INFINITY;
        }
    }
}

impl TextSampler {
    /// Number of known tokens after a step.
    fn known(&self, step: usize, length: usize) -> usize {
        let u = (step + 1) as f64 / self.steps as f64;
        match self.reveal {
            Reveal::Cosine => (length as f64 * (1.0 - (FRAC_PI_2 * u).cos())) as usize,
            Reveal::Linear | Reveal::Ancestral => (length as f64 * u).ceil() as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::random::Purpose;

    const LENGTH: usize = 20;
    const MASK: i32 = 3;

    fn masked() -> Draft {
        Draft { ids: vec![MASK; LENGTH], confidence: vec![f32::NEG_INFINITY; LENGTH] }
    }

    /// Logits of four tokens at each place; the mask is the most probable one.
    fn logits(of: impl Fn(usize) -> [f32; 3]) -> Vec<f32> {
        (0..LENGTH).flat_map(|place| [of(place).as_slice(), &[50.0]].concat()).collect()
    }

    #[test]
    fn steps_reveal_the_most_confident_tokens_in_the_numbers_of_the_schedule() {
        let random = Philox::new(test_support::seed(), Purpose::Test);
        // The later the place, the more confident.
        let logits = logits(|place| [place as f32, 0.0, 0.0]);
        for (reveal, expected) in [
            (Reveal::Linear, [5, 10, 15, 20]),
            // ⌊20·(1 - cos(πu/2))⌋ for u = 1/4, 1/2, 3/4 and 1.
            (Reveal::Cosine, [1, 5, 12, 20]),
        ] {
            let sampler = TextSampler { reveal, ..TextSampler::greedy(4) };
            let mut draft = masked();
            for (step, count) in expected.into_iter().enumerate() {
                draft.reveal(&sampler, step, (&random, 0), (&logits, MASK));
                let known: Vec<usize> =
                    (0..LENGTH).filter(|place| draft.ids[*place] != MASK).collect();
                assert_eq!(known, (LENGTH - count..LENGTH).collect::<Vec<_>>(), "{reveal} {step}");
            }
            assert_eq!(draft.ids[1..], [0; LENGTH - 1]);
            draft.remask(MASK);
            let hidden = (0..LENGTH).filter(|place| draft.ids[*place] == MASK);
            assert_eq!(hidden.collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        }
    }

    /// With the logits ln p: two places, of which the first has the more probable token and the larger entropy.
    #[test]
    fn the_place_with_the_least_entropy_is_the_most_confident() {
        let spread = |rest: f32| [rest.ln(); 6];
        let (first, second) = ([0.64_f32.ln()], [0.6_f32.ln(), 0.4_f32.ln()]);
        let rows = [
            [&first[..], &spread(0.06), &[50.0]].concat(),
            [&second[..], &[-60.0; 5], &[50.0]].concat(),
        ];
        // -Σ p·ln p; f32 rounds logits to 1e-7.
        let expected = [-0.64 * 0.64_f32.ln() - 6.0 * 0.06 * 0.06_f32.ln(), 0.673_011_67];
        for (row, expected) in rows.iter().zip(expected) {
            assert!((entropy(row, 7) - expected).abs() < 1e-6, "{} {expected}", entropy(row, 7));
        }
        let mut draft = Draft { ids: vec![7; 2], confidence: vec![f32::NEG_INFINITY; 2] };
        let random = Philox::new(test_support::seed(), Purpose::Test);
        draft.reveal(&TextSampler::greedy(2), 0, (&random, 0), (&rows.concat(), 7));
        assert_eq!(draft.ids, [7, 0]);
    }

    /// Counts of n draws with probability p have a standard deviation of √(n·p·(1 - p)); the tolerance is 5 of them.
    #[test]
    fn tokens_are_drawn_with_their_probabilities_and_revealed_at_random_times() {
        let random = Philox::new(test_support::seed(), Purpose::Test);
        let logits = logits(|_| [1.0, 0.0, -1.0]);
        let n = 400;
        for (temperature, reveal) in [(1.0, Reveal::Linear), (0.5, Reveal::Ancestral)] {
            let sampler = TextSampler { temperature, reveal, ..TextSampler::greedy(2) };
            let (mut counts, mut early) = ([0.0; 3], 0.0);
            for key in 0..n {
                let mut draft = masked();
                for step in 0..2 {
                    let random = random.at_update(step as u64);
                    draft.reveal(&sampler, step, (&random, key), (&logits, MASK));
                    let known = draft.ids.iter().filter(|id| **id != MASK).count();
                    early += if step == 0 { known as f64 } else { 0.0 };
                }
                draft.ids.iter().for_each(|id| counts[*id as usize] += 1.0);
            }
            let all = (n as usize * LENGTH) as f64;
            let near =
                |count: f64, p: f64| (count - all * p).abs() < 5.0 * (all * p * (1.0 - p)).sqrt();
            // Half of the tokens are revealed in the first of two steps.
            assert!(near(early, 0.5), "{reveal}: {early} of {all}");
            if reveal == Reveal::Ancestral {
                let powers = [1.0, 0.0, -1.0].map(|x: f64| (x / temperature).exp());
                let sum: f64 = powers.iter().sum();
                for (count, power) in counts.iter().zip(powers) {
                    assert!(near(*count, power / sum), "{counts:?}");
                }
            }
        }
    }
}
