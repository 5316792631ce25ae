//! Remarks on imported rows: properties that are not errors, but that users tend to notice too late.

use super::columns::{Columns, cell};
use super::rows::Row;
use std::collections::{BTreeMap, BTreeSet};
use unix::note;
use unix::text::quote;

/// Maximum number of labels listed by name.
const NAMED: usize = 5;

/// Counts rows by the properties worth a remark.
#[derive(Default)]
pub struct Remarks {
    rows: usize,
    without_group: usize,
    without_label: usize,
    several_labels: usize,
}

/// Whether a group name is blank. Such a record shares its group with no other.
pub fn is_no_group(name: &str) -> bool {
    name.trim().is_empty()
}

impl Remarks {
    /// Counts a row that is kept and has `labels` labels.
    pub fn add(&mut self, row: &Row, labels: usize) {
        self.rows += 1;
        self.without_group += usize::from(is_no_group(&row.cells[cell::GROUP]));
        self.without_label += usize::from(labels == 0);
        self.several_labels += usize::from(labels > 1);
    }

    /// Prints the remarks on the rows, of which `labels` are all the labels.
    pub fn tell(&self, columns: &Columns, labels: &[String]) {
        let Self { rows, without_group, without_label, several_labels } = self;
        if let Some(column) = columns.group.as_ref().filter(|_| *without_group > 0) {
            note!(
                "{without_group} of {rows} records have no group (column `{column}` is empty); each of them is divided on its \
                 own, together with equal texts only"
            );
        }
        if columns.label.is_none() {
            return;
        }
        if let Some(separator) = &columns.multi_label {
            if *without_label > 0 {
                note!(
                    "{without_label} of {rows} records have no label, which `multi_label` allows"
                );
            }
            if *several_labels == 0 {
                let separator = quote(separator);
                note!(
                    "no record has more than one label; `multi_label` separates them by {separator}"
                );
            }
        }
        for own in alike(labels) {
            let own = shown(&own);
            note!(
                "the labels {own} are different classes; if they mean the same, join them with `mapping` in columns.yaml"
            );
        }
        let lists: Vec<&String> = labels.iter().filter(|label| is_list(label)).collect();
        if !lists.is_empty() {
            let own = shown(&lists);
            note!(
                "the labels {own} look like lists, and each is one class; for any number of labels in a record write them \
                 with a separator, and set `multi_label`"
            );
        }
    }
}

/// Finds labels that are equal as numbers, or as lower-case text without white space.
fn alike(labels: &[String]) -> Vec<Vec<&String>> {
    let mut found: BTreeMap<String, Vec<&String>> = BTreeMap::new();
    for label in labels {
        let number = label.parse::<f64>().ok().filter(|number| number.is_finite());
        let key = match number {
            // Adding 0 turns -0 into 0.
            Some(number) => (number + 0.0).to_string(),
            None => label.split_whitespace().map(str::to_lowercase).collect(),
        };
        found.entry(key).or_default().push(label);
    }
    found.into_values().filter(|own| own.len() > 1).collect()
}

fn is_list(label: &str) -> bool {
    label.starts_with('[') && label.ends_with(']')
}

/// Lists some labels by name.
pub fn shown(labels: &[&String]) -> String {
    let named: Vec<String> = labels.iter().take(NAMED).map(|label| quote(label)).collect();
    let more = labels.len() - named.len();
    let named = named.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Describes which classes are missing from splits, given the number of records of each class by split.
pub fn lacking(labels: &[String], by_split: &[(String, Vec<usize>)]) -> Vec<String> {
    let of_split = |(name, counts): &(String, Vec<usize>)| {
        let absent: BTreeSet<usize> =
            (0..labels.len()).filter(|class| counts[*class] == 0).collect();
        if absent.is_empty() || counts.iter().all(|count| *count == 0) {
            return None;
        }
        let absent: Vec<&String> = absent.into_iter().map(|class| &labels[class]).collect();
        let [classes, them] = if absent.len() == 1 { ["label", "it"] } else { ["labels", "them"] };
        let absent = shown(&absent);
        let follows = match name.as_str() {
            "train" => format!("so no model can learn to predict {them}"),
            _ => "so metrics over all classes are undefined or misleading there".into(),
        };
        Some(format!("the {name} split has no record with the {classes} {absent}, {follows}"))
    };
    by_split.iter().filter_map(of_split).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_that_may_mean_the_same() {
        let labels = ["0", "0.0", "1", "Spam", "spam ", "SPAM", "ham", "-0", "nan", "NaN"];
        let labels = labels.map(String::from);
        let found = alike(&labels);
        let expected: [&[usize]; 3] = [&[0, 1, 7], &[8, 9], &[3, 4, 5]];
        let expected = expected.map(|own| own.iter().map(|at| &labels[*at]).collect::<Vec<_>>());
        assert_eq!(found, expected);
        let lacks =
            lacking(&labels[..2], &[("train".into(), vec![3, 0]), ("test".into(), vec![1, 1])]);
        assert_eq!(lacks.len(), 1);
        assert!(lacks[0].contains("train split has no record with the label 0.0"), "{lacks:?}");
    }
}
