//! Markdown (CommonMark with GitHub tables).

use super::{Cell, Document, Table, aligned};

impl Document {
    /// Returns the report as Markdown, without pictures. The best values are bold.
    pub fn markdown(&self) -> String {
        let blocks = self.written("## ", escape, lines);
        format!("# {}\n\n{}", escape(&self.title), blocks.join("\n"))
    }
}

fn lines(table: &Table) -> String {
    let show = |_, cell: &Cell| match cell.is_best {
        true => format!("**{}**", escape(&cell.text)),
        false => escape(&cell.text),
    };
    let columns = aligned(table, show);
    let line = |at: usize| {
        let cells: Vec<&str> = columns.iter().map(|cells| cells[at].as_str()).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = |(at, cells): (usize, &Vec<String>)| {
        let dashes = "-".repeat(cells[0].chars().count());
        if table.is_numeric(at) { format!("{dashes}-:|") } else { format!("-{dashes}-|") }
    };
    let rules: String = columns.iter().enumerate().map(rule).collect();
    let rows: String = (1..=table.rows.len()).map(line).collect();
    format!("{}|{rules}\n{rows}", line(0))
}

/// Escapes text for Markdown. Underscores within words and brackets without a link need no escape.
fn escape(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let is_word = |at: Option<usize>| {
        at.and_then(|at| characters.get(at)).is_some_and(|c| c.is_alphanumeric() || *c == '_')
    };
    let mut escaped = String::with_capacity(text.len());
    for (at, c) in characters.iter().enumerate() {
        match c {
            '\\' | '`' | '*' | '|' | '<' | '&' | '~' | '$' => escaped.extend(['\\', *c]),
            '_' if !(is_word(at.checked_sub(1)) && is_word(Some(at + 1))) => escaped += "\\_",
            ']' if matches!(characters.get(at + 1), Some('(' | '[' | ':')) => escaped += "\\]",
            '\n' | '\r' => escaped.push(' '),
            c => escaped.push(*c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_meaning_is_escaped() {
        for (text, expected) in [
            ("training.clip_grad_norm", "training.clip_grad_norm"),
            ("rollout_nrmse[nu=0.001]", "rollout_nrmse[nu=0.001]"),
            ("_private_", "\\_private\\_"),
            ("a|b*c`d`", "a\\|b\\*c\\`d\\`"),
            ("<script>&amp;", "\\<script>\\&amp;"),
            ("![x](http://y)", "![x\\](http://y)"),
            ("two\nlines \\", "two lines \\\\"),
        ] {
            assert_eq!(escape(text), expected);
        }
    }

    #[test]
    fn tables_are_aligned_and_the_best_is_bold() {
        let mut table = Table::new(["run|", "nrmse"]);
        table.row([Cell::text("a"), Cell::number("0.25").best(true)]);
        table.row([Cell::text("b"), Cell::number("0.30")]);
        let mut document = Document::new("A & B");
        document.heading("Errors");
        document.table(table);
        document.list(vec!["x_ y".into()]);
        let expected = "\
# A \\& B

## Errors

| run\\| |    nrmse |
|-------|---------:|
| a     | **0.25** |
| b     |     0.30 |

- x\\_ y
";
        assert_eq!(document.markdown(), expected);
    }
}
