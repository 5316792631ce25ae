//! An image in memory, and the conversion of samples to 8-bit RGB with Pillow's formulas (libImaging/Convert.c,
//! AlphaComposite.c).

use super::Transparency;

/// An image in 8-bit RGB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels, at least 1.
    pub width: u32,
    /// Height in pixels, at least 1.
    pub height: u32,
    /// Values as [height, width, 3].
    pub pixels: Vec<u8>,
}

impl RgbImage {
    /// Turns the image upright. `orientation` is that of EXIF, 1 to 8.
    pub(super) fn oriented(&self, orientation: u16) -> Self {
        let (width, height) = (self.width as usize, self.height as usize);
        let (right, bottom) = (width - 1, height - 1);
        let is_swapped = orientation >= 5;
        let (columns, rows) = if is_swapped { (height, width) } else { (width, height) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for y in 0..rows {
            for x in 0..columns {
                let (column, row) = match orientation {
                    2 => (right - x, y),
                    3 => (right - x, bottom - y),
                    4 => (x, bottom - y),
                    5 => (y, x),
                    6 => (y, bottom - x),
                    7 => (right - y, bottom - x),
                    8 => (right - y, x),
                    _ => (x, y),
                };
                let at = 3 * (row * width + column);
                pixels.extend_from_slice(&self.pixels[at..at + 3]);
            }
        }
        Self { width: columns as u32, height: rows as u32, pixels }
    }
}

/// What the samples of a pixel mean.
#[derive(Clone, Copy)]
pub(super) enum Colour<'a> {
    Grey,
    GreyAlpha,
    Rgb,
    RgbAlpha,
    /// The colours have been multiplied by alpha.
    RgbPremultiplied,
    Cmyk,
    /// As in JPEG files, with values from 0 to 255.
    YCbCr,
    /// Red, green, blue and alpha of each index.
    Palette(&'a [[u8; 4]; 256]),
}

impl Colour<'_> {
    /// Number of samples of a pixel.
    pub(super) fn samples(self) -> usize {
        match self {
            Self::Grey | Self::Palette(_) => 1,
            Self::GreyAlpha => 2,
            Self::Rgb | Self::YCbCr => 3,
            Self::RgbAlpha | Self::RgbPremultiplied | Self::Cmyk => 4,
        }
    }
}

/// The decoded samples of an image: rows of whole bytes, the samples of a pixel side by side or in planes.
pub(super) struct Samples<'a> {
    pub width: u32,
    pub height: u32,
    /// Bits of a sample: 1, 2, 4, 8 or 16.
    pub depth: u8,
    /// Samples of 16 bits are big-endian.
    pub big_endian: bool,
    pub planar: bool,
    pub colour: Colour<'a>,
    /// The colour of 8 bits that is transparent.
    pub key: Option<[u8; 3]>,
    pub bytes: &'a [u8],
}

impl Samples<'_> {
    /// Converts the samples to RGB. Errors: fewer bytes than the size of the image requires.
    pub(super) fn to_rgb(&self, transparency: Transparency) -> Result<RgbImage, String> {
        let (width, height) = (self.width as usize, self.height as usize);
        let samples = self.colour.samples();
        let (planes, own) = if self.planar { (samples, 1) } else { (1, samples) };
        let row_bytes = (width * own * usize::from(self.depth)).div_ceil(8);
        let missing = || "truncated: it has fewer pixels than it declares".to_string();
        let mut pixels = Vec::with_capacity(3 * width * height);
        let mut row = vec![0; width * samples];
        for y in 0..height {
            for plane in 0..planes {
                let at = (plane * height + y) * row_bytes;
                let bytes = self.bytes.get(at..at + row_bytes).ok_or_else(missing)?;
                let is_index = matches!(self.colour, Colour::Palette(_));
                let target = row[plane..].iter_mut().step_by(planes);
                match self.depth {
                    8 => target.zip(bytes).for_each(|(to, from)| *to = *from),
                    // Pillow keeps the high byte of 16 bits in all modes but one, see `decode`.
                    16 => {
                        let high = usize::from(!self.big_endian);
                        let bytes = bytes.chunks_exact(2);
                        target.zip(bytes).for_each(|(to, from)| *to = from[high]);
                    }
                    depth => {
                        let largest = (1_u16 << depth) - 1;
                        let scale = if is_index { 1 } else { (255 / largest) as u8 };
                        for (at, to) in target.enumerate() {
                            let bit = at * usize::from(depth);
                            let shift = 8 - usize::from(depth) - bit % 8;
                            *to = (bytes[bit / 8] >> shift & largest as u8) * scale;
                        }
                    }
                }
            }
            self.convert_row(&row, transparency, &mut pixels);
        }
        Ok(RgbImage { width: self.width, height: self.height, pixels })
    }

    /// Appends a row of samples as RGB.
    fn convert_row(&self, row: &[u8], transparency: Transparency, out: &mut Vec<u8>) {
        let on_white = transparency == Transparency::OnWhite;
        let mut push = |rgb: [u8; 3], alpha: u8| {
            out.extend_from_slice(&if on_white { over_white(rgb, alpha) } else { rgb });
        };
        let opaque = |rgb: [u8; 3]| if self.key == Some(rgb) { 0 } else { 255 };
        let samples = self.colour.samples();
        match self.colour {
            Colour::Grey => row.iter().for_each(|grey| push([*grey; 3], opaque([*grey; 3]))),
            Colour::Palette(palette) => row.iter().for_each(|index| {
                let [red, green, blue, alpha] = palette[usize::from(*index)];
                push([red, green, blue], alpha);
            }),
            _ => row.chunks_exact(samples).for_each(|own| match (self.colour, own) {
                (Colour::GreyAlpha, &[grey, alpha]) => push([grey; 3], alpha),
                (Colour::RgbAlpha, &[red, green, blue, alpha]) => push([red, green, blue], alpha),
                (Colour::RgbPremultiplied, &[red, green, blue, alpha]) => {
                    push([red, green, blue].map(|value| divide(value, alpha)), alpha);
                }
                (Colour::Cmyk, &[cyan, magenta, yellow, black]) => {
                    let light = 255 - black;
                    let ink = |value| light - multiply(value, light);
                    push([cyan, magenta, yellow].map(ink), 255);
                }
                (Colour::YCbCr, &[y, cb, cr]) => push(ycbcr(y, cb, cr), 255),
                (_, &[red, green, blue, ..]) => {
                    push([red, green, blue], opaque([red, green, blue]));
                }
                _ => {}
            }),
        }
    }
}

/// Divides by 255, as Pillow does it; rounds if 128 has been added.
fn divide_by_255(value: u32) -> u32 {
    ((value >> 8) + value) >> 8
}

/// Multiplies two fractions of 255.
fn multiply(a: u8, b: u8) -> u8 {
    divide_by_255(u32::from(a) * u32::from(b) + 128) as u8
}

/// Divides a premultiplied value by alpha.
fn divide(value: u8, alpha: u8) -> u8 {
    match alpha {
        0 => 0,
        255 => value,
        _ => (u32::from(value) * 255 / u32::from(alpha)).min(255) as u8,
    }
}

/// Blends a colour over opaque white, with 7 bits more than 8 for the weights.
fn over_white(rgb: [u8; 3], alpha: u8) -> [u8; 3] {
    if alpha == 0 {
        return [255; 3];
    }
    let own = u32::from(alpha) * 128;
    let white = 255 * 128 - own;
    let blend = |value: u8| divide_by_255(u32::from(value) * own + 255 * white + (0x80 << 7)) >> 7;
    rgb.map(|value| blend(value) as u8)
}

/// Converts a colour as JFIF defines it.
fn ycbcr(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let (y, cb, cr) = (f32::from(y), f32::from(cb) - 128.0, f32::from(cr) - 128.0);
    let rgb = [y + 1.402 * cr, y - 0.344_136 * cb - 0.714_136 * cr, y + 1.772 * cb];
    // The conversion of floats to integers saturates.
    rgb.map(|value| value.round() as u8)
}
