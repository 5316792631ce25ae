//! What is made equal in answers and true answers before they are compared: `--normalise`.

use super::markdown::{cells, plain_inline, plain_text};
use strum::Display;
use unicode_normalization::UnicodeNormalization;

/// A step of a normalisation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display, clap::ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum NormaliseStep {
    /// Remove the markup of Markdown
    Markdown,
    /// Compose characters: Unicode's normalization form C
    Nfc,
    /// Replace all white space by single spaces
    Spaces,
}

/// A normalisation of texts. White space around a text is always removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Normalisation {
    /// The steps in the order in which they are taken, each once.
    steps: Vec<NormaliseStep>,
}

impl Normalisation {
    /// The normalisation with these steps, in whichever order they are given.
    pub fn new(steps: &[NormaliseStep]) -> Self {
        let mut steps = steps.to_vec();
        steps.sort_unstable();
        steps.dedup();
        Self { steps }
    }

    /// The names of its steps, in the order in which they are taken; None without steps.
    pub fn name(&self) -> Option<String> {
        let names: Vec<String> = self.steps.iter().map(ToString::to_string).collect();
        (!names.is_empty()).then(|| names.join(","))
    }

    /// Normalises a text.
    pub fn text(&self, text: &str) -> String {
        self.apply(text, plain_text)
    }

    /// The values in a text, one on each line: the cells of the rows of tables, without the first cell of each row, which
    /// is its label. None without such a cell.
    pub fn values(&self, text: &str) -> Option<String> {
        let rows = text.lines().filter_map(cells);
        let values = rows.flat_map(|row| row.into_iter().skip(1));
        let value = |cell: &str| match self.steps.contains(&NormaliseStep::Markdown) {
            true => self.apply(cell, plain_inline),
            false => self.apply(&cell.replace("\\|", "|"), str::to_string),
        };
        let values: Vec<String> = values.map(value).collect();
        (!values.is_empty()).then(|| values.join("\n"))
    }

    fn apply(&self, text: &str, plain: impl Fn(&str) -> String) -> String {
        let step = |text: String, step: &NormaliseStep| match step {
            NormaliseStep::Markdown => plain(&text),
            NormaliseStep::Nfc => text.nfc().collect(),
            NormaliseStep::Spaces => text.split_whitespace().collect::<Vec<_>>().join(" "),
        };
        self.steps.iter().fold(text.to_string(), step).trim().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NormaliseStep::{Markdown, Nfc, Spaces};

    #[test]
    fn steps_have_one_order() {
        let all = Normalisation::new(&[Spaces, Nfc, Markdown, Nfc]);
        assert_eq!(all, Normalisation::new(&[Markdown, Nfc, Spaces]));
        assert_eq!(all.name().as_deref(), Some("markdown,nfc,spaces"));
        assert_eq!(Normalisation::default().name(), None);
        assert_eq!(all.text(" # *Cafe\u{301}*\n\n|A|  1 |\n|---|---|"), "Caf\u{e9} A 1");
        assert_eq!(Normalisation::default().text(" *a*\u{301}\n b "), "*a*\u{301}\n b");
    }

    #[test]
    fn values_are_those_of_rows_without_labels() {
        let text = "Header\n|WELL|Ada  *1*|\n|---|---|\n| RUN | 1 | 2\\|3 |\n|alone|\n|END|";
        let plain = Normalisation::default();
        assert_eq!(plain.values(text).as_deref(), Some("Ada  *1*\n1\n2|3"));
        let all = Normalisation::new(&[Markdown, Spaces]);
        assert_eq!(all.values(text).as_deref(), Some("Ada 1\n1\n2|3"));
        assert_eq!(plain.values("|A|\nno | row"), None);
        assert_eq!(plain.values("|A||").as_deref(), Some(""));
    }
}
