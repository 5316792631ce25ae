//! A canvas measured in pixels of the final picture, which is written as PNG or SVG.

mod pixels;
mod svg;

use crate::colours::Colour;
pub use plotters::style::text_anchor::{HPos, VPos};
use std::fmt::Display;
use unix::{Error, Result};

/// A rectangle: left, top, width, height.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub width: f64,
    /// Height.
    pub height: f64,
}

/// Line style.
#[derive(Clone, Copy, Debug)]
pub struct Pen {
    /// Colour.
    pub colour: Colour,
    /// Width.
    pub width: f64,
    /// Length of dashes and of the gaps between them; None for a solid line.
    pub dash: Option<(f64, f64)>,
}

/// Text style and anchor.
#[derive(Clone, Copy)]
pub struct TextStyle {
    /// Line height.
    pub size: f64,
    /// Whether the text is bold.
    pub bold: bool,
    /// Colour.
    pub colour: Colour,
    /// Horizontal anchor: left, centre or right.
    pub horizontal: HPos,
    /// Vertical anchor: top, centre or bottom.
    pub vertical: VPos,
    /// Whether the text is rotated to read upwards.
    pub upwards: bool,
}

/// A canvas to draw on.
pub type Canvas<'a> = dyn Surface + 'a;

/// A drawing target.
pub trait Surface {
    /// Draws a polyline.
    fn line(&self, points: &[(f64, f64)], pen: Pen) -> Result<()>;
    /// Draws a filled circle.
    fn dot(&self, at: (f64, f64), radius: f64, colour: Colour) -> Result<()>;
    /// Draws text.
    fn text(&self, text: &str, at: (f64, f64), style: TextStyle) -> Result<()>;
    /// Fills a rectangle with `colour(x, y)`; x and y run from 0 to 1, y upwards.
    fn image(&self, area: Area, colour: &dyn Fn(f64, f64) -> Colour) -> Result<()>;
}

/// Draws a picture and returns it as PNG.
pub fn png(width: u32, height: u32, draw: impl FnOnce(&Canvas) -> Result<()>) -> Result<Vec<u8>> {
    pixels::register_fonts()?;
    let pixels = pixels::draw(width, height, draw)?;
    encode(width, height, &pixels)
}

/// Draws a picture and returns it as SVG.
pub fn svg(width: u32, height: u32, draw: impl FnOnce(&Canvas) -> Result<()>) -> Result<Vec<u8>> {
    pixels::register_fonts()?;
    let surface = svg::Elements::default();
    draw(&surface)?;
    Ok(surface.finish(width, height))
}

impl Canvas<'_> {
    /// Draws the outline of a rectangle.
    pub fn frame(&self, Area { x, y, width, height }: Area, pen: Pen) -> Result<()> {
        let (right, bottom) = (x + width, y + height);
        let corners = [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)];
        corners.windows(2).try_for_each(|side| self.line(side, pen))
    }

    /// Returns the width of a text.
    pub fn text_width(&self, text: &str, style: TextStyle) -> Result<f64> {
        pixels::text_width(text, style)
    }
}

/// Samples an image at the centres of its pixels and returns them as RGB.
fn sample(width: u32, height: u32, colour: &dyn Fn(f64, f64) -> Colour) -> Vec<u8> {
    let mut pixels = Vec::with_capacity(3 * width as usize * height as usize);
    for row in 0..height {
        let y = 1.0 - (f64::from(row) + 0.5) / f64::from(height);
        for column in 0..width {
            pixels.extend(colour((f64::from(column) + 0.5) / f64::from(width), y));
        }
    }
    pixels
}

fn drawing_error(cause: impl Display) -> Error {
    Error::bug(format!("picture: {cause}"))
}

fn encode(width: u32, height: u32, pixels: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(drawing_error)?;
    writer.write_image_data(pixels).map_err(drawing_error)?;
    writer.finish().map_err(drawing_error)?;
    Ok(bytes)
}
