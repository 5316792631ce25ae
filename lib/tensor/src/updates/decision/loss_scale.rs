//! Dynamic loss scaling, which keeps gradients in the range of half precision (Micikevicius et al. 2018, §3.2).

use serde::{Deserialize, Serialize};

/// Factor of the loss in the backward pass, as large as the range of half-precision gradients allows. If gradients
/// overflow, it is halved and the update is skipped; after 2000 updates without overflow, it is doubled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// Loss scale, a power of two.
    pub scale: f64,
    /// Number of updates since the scale last changed.
    pub growth_tracker: u64,
}

impl LossScale {
    /// No loss scaling, for dtypes with sufficient range.
    pub const NONE: Self = Self { scale: 1.0, growth_tracker: 0 };
    /// Initial scale for half precision.
    pub const FIRST: Self = Self { scale: 65536.0, growth_tracker: 0 };
    /// Number of updates without overflow after which the scale is doubled.
    pub(super) const PATIENCE: u64 = 2000;

    /// Returns whether the scale may have caused non-finite gradients.
    pub fn may_have_overflowed(&self) -> bool {
        self.scale > 1.0
    }

    /// Adjusts the scale after an update.
    pub fn update(&mut self, overflow: bool) {
        self.growth_tracker += 1;
        if overflow {
            *self = Self { scale: (self.scale * 0.5).max(1.0), growth_tracker: 0 };
        } else if self.growth_tracker == Self::PATIENCE {
            *self = Self { scale: self.scale * 2.0, growth_tracker: 0 };
        }
    }
}

impl Default for LossScale {
    fn default() -> Self {
        Self::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_halved_at_an_overflow_and_doubled_after_2000_updates_without() {
        let mut scale = LossScale::FIRST;
        assert_eq!(scale.scale, 65536.0);
        scale.update(true);
        assert_eq!(scale.scale, 32768.0);
        (0..1999).for_each(|_| scale.update(false));
        assert_eq!(scale.scale, 32768.0);
        scale.update(false);
        assert_eq!(scale, LossScale { scale: 65536.0, growth_tracker: 0 });
        // An overflow restarts the count.
        (0..1500).for_each(|_| scale.update(false));
        scale.update(true);
        (0..1999).for_each(|_| scale.update(false));
        assert_eq!(scale.scale, 32768.0);
    }

    #[test]
    fn a_scale_of_one_blames_the_model() {
        let mut scale = LossScale::FIRST;
        for _ in 0..40 {
            scale.update(true);
        }
        assert_eq!(scale.scale, 1.0);
        assert!(!scale.may_have_overflowed());
    }
}
