//! A canvas in pixels of the final picture. It is drawn at a higher resolution and averaged down, for antialiased lines
//! and text.

use crate::colours::Colour;
use plotters::coord::Shift;
use plotters::element::{BitMapElement, Circle, DashedPathElement, PathElement, Text};
use plotters::prelude::{BitMapBackend, DrawingArea, IntoDrawingArea};
use plotters::style::text_anchor::Pos;
pub use plotters::style::text_anchor::{HPos, VPos};
use plotters::style::{
    Color, FontDesc, FontFamily, FontStyle, FontTransform, IntoTextStyle, RGBColor, register_font,
};
use std::fmt::Display;
use std::sync::OnceLock;
use unix::{Error, Result};

/// Supersampling factor along each axis.
const SCALE: u32 = 3;

const FAMILY: &str = "longhaul";

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
pub struct Letters {
    /// Line height.
    pub size: f64,
    /// Bold.
    pub bold: bool,
    /// Colour.
    pub colour: Colour,
    /// Horizontal anchor: left, centre or right.
    pub horizontal: HPos,
    /// Vertical anchor: top, centre or bottom.
    pub vertical: VPos,
    /// Rotated to read upwards.
    pub upwards: bool,
}

/// A canvas to draw on.
pub struct Canvas<'a> {
    area: DrawingArea<BitMapBackend<'a>, Shift>,
}

/// Draws a picture and returns it as PNG.
pub fn png(width: u32, height: u32, draw: impl FnOnce(&Canvas) -> Result<()>) -> Result<Vec<u8>> {
    register_fonts()?;
    let size = (width * SCALE, height * SCALE);
    let mut pixels = vec![255; 3 * (size.0 * size.1) as usize];
    {
        let backend = BitMapBackend::with_buffer(&mut pixels, size);
        let canvas = Canvas { area: backend.into_drawing_area() };
        draw(&canvas)?;
        canvas.area.present().map_err(problem)?;
    }
    encode(width, height, &average(&pixels, width, height))
}

impl Canvas<'_> {
    /// A polyline.
    pub fn line(&self, points: &[(f64, f64)], pen: Pen) -> Result<()> {
        let width = (pen.width * f64::from(SCALE)).round().max(1.0) as u32;
        let style = rgb(pen.colour).stroke_width(width);
        let points: Vec<(i32, i32)> = points.iter().map(|p| (drawn(p.0), drawn(p.1))).collect();
        match pen.dash {
            None => self.area.draw(&PathElement::new(points, style)),
            Some((on, off)) => {
                let (on, off) = (drawn(on), drawn(off));
                self.area.draw(&DashedPathElement::new(points, on, off, style))
            }
        }
        .map_err(problem)
    }

    /// The outline of a rectangle.
    pub fn frame(&self, Area { x, y, width, height }: Area, pen: Pen) -> Result<()> {
        let (right, bottom) = (x + width, y + height);
        let corners = [(x, y), (right, y), (right, bottom), (x, bottom), (x, y)];
        corners.windows(2).try_for_each(|side| self.line(side, pen))
    }

    /// A filled circle.
    pub fn dot(&self, at: (f64, f64), radius: f64, colour: Colour) -> Result<()> {
        let centre = (drawn(at.0), drawn(at.1));
        self.area.draw(&Circle::new(centre, drawn(radius), rgb(colour).filled())).map_err(problem)
    }

    /// Text.
    pub fn text(&self, text: &str, at: (f64, f64), letters: Letters) -> Result<()> {
        let colour = rgb(letters.colour);
        let style = font(letters)
            .into_text_style(&self.area)
            .color(&colour)
            .pos(Pos::new(letters.horizontal, letters.vertical));
        // Boxes are centred, but most letters sit in the lower part of theirs.
        let down = match letters.vertical {
            VPos::Center if !letters.upwards => 0.1 * letters.size,
            _ => 0.0,
        };
        self.area.draw(&Text::new(text, (drawn(at.0), drawn(at.1 + down)), style)).map_err(problem)
    }

    /// Width of a text.
    pub fn text_width(&self, text: &str, letters: Letters) -> Result<f64> {
        let (width, _) = font(letters).box_size(text).map_err(problem)?;
        Ok(f64::from(width) / f64::from(SCALE))
    }

    /// Fills a rectangle with `colour(x, y)`; x and y run from 0 to 1, y upwards.
    pub fn image(&self, area: Area, colour: impl Fn(f64, f64) -> Colour) -> Result<()> {
        let (width, height) = (drawn(area.width), drawn(area.height));
        let mut pixels = Vec::with_capacity(3 * (width * height) as usize);
        for row in 0..height {
            let y = 1.0 - (f64::from(row) + 0.5) / f64::from(height);
            for column in 0..width {
                pixels.extend(colour((f64::from(column) + 0.5) / f64::from(width), y));
            }
        }
        let at = (drawn(area.x), drawn(area.y));
        let image: Option<BitMapElement<_>> =
            BitMapElement::with_owned_buffer(at, (width as u32, height as u32), pixels);
        match image {
            Some(image) => self.area.draw(&image).map_err(problem),
            None => Err(Error::bug("picture: an image without pixels")),
        }
    }
}

fn font(letters: Letters) -> FontDesc<'static> {
    let style = if letters.bold { FontStyle::Bold } else { FontStyle::Normal };
    let turn = if letters.upwards { FontTransform::Rotate270 } else { FontTransform::None };
    FontDesc::new(FontFamily::Name(FAMILY), letters.size * f64::from(SCALE), style).transform(turn)
}

/// Converts to supersampled pixels.
fn drawn(x: f64) -> i32 {
    (x * f64::from(SCALE)).round() as i32
}

fn rgb([r, g, b]: Colour) -> RGBColor {
    RGBColor(r, g, b)
}

fn problem(cause: impl Display) -> Error {
    Error::bug(format!("picture: {cause}"))
}

/// Registers the embedded fonts, so that a machine without fonts draws the same picture.
fn register_fonts() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let fonts: [(FontStyle, &'static [u8]); 2] = [
        (FontStyle::Normal, include_bytes!("font/regular.ttf")),
        (FontStyle::Bold, include_bytes!("font/bold.ttf")),
    ];
    let register = || fonts.into_iter().all(|(s, font)| register_font(FAMILY, s, font).is_ok());
    if *DONE.get_or_init(register) {
        Ok(())
    } else {
        Err(problem("the embedded fonts are damaged"))
    }
}

/// Averages each block of SCALE × SCALE pixels.
fn average(drawn: &[u8], width: u32, height: u32) -> Vec<u8> {
    let (width, scale) = (width as usize, SCALE as usize);
    let row = 3 * width * scale;
    let mut pixels = Vec::with_capacity(3 * width * height as usize);
    for y in 0..height as usize {
        for x in 0..width {
            for channel in 0..3 {
                let mut sum = 0;
                for line in 0..scale {
                    let start = (y * scale + line) * row + 3 * x * scale + channel;
                    sum += (0..scale).map(|i| u32::from(drawn[start + 3 * i])).sum::<u32>();
                }
                pixels.push((sum / (SCALE * SCALE)) as u8);
            }
        }
    }
    pixels
}

fn encode(width: u32, height: u32, pixels: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().map_err(problem)?;
    writer.write_image_data(pixels).map_err(problem)?;
    writer.finish().map_err(problem)?;
    Ok(bytes)
}
