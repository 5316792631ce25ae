//! Colours of curves, and perceptually uniform colour maps: equal steps in value are about equal steps in perceived
//! colour, because the maps interpolate linearly in OkLab (Ottosson 2020).

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

/// The colour of curve number `i`.
pub fn distinct(i: usize) -> Colour {
    split(DISTINCT[i % DISTINCT.len()])
}

/// A colour map over 0..=1.
#[derive(Clone, Debug)]
pub struct Map {
    /// Evenly spaced colours in OkLab.
    anchors: Vec<[f64; 3]>,
}

impl Map {
    /// Sequential, from dark to light: viridis (Smith and van der Walt 2015, CC0), sampled at nine points.
    pub fn sequential() -> Self {
        Self::through(&[
            0x440154, 0x472d7b, 0x3b528b, 0x2c728e, 0x21918c, 0x28ae80, 0x5ec962, 0xaddc30,
            0xfde725,
        ])
    }

    /// Diverging, from blue over white to red, for values around zero.
    pub fn diverging() -> Self {
        Self::through(&[0x0b3c7d, 0x4f8fc9, 0xf7f7f5, 0xd9694f, 0x7d0b1e])
    }

    fn through(colours: &[u32]) -> Self {
        Self { anchors: colours.iter().map(|c| to_oklab(split(*c))).collect() }
    }

    /// The colour at `x`, clamped to 0..=1; grey for NaN.
    pub fn at(&self, x: f64) -> Colour {
        if x.is_nan() {
            return GREY;
        }
        let place = x.clamp(0.0, 1.0) * (self.anchors.len() - 1) as f64;
        let i = (place as usize).min(self.anchors.len() - 2);
        let (a, b, share) = (self.anchors[i], self.anchors[i + 1], place - i as f64);
        from_oklab([0, 1, 2].map(|c| a[c] + share * (b[c] - a[c])))
    }
}

fn split(colour: u32) -> Colour {
    [16, 8, 0].map(|shift| (colour >> shift) as u8)
}

const TO_CONES: [[f64; 3]; 3] = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
];
const TO_LAB: [[f64; 3]; 3] = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
];
const FROM_LAB: [[f64; 3]; 3] = [
    [1.0, 0.3963377774, 0.2158037573],
    [1.0, -0.1055613458, -0.0638541728],
    [1.0, -0.0894841775, -1.2914855480],
];
const FROM_CONES: [[f64; 3]; 3] = [
    [4.0767416621, -3.3077115913, 0.2309699292],
    [-1.2684380046, 2.6097574011, -0.3413193965],
    [-0.0041960863, -0.7034186147, 1.7076147010],
];

fn times(matrix: &[[f64; 3]; 3], x: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| row.iter().zip(x).map(|(m, x)| m * x).sum())
}

fn to_oklab(colour: Colour) -> [f64; 3] {
    let linear = colour.map(|c| {
        let c = f64::from(c) / 255.0;
        if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
    });
    times(&TO_LAB, times(&TO_CONES, linear).map(f64::cbrt))
}

fn from_oklab(lab: [f64; 3]) -> Colour {
    let linear = times(&FROM_CONES, times(&FROM_LAB, lab).map(|x| x.powi(3)));
    linear.map(|c| {
        let c = if c <= 0.0031308 { 12.92 * c } else { 1.055 * c.powf(1.0 / 2.4) - 0.055 };
        (255.0 * c.clamp(0.0, 1.0)).round() as u8
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oklab_there_and_back_is_the_same_colour() {
        for r in (0..=255).step_by(15) {
            for g in (0..=255).step_by(17) {
                for b in (0..=255).step_by(51) {
                    let colour = [r, g, b].map(|c: i32| c as u8);
                    assert_eq!(from_oklab(to_oklab(colour)), colour);
                }
            }
        }
    }

    #[test]
    fn white_has_lightness_one_and_no_hue() {
        let [l, a, b] = to_oklab([255; 3]);
        assert!((l - 1.0).abs() < 1e-6 && a.abs() < 1e-6 && b.abs() < 1e-6);
    }

    #[test]
    fn maps_go_through_their_ends_and_get_lighter_where_they_should() {
        let lightness = |map: &Map, x: f64| to_oklab(map.at(x))[0];
        let (map, zero) = (Map::sequential(), Map::diverging());
        assert_eq!((map.at(0.0), map.at(1.0)), ([0x44, 0x01, 0x54], [0xfd, 0xe7, 0x25]));
        assert_eq!((map.at(-9.0), map.at(9.0)), (map.at(0.0), map.at(1.0)));
        for i in 0..50 {
            let (a, b) = (f64::from(i) / 50.0, f64::from(i + 1) / 50.0);
            assert!(lightness(&map, a) < lightness(&map, b) + 2e-3, "{a}");
            assert!(lightness(&zero, a / 2.0) < lightness(&zero, b / 2.0) + 2e-3, "{a}");
            assert!(
                lightness(&zero, 1.0 - a / 2.0) < lightness(&zero, 1.0 - b / 2.0) + 2e-3,
                "{a}"
            );
        }
    }
}
