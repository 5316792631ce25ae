//! One self-contained HTML file. The maud crate escapes all text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::comparison::{COMPARED_CHARS, Comparison, Part, visible};
use super::{Block, Cell, Document, Table};

/// Tables as in printed papers: rules above, below and under the header, but none between columns.
const STYLE: &str = include_str!("style.css");

impl Document {
    /// Returns the report as one HTML file; the best values are bold.
    pub fn html(&self) -> String {
        let program = unix::cli::program();
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="generator" content=(format!("{} {}", program.name, program.version));
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    @for block in &self.blocks { (render_block(block)) }
                    footer { (program.name) " " (program.version) ", commit " (program.commit) }
                }
            }
        };
        page.into_string() + "\n"
    }
}

fn render_block(block: &Block) -> Markup {
    match block {
        Block::Heading(text) => html! { h2 { (text) } },
        Block::Paragraph(text) => html! { p { (text) } },
        Block::List(items) => html! { ul { @for item in items { li { (item) } } } },
        Block::Table(table) => render_table(table),
        Block::Picture { caption, png } => html! {
            figure {
                (render_png(caption, png))
                figcaption { (caption) }
            }
        },
        Block::Comparison(comparison) => render_comparison(comparison),
    }
}

fn render_png(caption: &str, png: &[u8]) -> Markup {
    html! { img src=(format!("data:image/png;base64,{}", STANDARD.encode(png))) alt=(caption); }
}

fn render_comparison(comparison: &Comparison) -> Markup {
    let [reference, answer] = comparison.parts();
    let [hidden, others] = comparison.hidden();
    let removed = |text: &str| html! { del { (text) } };
    let added = |text: &str| html! { ins { (text) } };
    html! {
        figure class="comparison" {
            @if let Some(png) = &comparison.png { (render_png(&comparison.caption, png)) }
            div {
                (render_text(&comparison.reference.0, &reference, hidden, removed))
                (render_text(&comparison.answer.0, &answer, others, added))
            }
            figcaption { (comparison.caption) }
        }
    }
}

fn render_text(name: &str, parts: &[Part], hidden: usize, mark: impl Fn(&str) -> Markup) -> Markup {
    html! {
        p { (name) }
        // Browsers drop the first line end.
        pre dir="auto" {
            "\n"
            @for part in parts {
                @if part.is_marked { (mark(&visible(&part.text))) } @else { (part.text) }
            }
        }
        @if hidden > 0 {
            p { "… and " (hidden) " more characters; the first " (COMPARED_CHARS) " are compared." }
        }
    }
}

fn render_table(table: &Table) -> Markup {
    let class = |at: usize| table.is_numeric(at).then_some("number");
    html! {
        div class="wide" {
            table {
                thead {
                    tr {
                        @for (at, name) in table.columns.iter().enumerate() {
                            th class=[class(at)] scope="col" { (breakable(name)) }
                        }
                    }
                }
                tbody {
                    @for row in &table.rows {
                        tr { @for (at, cell) in row.iter().enumerate() { td class=[class(at)] { (render_cell(cell)) } } }
                    }
                }
            }
        }
    }
}

fn render_cell(cell: &Cell) -> Markup {
    let text = match cell.is_number {
        true => html! { (cell.text.replace('-', "−")) },
        false => breakable(&cell.text),
    };
    match cell.is_best {
        true => html! { strong { (text) } },
        false => html! { (text) },
    }
}

/// Marks possible line breaks after the separators of paths and keys.
fn breakable(text: &str) -> Markup {
    html! { @for part in text.split_inclusive(['.', '_', '/']) { (part) wbr; } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_and_nothing_is_loaded() {
        let hostile = "\"><script>alert(1)</script>&";
        let mut table = Table::new([hostile, "value"]);
        table.row([Cell::text(hostile), Cell::number("-0.25").best(true)]);
        let mut document = Document::new(hostile);
        document.heading(hostile);
        document.paragraph(hostile);
        document.list(vec![hostile.into()]);
        document.table(table);
        document.picture(hostile, b"\x89PNG\r\n".to_vec());
        let text = || (hostile.to_string(), hostile.to_string());
        let (reference, answer) = (text(), text());
        document.comparison(Comparison { caption: hostile.into(), png: None, reference, answer });
        let html = document.html();
        assert!(!html.contains("<script") && !html.contains("http"), "{html}");
        // Slashes in tables are followed by a possible line break.
        let escaped = "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;";
        let html = html.replace("<wbr>", "");
        assert_eq!(html.matches(escaped).count(), 14, "{html}");
        assert!(html.contains("<td class=\"number\"><strong>−0.25</strong></td>"), "{html}");
        assert!(html.contains("<img src=\"data:image/png;base64,iVBORw0K\""), "{html}");
    }

    #[test]
    fn differences_are_marked_and_long_texts_are_cut() {
        let mut document = Document::new("Answers");
        document.comparison(Comparison {
            caption: "1: item 7".into(),
            png: Some(b"\x89PNG\r\n".to_vec()),
            reference: ("reference".into(), "\n<b>\nx & y".into()),
            answer: ("answer".into(), format!("\n<i>x &amp; y{}", "z".repeat(COMPARED_CHARS))),
        });
        let html = document.html();
        let start = html.find("<figure").unwrap();
        let html = &html[start..html.find("<footer").unwrap()];
        assert!(html.starts_with("<figure class=\"comparison\"><img src=\"data:image"), "{html}");
        // A line end that is missing is visible.
        let first = "\n\n&lt;<del>b</del>&gt;<del>↵\n</del>x &amp; y</pre>";
        assert!(html.contains(first), "{html}");
        let second = "\n\n&lt;<ins>i</ins>&gt;x &amp;<ins>amp;</ins> y<ins>zz";
        assert!(html.contains(second), "{html}");
        assert!(html.contains("… and 13 more characters; the first 2000 are compared."), "{html}");
        assert_eq!(html.matches("more characters").count(), 1);
    }
}
