//! Plain text for terminals, in the table style of all programs.

use super::{Cell, Document, Table, aligned};

impl Document {
    /// Returns the report as plain text, without title and pictures. The best values have an asterisk.
    pub fn text(&self) -> String {
        self.written("", str::to_string, lines).join("\n")
    }
}

fn lines(table: &Table) -> String {
    let has_best = |at: usize| table.rows.iter().any(|row| row.get(at).is_some_and(|c| c.is_best));
    // A space below the asterisk keeps the digits aligned.
    let show = |at: usize, cell: &Cell| match (cell.is_best, has_best(at)) {
        (true, _) => format!("{}*", cell.text),
        (false, true) => format!("{} ", cell.text),
        (false, false) => cell.text.clone(),
    };
    let columns = aligned(table, show);
    let line = |at: usize| {
        let cells: Vec<&str> = columns.iter().map(|cells| cells[at].as_str()).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    (0..=table.rows.len()).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_values_have_an_asterisk() {
        let mut table = Table::new(["metric", "a", "run b"]);
        let number = |text: &str| Cell::number(text);
        table.row([Cell::text("nrmse"), number("0.25").best(true), number("0.30")]);
        table.row([Cell::text("rmse"), number("10.00"), Cell::default()]);
        let mut document = Document::new("unused");
        document.heading("Metrics");
        document.paragraph("Two runs.");
        document.table(table);
        document.list(vec!["one".into(), "two".into()]);
        document.heading("unused");
        document.picture("unused", vec![1]);
        let expected = "\
Metrics

Two runs.

metric      a   run b
nrmse    0.25*   0.30
rmse    10.00

- one
- two
";
        assert_eq!(document.text(), expected);
    }
}
