//! Anti-aliased strokes, and what a poor scan does to a page. Only additions, multiplications, divisions, square roots
//! and rounding, which IEEE 754 defines to the last bit, so that pixels are the same on every machine.

use tensor::random::Philox;

/// A straight stroke with round ends, in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stroke {
    /// Both ends as (x, y); the centre of the top left pixel is (0.5, 0.5).
    pub ends: [[f32; 2]; 2],
    /// Width of the stroke.
    pub width: f32,
}

impl Stroke {
    /// Distance from the centre line at which the coverage of a pixel reaches 0.
    pub fn reach(&self) -> f32 {
        self.width / 2.0 + 0.5
    }
}

/// A rotation about a centre, in pixels.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    centre: [f32; 2],
    cos: f32,
    pub sin: f32,
}

impl Rotation {
    /// Rotates by the angle whose half has this tangent, which needs no trigonometric function.
    pub fn by_half_tangent(tangent: f32, centre: [f32; 2]) -> Self {
        let square = tangent * tangent;
        Self { centre, cos: (1.0 - square) / (1.0 + square), sin: 2.0 * tangent / (1.0 + square) }
    }

    /// Rotates a stroke.
    pub fn apply(&self, stroke: &mut Stroke) {
        for end in &mut stroke.ends {
            let [x, y] = [end[0] - self.centre[0], end[1] - self.centre[1]];
            end[0] = self.centre[0] + self.cos * x - self.sin * y;
            end[1] = self.centre[1] + self.sin * x + self.cos * y;
        }
    }
}

/// Ink on paper, row by row: 0 is paper, 1 is full ink.
pub struct Ink {
    pub width: usize,
    pub height: usize,
    pub values: Vec<f32>,
}

impl Ink {
    /// A blank page.
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, values: vec![0.0; width * height] }
    }

    /// Draws a stroke. Pixels that several strokes cover have the largest coverage.
    pub fn draw(&mut self, stroke: &Stroke) {
        let [from, to] = stroke.ends;
        let reach = stroke.reach();
        // The pixels whose centres may be nearer than `reach`. Conversions to integers saturate at 0.
        let range = |axis: usize, size: usize| {
            let least = from[axis].min(to[axis]) - reach - 0.5;
            let most = from[axis].max(to[axis]) + reach + 0.5;
            least.ceil() as usize..(most as usize).min(size)
        };
        let along = [to[0] - from[0], to[1] - from[1]];
        let length = along[0] * along[0] + along[1] * along[1];
        let inverse = if length > 0.0 { 1.0 / length } else { 0.0 };
        let columns = range(0, self.width);
        for row in range(1, self.height) {
            let y = row as f32 + 0.5 - from[1];
            let start = row * self.width;
            let Some(pixels) = self.values.get_mut(start + columns.start..start + columns.end)
            else {
                continue;
            };
            for (pixel, column) in pixels.iter_mut().zip(columns.start..) {
                let x = column as f32 + 0.5 - from[0];
                let nearest = ((x * along[0] + y * along[1]) * inverse).clamp(0.0, 1.0);
                let [x, y] = [x - nearest * along[0], y - nearest * along[1]];
                let coverage = (reach - (x * x + y * y).sqrt()).clamp(0.0, 1.0);
                *pixel = pixel.max(coverage);
            }
        }
    }

    /// Blurs with the kernel (1, 4, 1) / 6 along both axes, of standard deviation 0.58 pixels. Beyond its edges the
    /// page is blank.
    pub fn blur(&mut self) {
        let width = self.width;
        for row in self.values.chunks_exact_mut(width) {
            let mut left = 0.0;
            for column in 0..width {
                let right = row.get(column + 1).copied().unwrap_or(0.0);
                let own = row[column];
                row[column] = (left + 4.0 * own + right) / 6.0;
                left = own;
            }
        }
        let mut above = vec![0.0; width];
        for row in 0..self.height {
            for (column, above) in above.iter_mut().enumerate() {
                let at = row * width + column;
                let below = self.values.get(at + width).copied().unwrap_or(0.0);
                let own = self.values[at];
                self.values[at] = (*above + 4.0 * own + below) / 6.0;
                *above = own;
            }
        }
    }

    /// The page as grey values, 0 for ink and 255 for paper.
    pub fn to_grey(&self) -> Vec<u8> {
        self.values.iter().map(|ink| grey(1.0 - ink)).collect()
    }

    /// The page as a poor scan: `contrast` scales the difference to mid-grey, then noise of this standard deviation is
    /// added, as a fraction of the range of grey values.
    pub fn to_noisy_grey(&self, contrast: f32, deviation: f32, random: &Philox) -> Vec<u8> {
        // The sum of the four bytes of a random word is nearly normal (Irwin-Hall), with mean 510 and variance
        // (256² - 1) / 3; Box-Muller needs functions whose last bit depends on the machine.
        let scale = deviation / (65_535.0f32 / 3.0).sqrt();
        let mut pixels = Vec::with_capacity(self.values.len());
        for (block, inks) in self.values.chunks(4).enumerate() {
            for (ink, word) in inks.iter().zip(random.block([block as u32, 0, 0, 0])) {
                let sum: u32 = word.to_le_bytes().into_iter().map(u32::from).sum();
                let noise = (sum as f32 - 510.0) * scale;
                pixels.push(grey(0.5 + (0.5 - ink) * contrast + noise));
            }
        }
        pixels
    }
}

/// Rounds a value between 0 (black) and 1 (white) to eight bits.
fn grey(value: f32) -> u8 {
    // Conversion to an integer saturates.
    (value * 255.0).round() as u8
}
