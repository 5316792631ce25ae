//! Fonts: the stroke font with a size, a stroke width, a slant and serifs.

use super::glyphs::{GRID_HEIGHT, GRID_WIDTH, segments};
use super::raster::Stroke;

/// How the glyphs are drawn. Lengths are in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Font {
    /// Width of a glyph, between the centres of its outermost strokes.
    pub width: f32,
    /// Cap height, between the centres of the strokes.
    pub height: f32,
    /// Distance from one character to the next.
    pub advance: f32,
    /// Width of a stroke.
    pub stroke: f32,
    /// Shift to the right for each pixel above the baseline.
    pub slant: f32,
    /// Length of a serif on each side of the end of a stroke; 0 draws none.
    pub serif: f32,
}

/// Number of upright fonts without serifs.
pub const UPRIGHT_FONTS: usize = 4;
/// Number of slanted fonts with serifs.
pub const SLANTED_FONTS: usize = 16;

/// Smallest vertical extent, in grid units, of a stroke that ends in a serif.
const SERIF_EXTENT: f32 = 3.0;

impl Font {
    /// Returns upright font `index`, below [`UPRIGHT_FONTS`].
    pub fn upright(index: usize) -> Self {
        let [width, height, advance, stroke] = [
            [5.0, 10.0, 8.0, 1.3],
            [5.5, 9.5, 8.0, 1.6],
            [4.75, 9.0, 7.5, 1.2],
            [4.5, 10.0, 7.25, 1.5],
        ][index % UPRIGHT_FONTS];
        Self { width, height, advance, stroke, slant: 0.0, serif: 0.0 }
    }

    /// Returns slanted font `index`, below [`SLANTED_FONTS`]: four slants of two widths and two stroke widths.
    pub fn slanted(index: usize) -> Self {
        let slant = [0.12, 0.18, 0.24, 0.3][index % 4];
        let [width, advance] = [[4.75, 7.5], [5.0, 7.75]][index / 4 % 2];
        let [height, stroke] = [[9.0, 1.2], [9.5, 1.4]][index / 8 % 2];
        Self { width, height, advance, stroke, slant, serif: 0.6 }
    }

    /// Adds the strokes of a text to `strokes`. The top left corner of the first glyph's grid, before slanting, is at
    /// `origin`, which is (x, y).
    pub fn strokes(&self, text: &str, origin: [f32; 2], strokes: &mut Vec<Stroke>) {
        for (number, character) in text.chars().enumerate() {
            let left = origin[0] + number as f32 * self.advance;
            for [from, to] in segments(character) {
                strokes.push(self.stroke([from, to], [left, origin[1]], [0.0; 2]));
                if self.serif > 0.0
                    && character.is_ascii_uppercase()
                    && (from[1] - to[1]).abs() >= SERIF_EXTENT
                {
                    for end in [from, to] {
                        if end[1] == 0.0 || end[1] == GRID_HEIGHT {
                            let reach = [-self.serif, self.serif];
                            strokes.push(self.stroke([end; 2], [left, origin[1]], reach));
                        }
                    }
                }
            }
        }
    }

    /// Returns the stroke between two grid points, whose ends are moved horizontally by `reach`.
    fn stroke(&self, ends: [[f32; 2]; 2], origin: [f32; 2], reach: [f32; 2]) -> Stroke {
        let scale = [self.width / GRID_WIDTH, self.height / GRID_HEIGHT];
        let place = |[x, y]: [f32; 2], reach: f32| {
            let slanted = self.slant * (GRID_HEIGHT - y) * scale[1];
            [origin[0] + x * scale[0] + slanted + reach, origin[1] + y * scale[1]]
        };
        Stroke { ends: [place(ends[0], reach[0]), place(ends[1], reach[1])], width: self.stroke }
    }
}
