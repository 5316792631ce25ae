//! The properties that stores of texts in one manifest share.

use super::remarks::lacking;
use super::store::TextStore;
use super::vectors::constant;
use crate::seal::SealedFile;
use crate::split::{Source, SplitSet};
use crate::store::Content;
use serde::{Deserialize, Serialize};

/// The properties that all stores of a manifest share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextKind {
    /// The labels, in the order of the classes; none for texts without labels.
    pub labels: Vec<String>,
    /// Whether a record may have any number of labels.
    pub multi_label: bool,
    /// Whether a record is a conversation, whose messages are its text, in JSON.
    #[serde(default, skip_serializing_if = "is_false")]
    pub conversations: bool,
    /// Whether a record has two texts.
    pub pairs: bool,
    /// Whether a record has a context in which an answer is to be found.
    #[serde(default)]
    pub answers: bool,
    /// Length of the vector of a record; 0 for texts alone.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub vector: usize,
    /// Whether records have a vector and no text.
    #[serde(default, skip_serializing_if = "is_false")]
    pub vectors_only: bool,
}

pub(super) fn is_zero(number: &usize) -> bool {
    *number == 0
}

pub(super) fn is_false(value: &bool) -> bool {
    !value
}

impl TextKind {
    /// Length of a record's label: one 0 or 1 per label for multi-label records, otherwise one class; 0 without labels.
    pub fn label_len(&self) -> usize {
        match self.multi_label {
            true => self.labels.len(),
            false => usize::from(!self.labels.is_empty()),
        }
    }

    /// Whether `label` is valid for a record of this kind.
    pub fn has_label(&self, label: &[i32]) -> bool {
        let classes = if self.multi_label { 2 } else { self.labels.len() };
        label.iter().all(|class| usize::try_from(*class).is_ok_and(|class| class < classes))
    }

    /// Returns the names of the labels of a record.
    pub fn names_of(&self, label: &[i32]) -> Vec<&str> {
        let named = |class: usize| self.labels.get(class).map_or("?", String::as_str);
        self.classes_of(label).map(named).collect()
    }

    /// Returns the classes of a record.
    pub fn classes_of<'a>(&self, label: &'a [i32]) -> impl Iterator<Item = usize> + use<'a> {
        let multi_label = self.multi_label;
        label.iter().enumerate().filter_map(move |(place, value)| match multi_label {
            true => (*value == 1).then_some(place),
            false => Some(usize::try_from(*value).unwrap_or(usize::MAX)),
        })
    }
}

impl Content for TextKind {
    type Store = TextStore;
    const MANIFEST: SealedFile = SealedFile {
        format: "longhaul-text-split",
        version: 1,
        made_by: "ds-prep split",
        max_bytes: 256 << 20,
    };

    fn difference(&self, other: &Self, other_name: &str) -> String {
        let text = |kind: &Self| {
            let length = kind.vector;
            if kind.vectors_only {
                return format!("vectors of {length} numbers without texts");
            }
            let vectors = if length > 0 {
                format!(" and vectors of {length} numbers")
            } else {
                String::new()
            };
            if kind.conversations {
                return "conversations".into();
            }
            let texts = if kind.pairs { "pairs of texts" } else { "texts" };
            let multi = if kind.multi_label { "any of " } else { "" };
            let answers = if kind.answers { " and answers in contexts" } else { "" };
            let labels = match kind.labels.is_empty() {
                true => "no labels".into(),
                false => format!("{multi}the labels {}", kind.labels.join(", ")),
            };
            format!("{texts} with {labels}{answers}{vectors}")
        };
        let same = |kind: &Self| {
            let form = (kind.pairs, kind.conversations, kind.answers);
            (form, kind.multi_label, kind.vector, kind.vectors_only)
        };
        let remedy = match same(self) == same(other) {
            true => "import both with the same `labels` in columns.yaml",
            false => "import both with the same columns",
        };
        format!("has {}, but {other_name} has {}; {remedy}", text(self), text(other))
    }

    fn remarks(sets: &[SplitSet<Self>; 3]) -> Vec<String> {
        let kind = sets[0].content();
        let counts = |set: &SplitSet<Self>| {
            let mut counts = vec![0; kind.labels.len()];
            for i in 0..set.len() {
                let (store, record) = set.locate(i);
                for class in kind.classes_of(store.label(record)) {
                    counts.get_mut(class).into_iter().for_each(|count| *count += 1);
                }
            }
            (set.name().to_string(), counts)
        };
        let mut found = lacking(&kind.labels, &sets.each_ref().map(counts));
        let stores = sets[0].stores();
        let grouped = stores.iter().filter(|store| store.description().has_groups());
        let (mut all, mut without) = (0, 0);
        for store in grouped {
            all += store.len();
            without += (0..store.len()).filter(|i| store.group_name(*i).is_none()).count();
        }
        if without > 0 {
            found.push(format!(
                "{without} of {all} records have no group; each of them is divided on its own, together with equal texts only"
            ));
        }
        let train = (0..sets[0].len()).map(|i| sets[0].locate(i));
        let vectors = train.filter_map(|(store, record)| store.vector(record));
        found.extend(constant(vectors).map(|remark| format!("in the train split, {remark}")));
        found
    }
}
