//! Synthetic headers of well logs: greyscale pages with a label and a value on each row, and their text, to train and
//! measure the reading of documents.
//!
//! A page depends only on (preset, seed, index), not on threads or the machine. Text is drawn in a stroke font, whose
//! size, stroke width, slant and serifs make many fonts of one table of glyphs. Values are random, and names are made
//! of syllables, so that a model has to read them and cannot remember them.

mod content;
mod files;
mod font;
mod glyphs;
mod layout;
mod raster;
#[cfg(test)]
mod tests;

pub use content::{Field, Kind};
pub use files::{COLUMNS, IMAGES, LIST, Pages};

use crate::draw::Draw;
use content::{fields, well_name};
use layout::strokes;
use raster::Ink;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use tensor::random::{Philox, Purpose};
use unix::{Error, Result};

/// The appearance of pages.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Preset {
    /// Four upright fonts, a colon after each label, rows in the usual order, offsets of 0 to 2 pixels.
    #[default]
    Clean,
    /// Sixteen slanted fonts with serifs, ruled rows and columns, no colons, rows in random order, offsets of 0 to 2
    /// pixels.
    Moderate,
    /// A poor scan of such pages with another layout: values further to the right, rows closer, offsets of 0 to 6
    /// pixels, rotated by up to 0.8 degrees, blurred, with less contrast, noise and specks.
    Shifted,
}

/// Width of every page in pixels.
pub const WIDTH: usize = 192;
/// Height of a page in pixels for each of its rows of text.
pub const ROW_HEIGHT: usize = 16;

/// Range of the contrast of a scan: the fraction that remains of the range of grey values.
const LEAST_CONTRAST: f32 = 0.55;
const MOST_CONTRAST: f32 = 0.8;
/// Standard deviation of the noise of a scan, as a fraction of the range of grey values.
const NOISE: f32 = 0.08;
/// Fraction of the pixels of a scan that are specks, black or white.
const SPECKS: f32 = 0.006;

/// Options of pages. The default is 2 to 5 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    least_rows: usize,
    most_rows: usize,
}

impl Options {
    /// Pages of `least` to `most` rows, each number equally often. Errors: 2 if the range is empty or not within 1 to
    /// 10, the number of kinds of fields.
    pub fn rows(least: usize, most: usize) -> Result<Self> {
        let kinds = Kind::ALL.len();
        if least == 0 || least > most || most > kinds {
            let what =
                format!("rows of a page: {least} to {most}; choose a range within 1 to {kinds}");
            return Err(Error::usage(what));
        }
        Ok(Self { least_rows: least, most_rows: most })
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { least_rows: 2, most_rows: 5 }
    }
}

/// Parses a range, both ends of which are included: `2..5`. Errors: those of [`Options::rows`]; 2 for other text.
impl FromStr for Options {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ends = text.split_once("..");
        let ends = ends.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (least, most) = ends.ok_or_else(|| Error::usage("expected MIN..MAX, e.g. 2..5"))?;
        Self::rows(least, most)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.least_rows, self.most_rows)
    }
}

/// A page and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Width in pixels: [`WIDTH`].
    pub width: usize,
    /// Height in pixels: [`ROW_HEIGHT`] times the number of rows.
    pub height: usize,
    /// Grey values [height, width], 0 for black and 255 for white.
    pub pixels: Vec<u8>,
    /// A line `|LABEL|value|` for each row from the top, without a newline at the end.
    pub answer: String,
    /// The rows from the top.
    pub fields: Vec<Field>,
    /// Name of the well, also if no row states it. Pages of a well belong to the same split.
    pub group: String,
}

/// Renders page number `index` of a preset and a seed.
pub fn page(preset: Preset, seed: u64, index: u64, options: &Options) -> Page {
    let random = Philox::new(seed, Purpose::Images).at_source(preset as u64);
    let mut draw = Draw::new(random, index);
    let count = options.least_rows + draw.below(options.most_rows - options.least_rows + 1);
    let group = well_name(&mut draw);
    let fields = fields(count, &group, preset != Preset::Clean, &mut draw);
    let height = ROW_HEIGHT * count;
    let mut ink = Ink::new(WIDTH, height);
    for stroke in strokes(preset, &fields, height, &mut draw) {
        ink.draw(&stroke);
    }
    let pixels = match preset {
        Preset::Clean | Preset::Moderate => ink.to_grey(),
        Preset::Shifted => scanned(ink, &random.at_update(index), &mut draw),
    };
    let answer = answer(&fields);
    Page { width: WIDTH, height, pixels, answer, fields, group }
}

/// Returns the grey values of a blurred scan with a random contrast, noise and specks.
fn scanned(mut ink: Ink, random: &Philox, draw: &mut Draw) -> Vec<u8> {
    ink.blur();
    let contrast = draw.between(LEAST_CONTRAST, MOST_CONTRAST);
    let mut pixels = ink.to_noisy_grey(contrast, NOISE, random);
    let specks = (pixels.len() as f32 * SPECKS).round() as usize;
    for _ in 0..specks {
        let at = draw.below(pixels.len());
        pixels[at] = draw.pick(&[0, u8::MAX]);
    }
    pixels
}

/// Returns the answer that states these fields.
fn answer(fields: &[Field]) -> String {
    let line = |field: &Field| format!("|{}|{}|", field.kind.label(), field.value);
    fields.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns label and value of each line `|LABEL|value|` of an answer. Other lines, which models may generate, are left
/// out.
pub fn parse_answer(answer: &str) -> Vec<(&str, &str)> {
    let rows = answer.lines().filter_map(|line| {
        let (label, value) = line.strip_prefix('|')?.strip_suffix('|')?.split_once('|')?;
        (!value.contains('|')).then_some((label, value))
    });
    rows.collect()
}

/// Encodes a page as PNG, in greyscale of eight bits. Errors: a bug.
pub fn png(page: &Page) -> Result<Vec<u8>> {
    let failed = |cause: png::EncodingError| Error::bug(format!("PNG of a page: {cause}"));
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, page.width as u32, page.height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(&page.pixels).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(bytes)
}
