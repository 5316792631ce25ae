//! A point of the check, and what was found.

use serde::Serialize;
use unix::{Error, Result};

/// How a point came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing is wrong.
    Ok,
    /// The run would start, but perhaps not as intended.
    Warning,
    /// The run would fail.
    Failed,
    /// Another point failed that this one depends on.
    Skipped,
}

/// A point that is checked before a run.
#[derive(Debug, Serialize)]
pub struct CheckPoint {
    /// What is checked.
    pub point: &'static str,
    /// How it came out.
    pub result: Outcome,
    /// What was found, in one line.
    pub found: String,
    /// All problems, if it failed.
    #[serde(skip)]
    pub problems: Vec<Error>,
}

/// What was found where nothing failed.
pub(super) struct Found(Outcome, String);

impl From<String> for Found {
    fn from(text: String) -> Self {
        Self(Outcome::Ok, text)
    }
}

impl Found {
    pub(super) fn warning(text: String) -> Self {
        Self(Outcome::Warning, text)
    }
}

/// The points so far.
#[derive(Default)]
pub(super) struct Points(pub(super) Vec<CheckPoint>);

impl Points {
    /// Adds a point.
    pub(super) fn add(&mut self, point: &'static str, found: Result<Found>) {
        match found {
            Ok(Found(result, found)) => {
                self.0.push(CheckPoint { point, result, found, problems: Vec::new() });
            }
            Err(error) => self.fail(point, vec![error]),
        }
    }

    /// Adds a point with problems.
    pub(super) fn fail(&mut self, point: &'static str, problems: Vec<Error>) {
        let first = problems.first().map(Error::to_string).unwrap_or_default();
        let mut found = first_line(&first);
        if problems.len() > 1 {
            found += &format!(" (and {} more)", problems.len() - 1);
        }
        self.0.push(CheckPoint { point, result: Outcome::Failed, found, problems });
    }

    /// Adds points that cannot be checked.
    pub(super) fn skip(&mut self, points: &[&'static str], why: &str) {
        for point in points {
            self.add(point, Ok(Found(Outcome::Skipped, first_line(why))));
        }
    }

    /// Whether any point has failed.
    pub(super) fn have_failed(&self) -> bool {
        self.0.iter().any(|point| point.result == Outcome::Failed)
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_string()
}
