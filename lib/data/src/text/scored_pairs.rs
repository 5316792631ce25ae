//! Pairs of texts with a score of their similarity.

use super::columns::{Wanted, cell};
use super::rows::{Table, at_line};
use std::path::Path;
use unix::{Error, Result};

/// Two texts and the score of their similarity.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoredPair {
    /// The texts.
    pub texts: [String; 2],
    /// The score, on any scale.
    pub score: f64,
}

/// Reads the pairs of a .csv, .tsv, .jsonl or .json file with the columns text, text2 and score.
///
/// Errors: 2 for another file; 66, 74; 65 for a missing column, for a score that is not a finite number, with the line,
/// and for a file without pairs.
pub fn scored_pairs(path: &Path) -> Result<Vec<ScoredPair>> {
    let mut wanted = Wanted::default();
    for (place, name) in [(0, "text"), (1, "text2"), (cell::LABEL, "score")] {
        wanted.names[place] = Some(name.into());
    }
    let mut table = Table::open(path, wanted)?.ok_or_else(|| {
        let path = path.display();
        Error::usage(format!(
            "{path}: pairs of texts are read from .csv, .tsv, .jsonl and .json files"
        ))
    })?;
    let mut pairs = Vec::new();
    while let Some(mut row) = table.next()? {
        let score: Option<f64> = row.cells[cell::LABEL].trim().parse().ok();
        let score = score
            .filter(|score| score.is_finite())
            .ok_or_else(|| at_line(path, row.line, "column `score`: not a finite number"))?;
        let texts = [0, 1].map(|place| std::mem::take(&mut row.cells[place]));
        pairs.push(ScoredPair { texts, score });
    }
    match pairs.is_empty() {
        true => Err(Error::data(format!("{}: no pairs", path.display()))),
        false => Ok(pairs),
    }
}
