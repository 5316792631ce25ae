//! A picture as SVG elements. Text is kept as text.

use super::{Area, HPos, Pen, Surface, TextStyle, VPos, encode};
use crate::colours::Colour;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{Markup, PreEscaped, html};
use std::cell::RefCell;
use std::fmt::Write;
use unix::{Result, text};

/// The font that PNG pictures embed, and fonts of the same width.
const FONTS: &str = "DejaVu Sans, Verdana, sans-serif";
/// Ascender and descender of DejaVu Sans, whose sum is the line height, in units of the font size.
const ASCENDER: f64 = 0.928;
const DESCENDER: f64 = 0.236;
/// Height of a capital letter, in units of the font size.
const CAP_HEIGHT: f64 = 0.729;
/// Image resolution in pixels per unit of length.
const DETAIL: f64 = 2.0;

/// The elements drawn so far.
#[derive(Default)]
pub struct Elements(RefCell<String>);

impl Elements {
    /// Returns the complete file.
    pub fn finish(self, width: u32, height: u32) -> Vec<u8> {
        let elements = PreEscaped(self.0.into_inner());
        let svg = html! {
            svg xmlns="http://www.w3.org/2000/svg" width=(width) height=(height)
                viewBox=(format!("0 0 {width} {height}")) font-family=(FONTS) {
                rect width=(width) height=(height) fill="white" {}
                (elements)
            }
        };
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{}\n", svg.into_string()).into_bytes()
    }

    fn add(&self, element: Markup) -> Result<()> {
        let mut elements = self.0.borrow_mut();
        elements.push('\n');
        elements.push_str(&element.into_string());
        Ok(())
    }
}

impl Surface for Elements {
    fn line(&self, points: &[(f64, f64)], pen: Pen) -> Result<()> {
        let mut places = String::new();
        for (x, y) in points {
            let _ = write!(places, "{} {} ", number(*x), number(*y)); // writing to a String cannot fail
        }
        let dash = pen.dash.map(|(on, off)| format!("{} {}", number(on), number(off)));
        self.add(html! {
            polyline points=(places.trim_end()) fill="none" stroke=(hex(pen.colour))
                stroke-width=(number(pen.width)) stroke-linejoin="round" stroke-dasharray=[dash] {}
        })
    }

    fn dot(&self, at: (f64, f64), radius: f64, colour: Colour) -> Result<()> {
        self.add(html! {
            circle cx=(number(at.0)) cy=(number(at.1)) r=(number(radius)) fill=(hex(colour)) {}
        })
    }

    fn text(&self, content: &str, at: (f64, f64), style: TextStyle) -> Result<()> {
        let size = style.size / (ASCENDER + DESCENDER);
        let baseline = at.1
            + size
                * match style.vertical {
                    VPos::Top => ASCENDER,
                    VPos::Center => CAP_HEIGHT / 2.0,
                    VPos::Bottom => -DESCENDER,
                };
        let anchor = match style.horizontal {
            HPos::Left => None,
            HPos::Center => Some("middle"),
            HPos::Right => Some("end"),
        };
        let (x, y) = (number(at.0), number(at.1));
        let turn = style.upwards.then(|| format!("rotate(-90 {x} {y})"));
        self.add(html! {
            text x=(x) y=(number(baseline)) font-size=(number(size)) fill=(hex(style.colour))
                font-weight=[style.bold.then_some("bold")] text-anchor=[anchor] transform=[turn] {
                (text::line(content))
            }
        })
    }

    fn image(&self, area: Area, colour: &dyn Fn(f64, f64) -> Colour) -> Result<()> {
        let size = |length: f64| (DETAIL * length).round().max(1.0) as u32;
        let (width, height) = (size(area.width), size(area.height));
        let pixels = super::sample(width, height, colour);
        let data = STANDARD.encode(encode(width, height, &pixels)?);
        self.add(html! {
            image x=(number(area.x)) y=(number(area.y)) width=(number(area.width))
                height=(number(area.height)) preserveAspectRatio="none"
                href=(format!("data:image/png;base64,{data}")) {}
        })
    }
}

fn hex([r, g, b]: Colour) -> String {
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Formats a number with at most two decimals.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use crate::axis::Axis;
    use crate::canvas::{Canvas, png, svg};
    use crate::colours::distinct;
    use crate::panel::{Curve, Panel};
    use unix::Result;

    fn draw(canvas: &Canvas) -> Result<()> {
        let area = crate::canvas::Area { x: 0.0, y: 0.0, width: 400.0, height: 300.0 };
        let axes = (Axis::linear("update", 0.0, 10.0), Axis::linear("loss <&>", 0.0, 1.0));
        let panel = Panel::new(canvas, area, axes.0, axes.1);
        let curve = |name| Curve::new(name, distinct(0), 2.0, [(0.0, 1.0), (10.0, 0.0)]);
        panel.image("an image", |x, y| [(255.0 * x) as u8, (255.0 * y) as u8, 0])?;
        panel.curves("a \"title\"", &[curve("<b>&\u{1b}"), curve("dashed").dashed(4.0, 2.0)])
    }

    #[test]
    fn text_is_escaped_and_the_file_well_formed() {
        let bytes = svg(400, 300, draw).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let of = |tag| document.descendants().filter(move |node| node.has_tag_name(tag));
        assert_eq!(document.root_element().attribute("viewBox"), Some("0 0 400 300"));
        let texts: Vec<&str> = of("text").filter_map(|node| node.text()).collect();
        for label in ["a \"title\"", "<b>&\\u{1b}", "update", "loss <&>", "0.2", "10"] {
            assert!(texts.contains(&label), "{label}: {texts:?}");
        }
        assert!(of("polyline").any(|line| line.attribute("stroke-dasharray") == Some("4 2")));
        assert!(of("image").all(|i| i.attribute("href").unwrap().starts_with("data:image/png;")));
        assert!(png(400, 300, draw).is_ok(), "the same as pixels");
    }
}
