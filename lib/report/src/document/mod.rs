//! A report of text, tables and pictures, written as one HTML file, as Markdown or as plain text.
//!
//! The HTML file is self-contained: style and pictures are embedded and it loads nothing. All text is escaped for its
//! format, so it may come from file names and configurations. Markdown and plain text leave out the pictures and the marks in
//! compared texts.

mod comparison;
mod html;
mod markdown;
mod text;

pub use comparison::{COMPARED_CHARS, Comparison};

/// A report.
#[derive(Clone, Debug, Default)]
pub struct Document {
    title: String,
    blocks: Vec<Block>,
}

#[derive(Clone, Debug)]
enum Block {
    Heading(String),
    Paragraph(String),
    List(Vec<String>),
    Table(Table),
    Picture { caption: String, png: Vec<u8> },
    Comparison(Comparison),
}

/// A table. A column whose cells are all numbers, or empty, is aligned to the right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

/// A cell of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    text: String,
    is_number: bool,
    is_best: bool,
}

impl Document {
    /// Creates an empty report.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), blocks: Vec::new() }
    }

    /// Starts a section.
    pub fn heading(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Heading(text.into()));
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Paragraph(text.into()));
    }

    /// Adds a list of items, unless it is empty.
    pub fn list(&mut self, items: Vec<String>) {
        if !items.is_empty() {
            self.blocks.push(Block::List(items));
        }
    }

    /// Adds a table, unless it has no rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Adds a picture in PNG format.
    pub fn picture(&mut self, caption: impl Into<String>, png: Vec<u8>) {
        self.blocks.push(Block::Picture { caption: caption.into(), png });
    }

    /// Adds two texts with their differences marked, in HTML; in Markdown and plain text they are not marked.
    pub fn comparison(&mut self, comparison: Comparison) {
        self.blocks.push(Block::Comparison(comparison));
    }

    /// Returns the blocks as lines, without pictures and without the headings of pictures.
    fn written(
        &self,
        heading: &str,
        escape: impl Fn(&str) -> String,
        lines: impl Fn(&Table) -> String,
    ) -> Vec<String> {
        let is_picture = |block: Option<&Block>| matches!(block, Some(Block::Picture { .. }));
        let write = |(at, block): (usize, &Block)| match block {
            Block::Heading(_) if is_picture(self.blocks.get(at + 1)) => None,
            Block::Heading(text) => Some(format!("{heading}{}\n", escape(text))),
            Block::Paragraph(text) => Some(format!("{}\n", escape(text))),
            Block::List(items) => {
                Some(items.iter().map(|item| format!("- {}\n", escape(item))).collect())
            }
            Block::Table(table) => Some(lines(table)),
            Block::Picture { .. } => None,
            Block::Comparison(Comparison { caption, reference, answer, .. }) => {
                let item = |(name, text): &(String, String)| {
                    format!("- {}: {}\n", escape(name), escape(text))
                };
                Some(format!("{}\n\n{}{}", escape(caption), item(reference), item(answer)))
            }
        };
        self.blocks.iter().enumerate().filter_map(write).collect()
    }
}

impl Table {
    /// Creates a table without rows.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = S>) -> Self {
        Self { columns: columns.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    fn is_numeric(&self, column: usize) -> bool {
        let mut cells = self.rows.iter().filter_map(|row| row.get(column)).peekable();
        cells.peek().is_some() && cells.all(|cell| cell.is_number || cell.text.is_empty())
    }
}

impl Cell {
    /// Creates a cell with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// Creates a cell with a formatted number.
    pub fn number(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_number: true, is_best: false }
    }

    /// Marks the cell as the best value of its row or column if `is_best`: bold, or with an asterisk in plain text.
    pub fn best(mut self, is_best: bool) -> Self {
        self.is_best = is_best;
        self
    }
}

/// Formats values of one quantity with equal precision: at least `digits` significant digits for the smallest value, or
/// scientific notation with `digits` digits if the others would then need more than nine. Missing values are dashes.
pub fn equal_precision(values: &[Option<f64>], digits: usize) -> Vec<String> {
    let finite = || values.iter().flatten().filter(|value| value.is_finite());
    let exponent = |value: f64| value.log10().floor() as i32;
    let magnitudes = || finite().map(|value| value.abs()).filter(|value| *value > 0.0);
    let low = magnitudes().reduce(f64::min).map_or(0, exponent);
    let high = magnitudes().reduce(f64::max).map_or(0, exponent);
    let digits = digits.max(1) as i32;
    let is_whole = finite().all(|value| value.fract() == 0.0);
    let decimals = if is_whole { 0 } else { (digits - 1 - low).max(0) };
    let scientific = high.max(0) + decimals > 8;
    let format = |value: &Option<f64>| match value {
        Some(value) if !value.is_finite() => value.to_string(),
        None => "–".into(),
        Some(value) if scientific => format!("{value:.*e}", (digits - 1) as usize),
        Some(value) => format!("{value:.*}", decimals as usize),
    };
    values.iter().map(format).collect()
}

/// Returns the texts of every column, header first, padded to the same width. `show` formats a cell.
fn aligned(table: &Table, show: impl Fn(usize, &Cell) -> String) -> Vec<Vec<String>> {
    let column = |(at, name): (usize, &String)| {
        let header = Cell::text(name.clone());
        let cells = std::iter::once(&header).chain(table.rows.iter().filter_map(|row| row.get(at)));
        let texts: Vec<String> = cells.map(|cell| show(at, cell)).collect();
        let width = texts.iter().map(|text| text.chars().count()).max().unwrap_or(0);
        let is_numeric = table.is_numeric(at);
        let pad = |text: String| match is_numeric {
            true => format!("{text:>width$}"),
            false => format!("{text:<width$}"),
        };
        texts.into_iter().map(pad).collect()
    };
    table.columns.iter().enumerate().map(column).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_row_have_the_same_decimals() {
        let text = |values: &[f64]| {
            equal_precision(&values.iter().map(|value| Some(*value)).collect::<Vec<_>>(), 3)
        };
        assert_eq!(text(&[0.38264, 0.02114]), ["0.3826", "0.0211"]);
        assert_eq!(text(&[12.0, 800.0]), ["12", "800"]);
        assert_eq!(text(&[1.5, 250.0]), ["1.50", "250.00"]);
        assert_eq!(text(&[0.0, -0.5]), ["0.000", "-0.500"]);
        assert_eq!(text(&[8.85e10, 0.25]), ["8.85e10", "2.50e-1"]);
        assert_eq!(equal_precision(&[None, Some(f64::NAN), Some(2.5)], 2), ["–", "NaN", "2.5"]);
        assert_eq!(equal_precision(&[None], 3), ["–"]);
    }
}
