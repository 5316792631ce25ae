//! Cuts images into patches with the arithmetic of `Qwen2VLImageProcessorPil` in transformers 5.24.

use super::{Filter, Preprocessor, RgbImage, resize};
use unix::{Error, Result, memory};

/// Largest quotient of the sides of an image, as in transformers.
const MAX_RATIO: f64 = 200.0;

/// Computes width and height to which an image of `width` x `height` pixels is resized: multiples of `factor`, with
/// about the same quotient, and from `min_pixels` to `max_pixels` pixels, where that is possible.
///
/// Errors: the problem, for an image that is empty or more than 200 times longer than wide.
pub fn smart_resize(
    width: u32,
    height: u32,
    factor: u32,
    min_pixels: u64,
    max_pixels: u64,
) -> Result<(u64, u64), String> {
    let (long, short) = (f64::from(width.max(height)), f64::from(width.min(height)));
    if short == 0.0 || long / short > MAX_RATIO {
        return Err(format!(
            "{width} x {height} pixels: one side may be at most {MAX_RATIO} times the other; cut the image into pieces"
        ));
    }
    let pixels = f64::from(width) * f64::from(height);
    let factor = f64::from(factor);
    let (width, height) = (f64::from(width), f64::from(height));
    // Python's `round` rounds halves to even numbers.
    let nearest = |side: f64| (side / factor).round_ties_even() * factor;
    let (mut new_width, mut new_height) = (nearest(width), nearest(height));
    if new_width * new_height > max_pixels as f64 {
        let beta = (pixels / max_pixels as f64).sqrt();
        let fit = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
        (new_width, new_height) = (fit(width), fit(height));
    } else if new_width * new_height < min_pixels as f64 {
        let beta = (min_pixels as f64 / pixels).sqrt();
        let fit = |side: f64| (side * beta / factor).ceil() * factor;
        (new_width, new_height) = (fit(width), fit(height));
    }
    Ok((new_width as u64, new_height as u64))
}

/// What becomes of an image of a certain size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Width and height after shrinking to `max_width`, if the image is wider.
    pub shrunk: Option<(u32, u32)>,
    /// Final width and height in pixels.
    pub width: u32,
    /// See `width`.
    pub height: u32,
    /// Frames, rows and columns of patches; the first is 1.
    pub grid: [u32; 3],
    /// Number of tokens that the image takes in a text: patches / merge².
    pub tokens: u32,
}

/// The patches of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Patches {
    /// Frames, rows and columns of patches; the first is 1.
    pub grid: [u32; 3],
    /// Values as [rows * columns, 3 * patch * patch]. The patches of a token follow one another, row by row, and tokens
    /// do so, too. A patch has all red values, then green, then blue.
    ///
    /// A row of transformers has each channel `temporal_patch_size` times, because the frame is repeated; all copies
    /// are equal to this one. A projection of these rows needs the sum of its weights over the frames.
    pub values: Vec<f32>,
}

impl Patches {
    /// Number of patches.
    pub fn count(&self) -> usize {
        self.grid.iter().map(|side| *side as usize).product()
    }
}

impl Preprocessor {
    /// Computes the size and the tokens of an image of `width` x `height` pixels without reading it. `name` is what
    /// errors call the image.
    ///
    /// Errors: 65 for an image that is empty, more than 200 times longer than wide, or that needs more than
    /// `max_image_tokens` tokens; and, without `do_resize`, one whose sides are no multiples of patch x merge.
    pub fn fit(&self, name: &str, width: u32, height: u32) -> Result<Fit> {
        self.fitted(width, height).map_err(|problem| Error::data(format!("{name}: {problem}")))
    }

    fn fitted(&self, width: u32, height: u32) -> Result<Fit, String> {
        let factor = u64::from(self.patch_size) * u64::from(self.merge_size);
        if factor == 0 {
            return Err("patch_size and merge_size must be positive".into());
        }
        let token = factor * factor;
        let max_pixels =
            self.max_pixels.min(u64::from(self.max_image_tokens).saturating_mul(token));
        if self.min_pixels > max_pixels {
            return Err(format!(
                "max_image_tokens {} allows fewer pixels than size.shortest_edge {} requires; raise it to {} or more",
                self.max_image_tokens,
                self.min_pixels,
                self.min_pixels.div_ceil(token)
            ));
        }
        let shrunk = self.max_width.filter(|most| width > *most && self.do_resize).map(|most| {
            let scaled =
                (u64::from(height) * u64::from(most) + u64::from(width / 2)) / u64::from(width);
            (most, (scaled as u32).max(1))
        });
        let (from_width, from_height) = shrunk.unwrap_or((width, height));
        let (new_width, new_height) = match self.do_resize {
            true => {
                let factor = u32::try_from(factor).unwrap_or(u32::MAX);
                smart_resize(from_width, from_height, factor, self.min_pixels, max_pixels)?
            }
            false => (u64::from(width), u64::from(height)),
        };
        let sides = [new_width, new_height];
        if sides.iter().any(|side| *side == 0 || side % factor != 0) {
            return Err(format!(
                "{width} x {height} pixels are no multiples of {factor}, and do_resize is false; resize the image"
            ));
        }
        let tokens = (new_width / factor).checked_mul(new_height / factor);
        let sides = u32::try_from(new_width).ok().zip(u32::try_from(new_height).ok());
        let tokens = tokens.filter(|tokens| *tokens <= u64::from(self.max_image_tokens));
        let Some((tokens, (new_width, new_height))) = tokens.zip(sides) else {
            return Err(format!(
                "{width} x {height} pixels take {} x {} tokens, more than max_image_tokens {}; raise it, or cut the image \
                 into pieces",
                new_width / factor,
                new_height / factor,
                self.max_image_tokens
            ));
        };
        let grid = [1, new_height / self.patch_size, new_width / self.patch_size];
        Ok(Fit { shrunk, width: new_width, height: new_height, grid, tokens: tokens as u32 })
    }

    /// Resizes an image and cuts it into patches. `name` is what errors call the image.
    ///
    /// Errors: those of [`Self::fit`]; 65 when it does not fit into memory.
    pub fn patches(&self, name: &str, image: &RgbImage) -> Result<Patches> {
        let fit = self.fit(name, image.width, image.height)?;
        let values = 3 * u64::from(fit.width) * u64::from(fit.height);
        memory::ensure(&format_args!("{name}: its patches"), values.checked_mul(4))?;
        let shrunk = match fit.shrunk {
            Some((width, height)) => Some(resize(image, width, height, Filter::Lanczos)?),
            None => None,
        };
        let resized = resize(shrunk.as_ref().unwrap_or(image), fit.width, fit.height, self.filter)?;
        Ok(Patches { grid: fit.grid, values: self.cut(&resized, fit.grid) })
    }

    /// Returns the normalized values of an image whose sides are multiples of patch x merge.
    fn cut(&self, image: &RgbImage, [_, rows, columns]: [u32; 3]) -> Vec<f32> {
        let tables = self.tables();
        let (patch, merge) = (self.patch_size as usize, self.merge_size as usize);
        let (rows, columns) = (rows as usize / merge, columns as usize / merge);
        let row_bytes = 3 * image.width as usize;
        let mut values = Vec::with_capacity(image.pixels.len());
        for at in 0..rows * columns * merge * merge {
            let (token, own) = (at / (merge * merge), at % (merge * merge));
            let top = (token / columns * merge + own / merge) * patch;
            let left = (token % columns * merge + own % merge) * patch;
            for (channel, table) in tables.iter().enumerate() {
                for y in top..top + patch {
                    let row = &image.pixels[y * row_bytes + 3 * left..][..3 * patch];
                    let row = row.iter().skip(channel).step_by(3);
                    values.extend(row.map(|value| table[usize::from(*value)]));
                }
            }
        }
        values
    }

    /// Returns the normalized value of each value of each channel: the product with the factor in 64 bits, everything
    /// else in 32.
    fn tables(&self) -> [[f32; 256]; 3] {
        let channel = |at: usize| {
            let (mean, std) = (self.mean[at] as f32, self.std[at] as f32);
            let value = |value: usize| ((value as f64 * self.rescale_factor) as f32 - mean) / std;
            std::array::from_fn(value)
        };
        std::array::from_fn(channel)
    }
}
