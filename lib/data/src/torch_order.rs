//! The order of `torch.randperm`, for splits equal to those of `torch.utils.data.random_split`.

/// State of the generator MT19937 (Matsumoto and Nishimura 1998).
struct Mt19937 {
    state: [u32; 624],
    next: usize,
}

impl Mt19937 {
    fn new(seed: u32) -> Self {
        let mut state = [seed; 624];
        for i in 1..624 {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30)).wrapping_mul(1_812_433_253).wrapping_add(i as u32);
        }
        Self { state, next: 624 }
    }

    fn next(&mut self) -> u32 {
        if self.next == 624 {
            for i in 0..624 {
                let joined =
                    (self.state[i] & 0x8000_0000) | (self.state[(i + 1) % 624] & 0x7fff_ffff);
                let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (joined >> 1) ^ odd;
            }
            self.next = 0;
        }
        let mut x = self.state[self.next];
        self.next += 1;
        x ^= x >> 11;
        x ^= (x << 7) & 0x9d2c_5680;
        x ^= (x << 15) & 0xefc6_0000;
        x ^ (x >> 18)
    }
}

/// Computes `torch.randperm(n, generator=torch.Generator().manual_seed(seed))` as on the CPU, where only the low 32
/// bits of the seed count.
pub fn randperm(n: usize, seed: u64) -> Vec<usize> {
    let mut random = Mt19937::new(seed as u32);
    let mut order: Vec<usize> = (0..n).collect();
    for i in 0..n.saturating_sub(1) {
        order.swap(i, i + random.next() as usize % (n - i));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_torch() {
        // Values of torch 2.15.
        assert_eq!(randperm(10, 42), [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]);
        let large = randperm(2058, (1 << 40) + 3);
        assert_eq!(
            (&large[..4], &large[2054..]),
            (&[334, 1802, 99, 1170][..], &[892, 495, 113, 362][..])
        );
        assert_eq!(randperm(0, 1), [0; 0]);
        assert_eq!(randperm(1, 1), [0]);
    }
}
