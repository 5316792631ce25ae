//! Where the fields of a page are drawn, in pixels.

use super::content::Field;
use super::font::{Font, SLANTED_FONTS, UPRIGHT_FONTS};
use super::raster::{Rotation, Stroke};
use super::{Preset, ROW_HEIGHT, WIDTH};
use crate::draw::Draw;

/// Left end of labels, before the offset.
const LEFT: f32 = 3.0;
/// Left end of values, before the offset. Labels of seven characters and a colon end before it.
const COLUMN: f32 = 67.0;
/// Left end of values on shifted pages. Values of 13 characters end within the page at an offset of 6 pixels.
const SHIFTED_COLUMN: f32 = 80.0;
/// Distance of rows on shifted pages, smaller than [`ROW_HEIGHT`] so that there is room for the offset.
const SHIFTED_PITCH: f32 = 14.5;
/// Largest offsets of a page.
const OFFSET: usize = 2;
const SHIFTED_OFFSET: usize = 6;
/// Tangent of half of 0.8 degrees.
const LARGEST_HALF_TANGENT: f32 = 0.006_981_43;
/// Width of the lines of a table.
const RULE: f32 = 0.8;
/// Distance from the line between the columns to the values.
const RULE_GAP: f32 = 5.0;

/// Draws font, offsets and rotation of a page, and returns its strokes. None is cut at the edge of the page.
pub fn strokes(preset: Preset, fields: &[Field], height: usize, draw: &mut Draw) -> Vec<Stroke> {
    let font = match preset {
        Preset::Clean => Font::upright(draw.below(UPRIGHT_FONTS)),
        Preset::Moderate | Preset::Shifted => Font::slanted(draw.below(SLANTED_FONTS)),
    };
    let (mut column, mut pitch, mut offset) = (COLUMN, ROW_HEIGHT as f32, [OFFSET; 2]);
    // Rows are centred at the mean offset.
    let mut top = (pitch - OFFSET as f32 - font.height) / 2.0;
    let mut rotation = None;
    if preset == Preset::Shifted {
        (column, pitch) = (SHIFTED_COLUMN, SHIFTED_PITCH);
        let tangent = draw.between(-LARGEST_HALF_TANGENT, LARGEST_HALF_TANGENT);
        let centre = [WIDTH as f32 / 2.0, height as f32 / 2.0];
        let own = Rotation::by_half_tangent(tangent, centre);
        // The rotation moves both ends of a row by this much.
        top = font.stroke / 2.0 + 0.5 + own.sin.abs() * centre[0];
        let rows = (fields.len() - 1) as f32 * pitch + font.height;
        // Conversion to an integer saturates at 0.
        let room = (height as f32 - rows - 2.0 * top) as usize;
        offset = [SHIFTED_OFFSET, room.min(SHIFTED_OFFSET)];
        rotation = Some(own);
    }
    let [x, y] = offset.map(|most| draw.below(most + 1) as f32);
    let layout = Layout { left: LEFT + x, column: column + x, top: top + y, pitch };
    let mut strokes = layout.text(&font, fields, preset == Preset::Clean);
    if preset != Preset::Clean {
        layout.rules(&font, fields.len(), &mut strokes);
    }
    if let Some(rotation) = rotation {
        strokes.iter_mut().for_each(|stroke| rotation.apply(stroke));
    }
    strokes
}

/// Positions before rotation.
struct Layout {
    /// Left end of labels.
    left: f32,
    /// Left end of values.
    column: f32,
    /// Cap height of the first row.
    top: f32,
    /// Distance of rows.
    pitch: f32,
}

impl Layout {
    /// The strokes of labels, with or without colons, and values.
    fn text(&self, font: &Font, fields: &[Field], colons: bool) -> Vec<Stroke> {
        let mut strokes = Vec::new();
        let mut top = self.top;
        for field in fields {
            let label = field.kind.label();
            font.strokes(label, [self.left, top], &mut strokes);
            if colons {
                let end = self.left + label.len() as f32 * font.advance;
                font.strokes(":", [end, top], &mut strokes);
            }
            font.strokes(&field.value, [self.column, top], &mut strokes);
            top += self.pitch;
        }
        strokes
    }

    /// Adds the lines of a table: between the rows, and between labels and values.
    fn rules(&self, font: &Font, rows: usize, strokes: &mut Vec<Stroke>) {
        let [left, right] = [self.left - 1.0, self.left - LEFT + WIDTH as f32 - 8.0];
        let gap = (self.pitch - font.height) / 2.0;
        for row in 1..rows {
            let y = self.top + row as f32 * self.pitch - gap;
            strokes.push(Stroke { ends: [[left, y], [right, y]], width: RULE });
        }
        let x = self.column - RULE_GAP;
        let bottom = self.top + (rows - 1) as f32 * self.pitch + font.height;
        strokes.push(Stroke { ends: [[x, self.top], [x, bottom]], width: RULE });
    }
}
