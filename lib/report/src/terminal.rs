//! Charts as text: in Braille characters, or with a marker per run where Braille or colours are not available.

use crate::chart::{Chart, thinned};
use unix::terminal::Style;
use unix::text;

/// SGR codes of the colours of curves: blue, red, green, magenta, yellow, cyan.
const COLOURS: [u8; 6] = [34, 31, 32, 35, 33, 36];
/// The markers of curves without colours.
const MARKERS: [char; 8] = ['*', '+', 'o', 'x', '#', '%', '@', '='];
/// Minimum width of the tick labels of the vertical axis.
const GUTTER: usize = 6;
/// Minimum width and height of a chart in characters.
const MIN_SIZE: (usize, usize) = (24, 7);
/// Width from which charts are drawn side by side.
const WIDE: usize = 100;
/// The bits of the dots of a Braille character (U+2800), by row and column.
const DOTS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// One character of the plot.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// The dots of a Braille character.
    dots: u8,
    /// Index of the curve on top.
    curve: usize,
    is_used: bool,
}

/// The plot area.
struct Plot {
    columns: usize,
    cells: Vec<Cell>,
    /// Dots per character along each axis; 1 for markers.
    detail: (usize, usize),
}

/// Returns the colour of a run as SGR code.
pub fn colour(run: usize) -> u8 {
    COLOURS[run % COLOURS.len()]
}

/// Draws a chart of the given width and height; returns its lines, each as wide as the chart.
pub fn draw(chart: &Chart, width: usize, height: usize, style: Style) -> Vec<String> {
    let (width, height) = (width.max(MIN_SIZE.0), height.max(MIN_SIZE.1));
    let has_dots = style.unicode && (style.colour || chart.curves.len() == 1);
    let mut lines = vec![style.paint(1, &pad(&label(&chart.title, width, style), width))];
    lines.extend(legend(chart, width, has_dots, style));
    let shown = |(value, text): (f64, String)| (value, label(&text, width / 2, style));
    let labels: Vec<(f64, String)> = chart.y.ticks().into_iter().map(shown).collect();
    let gutter = labels.iter().map(|(_, text)| text.chars().count()).fold(GUTTER, usize::max);
    // Each category needs a row.
    let rows = height.saturating_sub(lines.len() + 2).max(chart.y.names()).max(3);
    let columns = width - gutter - 2;
    let detail = if has_dots { (2, 4) } else { (1, 1) };
    let mut plot = Plot { columns, cells: vec![Cell::default(); columns * rows], detail };
    for at in (0..chart.curves.len()).rev() {
        plot.curve(chart, at, rows);
    }
    let [vertical, tick, corner, horizontal, down] =
        if style.unicode { ['│', '┤', '└', '─', '┬'] } else { ['|', '|', '+', '-', '+'] };
    let mut at_row = vec![None; rows];
    for (value, text) in labels.iter().filter(|(_, text)| !text.is_empty()) {
        at_row[place(1.0 - chart.y.position(*value), rows)].get_or_insert(text.as_str());
    }
    for (row, text) in at_row.into_iter().enumerate() {
        let axis = if text.is_some() { tick } else { vertical };
        let text = text.unwrap_or_default();
        let cells = &plot.cells[row * columns..][..columns];
        lines.push(format!("{text:>gutter$} {axis}{}", row_text(cells, chart, has_dots, style)));
    }
    let (mut axis, mut numbers) = (vec![horizontal; columns], String::new());
    for (value, text) in chart.x.ticks().into_iter().map(shown) {
        let column = place(chart.x.position(value), columns);
        axis[column] = down;
        let length = text.chars().count();
        let start = column.saturating_sub(length / 2).min(columns.saturating_sub(length));
        let end = numbers.chars().count();
        if end == 0 || start > end {
            numbers = format!("{numbers:<start$}{text}");
        }
    }
    lines.push(format!("{:gutter$} {corner}{}", "", String::from_iter(axis)));
    let x = label(chart.x.label(), gutter, style);
    lines.push(pad(&format!("{x:>gutter$}  {numbers}"), width));
    lines
}

/// Returns the number of charts side by side.
pub fn columns(charts: usize, width: usize) -> usize {
    if width >= WIDE && charts > 1 { 2 } else { 1 }
}

/// Draws charts in one column, or in two if `width` allows, with an empty line between rows.
pub fn page(charts: &[Chart], width: usize, height: usize, style: Style) -> Vec<String> {
    let columns = columns(charts.len(), width);
    let each = (width + 2) / columns - 2;
    let row = |row: &[Chart]| {
        let drawn: Vec<_> = row.iter().map(|one| draw(one, each, height, style)).collect();
        let lines = drawn.iter().map(Vec::len).max().unwrap_or(0);
        let line = |at: usize| {
            let part = |one: &Vec<String>| one.get(at).cloned().unwrap_or(pad("", each));
            drawn.iter().map(part).collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        (0..lines).map(line).collect::<Vec<String>>()
    };
    charts.chunks(columns).map(row).collect::<Vec<_>>().join(&String::new())
}

impl Plot {
    /// Draws curve number `at` over the others, as lines between its points.
    fn curve(&mut self, chart: &Chart, at: usize, rows: usize) {
        let (width, height) = (self.columns * self.detail.0, rows * self.detail.1);
        let mut before: Option<(usize, usize)> = None;
        let curve = &chart.curves[at];
        let joined = curve.mark.is_none();
        let most = if joined { width } else { usize::MAX };
        for (x, y) in thinned(&curve.points, most) {
            if !chart.x.contains(x) || !chart.y.contains(y) {
                before = None;
                continue;
            }
            let to = (place(chart.x.position(x), width), place(1.0 - chart.y.position(y), height));
            let from = before.replace(to).filter(|_| joined).unwrap_or(to);
            let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)).max(1);
            for step in 0..=steps {
                let between = |from: usize, to: usize| {
                    let part = step as f64 / steps as f64;
                    (from as f64 + part * (to as f64 - from as f64)).round() as usize
                };
                self.dot(between(from.0, to.0), between(from.1, to.1), at);
            }
        }
    }

    fn dot(&mut self, x: usize, y: usize, curve: usize) {
        let (column, row) = (x / self.detail.0, y / self.detail.1);
        let dots = DOTS[y % self.detail.1][x % self.detail.0];
        if let Some(cell) = self.cells.get_mut(row * self.columns + column) {
            *cell = Cell { dots: cell.dots | dots, curve, is_used: true };
        }
    }
}

/// Returns the index, among `count`, of a position from 0 to 1.
fn place(position: f64, count: usize) -> usize {
    (position * (count - 1) as f64).round() as usize
}

/// Formats a row of the plot.
fn row_text(cells: &[Cell], chart: &Chart, has_dots: bool, style: Style) -> String {
    let character = |cell: &Cell| match cell.is_used {
        false => ' ',
        true if has_dots => char::from_u32(0x2800 + u32::from(cell.dots)).unwrap_or(' '),
        true => marker(chart.curves[cell.curve].run),
    };
    let colour = |cell: &Cell| cell.is_used.then(|| colour(chart.curves[cell.curve].run));
    let pieces = cells.chunk_by(|a, b| colour(a) == colour(b));
    let piece = |piece: &[Cell]| {
        let text: String = piece.iter().map(character).collect();
        colour(&piece[0]).map_or(text.clone(), |code| style.paint(code, &text))
    };
    pieces.map(piece).collect()
}

fn marker(run: usize) -> char {
    MARKERS[run % MARKERS.len()]
}

/// Lists the names of the curves, in as many lines as they require.
fn legend(chart: &Chart, width: usize, has_dots: bool, style: Style) -> Vec<String> {
    let mut lines = Vec::new();
    let (mut line, mut used) = (String::new(), 0);
    for curve in chart.curves.iter().filter(|curve| !curve.name.is_empty()) {
        let mark = if has_dots { "⠒⠒".to_string() } else { marker(curve.run).to_string() };
        let name = label(&curve.name, width - mark.chars().count() - 1, style);
        let length = mark.chars().count() + 1 + name.chars().count();
        if used > 0 && used + 3 + length > width {
            lines.push(format!("{line}{:1$}", "", width - used));
            (line, used) = (String::new(), 0);
        }
        if used > 0 {
            line.push_str("   ");
            used += 3;
        }
        line.push_str(&format!("{} {name}", style.paint(colour(curve.run), &mark)));
        used += length;
    }
    if used > 0 {
        lines.push(format!("{line}{:1$}", "", width - used));
    }
    lines
}

/// Shortens text to `width` characters by cutting its beginning, because the end of a path is more informative.
fn label(text: &str, width: usize, style: Style) -> String {
    let text = text::line(text);
    let text = if style.unicode { text } else { ascii(&text) };
    let length = text.chars().count();
    if length <= width {
        return text;
    }
    let more = if style.unicode { "…" } else { "..." };
    let kept = width.saturating_sub(more.chars().count());
    let end: String = text.chars().skip(length - kept).collect();
    format!("{more}{end}")
}

fn pad(text: &str, width: usize) -> String {
    format!("{text:<width$}")
}

/// Converts the numbers of an axis to ASCII (`1.5·10⁻³` becomes `1.5e-3`); other characters become `?`.
pub(crate) fn ascii(text: &str) -> String {
    const SUPERSCRIPTS: [char; 11] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹', '⁻'];
    let at = text.find(SUPERSCRIPTS).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at(at);
    let mantissa = match (exponent, mantissa.strip_suffix("·10"), mantissa.strip_suffix("10")) {
        ("", ..) | (_, None, None) => mantissa.to_string(),
        (_, Some(factor), _) => format!("{factor}e"),
        (_, None, Some(sign)) => format!("{sign}1e"),
    };
    let plain = |c: char| match SUPERSCRIPTS.iter().position(|own| *own == c) {
        Some(10) => '-',
        Some(digit) => char::from(b'0' + digit as u8),
        None if c == '−' => '-',
        None if c.is_ascii() => c,
        None => '?',
    };
    mantissa.chars().chain(exponent.chars()).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Axis;
    use crate::panel::{Curve, Mark};

    const PLAIN: Style = Style { unicode: false, colour: false };
    const BRAILLE: Style = Style { unicode: true, colour: false };

    fn chart(names: &[&str]) -> Chart {
        let curve = |(run, name): (usize, &&str)| {
            let slope = if run == 0 { 1.0 } else { -1.0 };
            let value = |n: u32| 0.5 + slope * (f64::from(n) / 100.0 - 0.5);
            let points = (0..=100).map(|n| (f64::from(n), value(n)));
            Curve::of_run(run, name, 1.0, points)
        };
        Chart {
            metric: "loss".into(),
            title: "training loss".into(),
            x: Axis::linear("update", 0.0, 100.0),
            y: Axis::linear("", 0.0, 1.0),
            curves: names.iter().enumerate().map(curve).collect(),
        }
    }

    fn text(chart: &Chart, width: usize, height: usize, style: Style) -> String {
        let lines = draw(chart, width, height, style);
        assert!(lines.len() == height, "{lines:#?}");
        lines.iter().map(|line| format!("{}\n", line.trim_end())).collect()
    }
    #[test]
    fn one_curve_in_braille() {
        let expected = "\
training loss
   1.0 ┤                           ⣀⡠⠤⠒⠉
   0.8 ┤                     ⢀⣀⠤⠒⠊⠉
   0.6 ┤                ⣀⠤⠤⠒⠊⠁
   0.4 ┤           ⣀⠤⠔⠊⠉
   0.2 ┤     ⣀⡠⠔⠒⠉⠉
   0.0 ┤⣀⠤⠔⠒⠉
       └┬─────┬─────┬──────┬─────┬─────┬
update  0    20    40     60    80   100
";
        assert_eq!(text(&chart(&[""]), 40, 9, BRAILLE), expected);
    }

    #[test]
    fn curves_without_colours_have_markers() {
        let names = ["runs/a", "runs/a-very-long-name-whose-end-says-more"];
        let expected = "\
training loss
* runs/a
+ ...-very-long-name-whose-end-says-more
   1.0 |+++                          ***
   0.8 |   +++++                *****
   0.6 |        ++++++     *****
       |              *****
   0.4 |        ******     +++++
   0.2 |   *****                +++++
   0.0 |***                          +++
       ++-----+-----+------+-----+-----+
update  0    20    40     60    80   100
";
        assert_eq!(text(&chart(&names), 40, 12, PLAIN), expected);
    }

    #[test]
    fn colours_distinguish_curves_and_do_not_change_the_width() {
        let colours = Style { unicode: true, colour: true };
        let lines = draw(&chart(&["a", "b"]), 60, 12, colours);
        let joined = lines.join("\n");
        for run in [0, 1] {
            assert!(joined.contains(&format!("\x1b[{}m", colour(run))), "{joined:?}");
        }
        let (mut plain, mut inside) = (String::new(), false);
        for c in joined.chars() {
            inside |= c == '\x1b';
            plain.extend(Some(c).filter(|_| !inside));
            inside &= c != 'm';
        }
        assert!(plain.lines().all(|line| line.chars().count() == 60), "{plain}");
    }

    #[test]
    fn a_single_point_and_tiny_terminals_are_drawn() {
        let mut one = chart(&["a"]);
        one.curves[0].points.truncate(1);
        assert!(text(&one, 1, 1.max(MIN_SIZE.1), PLAIN).contains('*'));
    }

    #[test]
    fn points_need_not_be_joined() {
        let mut one = chart(&["a"]);
        one.curves[0] = Curve {
            points: vec![(0.0, 0.0), (100.0, 1.0)],
            mark: Some((Mark::Disc, 1.0)),
            ..one.curves[0].clone()
        };
        let drawn = text(&one, 40, 12, PLAIN);
        let plot = drawn.split_once('\n').map_or("", |(_, rest)| rest);
        assert_eq!(plot.matches('*').count(), 3, "two points and the legend: {drawn}");
    }

    #[test]
    fn numbers_in_ascii() {
        for (unicode, plain) in
            [("10⁻³", "1e-3"), ("1.5·10¹²", "1.5e12"), ("−0.5", "-0.5"), ("ν", "?"), ("100", "100")]
        {
            assert_eq!(ascii(unicode), plain);
        }
    }
}
