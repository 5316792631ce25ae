//! Colours of curves and colour maps.

/// An sRGB colour: red, green, blue.
pub type Colour = [u8; 3];

/// For ground truth, frames and text.
pub const INK: Colour = [0x22, 0x22, 0x22];
/// For secondary elements.
pub const GREY: Colour = [0x77, 0x77, 0x77];
/// For grid lines behind curves.
pub const FAINT: Colour = [0xe3, 0xe3, 0xe3];

/// Colours that are distinct for colour-blind readers (Okabe and Ito 2008).
const DISTINCT: [u32; 7] = [0x0072b2, 0xd55e00, 0x009e73, 0xcc79a7, 0xe69f00, 0x56b4e9, 0x000000];

/// Returns the colour of curve number `i`.
pub fn distinct(i: usize) -> Colour {
    [16, 8, 0].map(|shift| (DISTINCT[i % DISTINCT.len()] >> shift) as u8)
}

/// A colour map over 0..=1.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    gradient: colorous::Gradient,
    reversed: bool,
}

impl Map {
    /// Creates a sequential map from dark to light: viridis (Smith and van der Walt 2015), perceptually uniform.
    pub fn sequential() -> Self {
        Self { gradient: colorous::VIRIDIS, reversed: false }
    }

    /// Creates a diverging map from blue over white to red (ColorBrewer RdBu), for values around zero.
    pub fn diverging() -> Self {
        Self { gradient: colorous::RED_BLUE, reversed: true }
    }

    /// Returns the colour at `x`, clamped to 0..=1; grey for NaN.
    pub fn at(&self, x: f64) -> Colour {
        if x.is_nan() {
            return GREY;
        }
        let x = x.clamp(0.0, 1.0);
        self.gradient.eval_continuous(if self.reversed { 1.0 - x } else { x }).as_array()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_clamped_and_nan_is_grey() {
        let map = Map::sequential();
        assert_eq!((map.at(0.0), map.at(1.0)), ([0x44, 0x01, 0x54], [0xfd, 0xe7, 0x25]));
        assert_eq!((map.at(-9.0), map.at(9.0)), (map.at(0.0), map.at(1.0)));
        assert_eq!(map.at(f64::NAN), GREY);
    }
}
