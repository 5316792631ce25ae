//! A picture in pixels. It is drawn at a higher resolution and averaged down, for antialiased lines and text.

use super::{Area, Pen, Surface, TextStyle, VPos, drawing_error, sample};
use crate::colours::Colour;
use plotters::coord::Shift;
use plotters::element::{BitMapElement, Circle, DashedPathElement, PathElement, Text};
use plotters::prelude::{BitMapBackend, DrawingArea, IntoDrawingArea};
use plotters::style::text_anchor::Pos;
use plotters::style::{
    Color, FontDesc, FontFamily, FontStyle, FontTransform, IntoTextStyle, RGBColor, register_font,
};
use std::sync::OnceLock;
use unix::{Error, Result};

/// Supersampling factor along each axis.
const SCALE: u32 = 3;

const FONT_FAMILY: &str = "longhaul";

/// The supersampled pixels.
struct Pixels<'a>(DrawingArea<BitMapBackend<'a>, Shift>);

/// Draws a picture; returns its pixels as RGB.
pub fn draw(
    width: u32,
    height: u32,
    draw: impl FnOnce(&dyn Surface) -> Result<()>,
) -> Result<Vec<u8>> {
    let size = (width * SCALE, height * SCALE);
    let mut pixels = vec![255; 3 * (size.0 * size.1) as usize];
    {
        let surface = Pixels(BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area());
        draw(&surface)?;
        surface.0.present().map_err(drawing_error)?;
    }
    Ok(average(&pixels, width, height))
}

impl Surface for Pixels<'_> {
    fn line(&self, points: &[(f64, f64)], pen: Pen) -> Result<()> {
        let width = (pen.width * f64::from(SCALE)).round().max(1.0) as u32;
        let style = rgb(pen.colour).stroke_width(width);
        let points: Vec<(i32, i32)> =
            points.iter().map(|p| (to_subpixels(p.0), to_subpixels(p.1))).collect();
        match pen.dash {
            None => self.0.draw(&PathElement::new(points, style)),
            Some((on, off)) => {
                let (on, off) = (to_subpixels(on), to_subpixels(off));
                self.0.draw(&DashedPathElement::new(points, on, off, style))
            }
        }
        .map_err(drawing_error)
    }

    fn dot(&self, at: (f64, f64), radius: f64, colour: Colour) -> Result<()> {
        let centre = (to_subpixels(at.0), to_subpixels(at.1));
        self.0
            .draw(&Circle::new(centre, to_subpixels(radius), rgb(colour).filled()))
            .map_err(drawing_error)
    }

    fn text(&self, text: &str, at: (f64, f64), style: TextStyle) -> Result<()> {
        let colour = rgb(style.colour);
        let anchored = font(style)
            .into_text_style(&self.0)
            .color(&colour)
            .pos(Pos::new(style.horizontal, style.vertical));
        // Boxes are centred, but most letters sit in the lower part of theirs.
        let down = match style.vertical {
            VPos::Center if !style.upwards => 0.1 * style.size,
            _ => 0.0,
        };
        self.0
            .draw(&Text::new(text, (to_subpixels(at.0), to_subpixels(at.1 + down)), anchored))
            .map_err(drawing_error)
    }

    fn image(&self, area: Area, colour: &dyn Fn(f64, f64) -> Colour) -> Result<()> {
        let (width, height) = (to_subpixels(area.width) as u32, to_subpixels(area.height) as u32);
        let at = (to_subpixels(area.x), to_subpixels(area.y));
        let pixels = sample(width, height, colour);
        let image: Option<BitMapElement<_>> =
            BitMapElement::with_owned_buffer(at, (width, height), pixels);
        match image {
            Some(image) => self.0.draw(&image).map_err(drawing_error),
            None => Err(Error::bug("picture: an image without pixels")),
        }
    }
}

/// Returns the width of a text.
pub fn text_width(text: &str, style: TextStyle) -> Result<f64> {
    let (width, _) = font(style).box_size(text).map_err(drawing_error)?;
    Ok(f64::from(width) / f64::from(SCALE))
}

fn font(style: TextStyle) -> FontDesc<'static> {
    let weight = if style.bold { FontStyle::Bold } else { FontStyle::Normal };
    let turn = if style.upwards { FontTransform::Rotate270 } else { FontTransform::None };
    FontDesc::new(FontFamily::Name(FONT_FAMILY), style.size * f64::from(SCALE), weight)
        .transform(turn)
}

/// Converts a coordinate to supersampled pixels.
fn to_subpixels(x: f64) -> i32 {
    (x * f64::from(SCALE)).round() as i32
}

fn rgb([r, g, b]: Colour) -> RGBColor {
    RGBColor(r, g, b)
}

/// Registers the embedded fonts, so that a machine without fonts draws the same picture.
pub fn register_fonts() -> Result<()> {
    static DONE: OnceLock<bool> = OnceLock::new();
    let fonts: [(FontStyle, &'static [u8]); 2] = [
        (FontStyle::Normal, include_bytes!("../font/regular.ttf")),
        (FontStyle::Bold, include_bytes!("../font/bold.ttf")),
    ];
    let register =
        || fonts.into_iter().all(|(s, font)| register_font(FONT_FAMILY, s, font).is_ok());
    if *DONE.get_or_init(register) {
        Ok(())
    } else {
        Err(drawing_error("the embedded fonts are damaged"))
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
