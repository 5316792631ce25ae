//! The file columns.yaml, which assigns the columns of the user's files and defines how labels are read.

use super::sentences::Language;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use unix::{Error, Result};

/// Maximum number of labels.
const MAX_LABELS: usize = 4096;

/// Columns by name, and how labels are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Columns {
    /// The text. Records with a context need none; theirs is a question about it, or with a label the text that has it.
    #[serde(default)]
    pub text: Option<String>,
    /// Instead, a conversation: a list of messages, each an object with `role` and `content`, which is a text or a list of texts
    /// and images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<String>,
    /// Instead, the user's part of a conversation of two messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The assistant's part, after `prompt` or `image`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion: Option<String>,
    /// An image that the user shows: the path of a PNG, JPEG or TIFF file, relative to the folder of the file with the row, with
    /// `#N` for page N of a TIFF file, from 0; or the bytes of such a file in base64. What is asked about it is `prompt` or, where
    /// that is missing or empty, `instruction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What is asked about images without a prompt, a text and no column. Default: to convert the document to Markdown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instruction: Option<String>,
    /// A second text; models read both as a pair.
    #[serde(default)]
    pub text2: Option<String>,
    /// What the record is about; scores are also given for the records of each value.
    #[serde(default)]
    pub criterion: Option<String>,
    /// The allowed criteria. Default: any.
    #[serde(default)]
    pub criteria: Option<Vec<String>>,
    /// Whether only the first record of each group is kept that has a given criterion.
    #[serde(default)]
    pub unique: bool,
    /// A longer text in which an answer is to be found.
    #[serde(default)]
    pub context: Option<String>,
    /// The answer, a part of the context; the first one, if it occurs there more than once. Empty: there is none.
    #[serde(default)]
    pub answer: Option<String>,
    /// The first character of the answer in the context, from 0, instead of `answer`. Empty: there is none.
    #[serde(default)]
    pub answer_start: Option<String>,
    /// The character after the last one of the answer.
    #[serde(default)]
    pub answer_end: Option<String>,
    /// Instead, a JSON list of answers, each an object with `start_char`, `end_char` and possibly `text`: one record
    /// for each.
    #[serde(default)]
    pub cases: Option<String>,
    /// The label.
    #[serde(default)]
    pub label: Option<String>,
    /// Records with equal values always share a split. Default: records with equal texts.
    #[serde(default)]
    pub group: Option<String>,
    /// Identifies the record in predictions.
    #[serde(default)]
    pub id: Option<String>,
    /// The allowed labels in the order of the classes. Default: those of the files, sorted.
    #[serde(default)]
    pub labels: Option<Vec<String>>,
    /// Whether positive, present, true and 1 are the label `positive`, and negative, absent, false and 0 `negative`, in
    /// upper or lower case.
    #[serde(default)]
    pub normalise: bool,
    /// The label that a value of the files stands for, by value, in upper or lower case.
    #[serde(default)]
    pub mapping: Option<BTreeMap<String, String>>,
    /// Separates the labels of a record that may have any number of them.
    #[serde(default)]
    pub multi_label: Option<String>,
    /// Whether a label that is not in the list, or an answer that is not in the context, is an error. If false, such
    /// records are dropped and counted.
    #[serde(default = "yes")]
    pub strict: bool,
    /// The synthetic language of the texts, for scores by slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub language: Option<Language>,
}

/// Indices of the cells of a row; text and text2 are cells 0 and 1.
pub mod cell {
    pub const GROUP: usize = 2;
    pub const ID: usize = 3;
    pub const CONTEXT: usize = 4;
    pub const CRITERION: usize = 5;
    pub const LABEL: usize = 6;
    pub const ANSWER: usize = 7;
    pub const ANSWER_START: usize = 8;
    pub const ANSWER_END: usize = 9;
    pub const CASES: usize = 10;
    pub const IMAGE: usize = 11;
    /// Number of cells.
    pub const ALL: usize = 12;
}

/// The columns to read from a file.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Column names, in the order of the cells.
    pub names: [Option<String>; cell::ALL],
    /// Cells whose columns may be missing.
    pub optional: &'static [usize],
    /// Separator of the labels in a cell.
    pub separator: Option<String>,
    /// Whether empty lines are refused in files where every line is a row.
    pub every_line: bool,
    /// Whether the first cell is a list of messages.
    pub messages: bool,
}

impl From<&Columns> for Wanted {
    fn from(columns: &Columns) -> Self {
        let names = columns.names().map(|name| name.map(String::from));
        let (separator, messages) = (columns.multi_label.clone(), columns.messages.is_some());
        // An image without a question has a default one.
        let optional: &[usize] = if columns.image.is_some() { &[0] } else { &[] };
        Self { names, separator, messages, optional, ..Self::default() }
    }
}

impl Default for Columns {
    /// No column, as for vectors without texts.
    fn default() -> Self {
        Self {
            text: None,
            messages: None,
            prompt: None,
            completion: None,
            image: None,
            instruction: None,
            text2: None,
            criterion: None,
            criteria: None,
            unique: false,
            context: None,
            answer: None,
            answer_start: None,
            answer_end: None,
            cases: None,
            label: None,
            group: None,
            id: None,
            labels: None,
            normalise: false,
            mapping: None,
            multi_label: None,
            strict: true,
            language: None,
        }
    }
}

fn yes() -> bool {
    true
}

/// The values that `normalise` maps to each label.
const NORMAL: [(&str, &[&str]); 2] = [
    ("negative", &["negative", "absent", "false", "0"]),
    ("positive", &["positive", "present", "true", "1"]),
];

impl Columns {
    /// Reads columns.yaml. Errors: 66 when it cannot be read; 78 with all violations.
    pub fn load(path: &Path) -> Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let validate = |columns: &Self| columns.violations();
        let files: [PathBuf; 1] = [path.into()];
        Ok(unix::config::load(&files, &[], &environment, &validate)?.config)
    }

    fn violations(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut add = |key: &str, what: &str| found.push((key.to_string(), what.to_string()));
        let given = [&self.text, &self.messages, &self.prompt].map(Option::is_some);
        if !given.contains(&true) && self.context.is_none() && self.image.is_none() {
            let text = "must name a column, unless `context`, `messages`, `prompt` or `image` does";
            add("text", text);
        }
        if given.iter().filter(|given| **given).count() > 1 {
            add("text", "excludes `messages` and `prompt`, and they exclude each other");
        }
        if self.image.is_some() && (self.text.is_some() || self.messages.is_some()) {
            add(
                "image",
                "excludes `text` and `messages`, whose messages may have images themselves",
            );
        }
        if self.instruction.is_some() && self.image.is_none() {
            add("instruction", "has no effect without `image`");
        }
        if (self.prompt.is_some() || self.image.is_some()) != self.completion.is_some() {
            add("completion", "needs `prompt` or `image`, and they need it");
        }
        if self.is_conversation() {
            let of_texts = [
                ("text2", self.text2.is_some()),
                ("context", self.context.is_some()),
                ("label", self.label.is_some()),
            ];
            for (key, _) in of_texts.into_iter().filter(|(_, given)| *given) {
                add(key, "has no effect on conversations");
            }
        }
        if self.text2.is_some() && (self.text.is_none() || self.is_question()) {
            add("text2", "has no effect on records whose `text` is a question about a context");
        }
        let spans = [&self.answer_start, &self.answer_end].map(Option::is_some);
        let given = [self.answer.is_some(), self.cases.is_some()];
        match (&self.context, given, spans) {
            (None, [false, false], [false, false]) | (Some(_), [false, false], [true, true]) => {}
            (Some(_), [true, false] | [false, true], [false, false]) => {}
            (Some(_), _, _) => {
                let text =
                    "needs exactly one of `answer`, `cases`, or `answer_start` with `answer_end`";
                add("context", text);
            }
            (None, _, _) => {
                add("context", "must name the column in which answers are found");
            }
        }
        if self.criterion.is_none() {
            for (key, is_given) in [("criteria", self.criteria.is_some()), ("unique", self.unique)]
            {
                if is_given {
                    add(key, "has no effect without `criterion`");
                }
            }
        }
        if self.unique && self.group.is_none() {
            add("unique", "has no effect without `group`");
        }
        if self.label.is_some() && self.text.is_none() {
            add("label", "is that of `text`, which names no column");
        }
        if self.context.is_some() && self.multi_label.is_some() {
            add("multi_label", "has no effect on records with a context, which have one label");
        }
        if self.label.is_none() {
            let of_labels = [
                ("labels", self.labels.is_some()),
                ("normalise", self.normalise),
                ("mapping", self.mapping.is_some()),
                ("multi_label", self.multi_label.is_some()),
            ];
            for (key, _) in of_labels.into_iter().filter(|(_, given)| *given) {
                add(key, "has no effect without `label`, the column of the labels");
            }
        }
        if self.normalise && self.mapping.is_some() {
            add("mapping", "excludes `normalise`, which is a mapping itself");
        }
        if self.normalise && self.labels.is_some() {
            add("labels", "excludes `normalise`, whose labels are negative and positive");
        }
        if let Some(labels) = &self.labels {
            let distinct: BTreeSet<&String> = labels.iter().collect();
            if distinct.len() != labels.len() || labels.is_empty() {
                add("labels", "must be a list of different labels");
            }
            let targets = self.mapping.iter().flatten().map(|(_, label)| label);
            for label in targets.filter(|label| !distinct.contains(label)) {
                add("mapping", &format!("`{label}` is not one of `labels`"));
            }
        }
        if self.multi_label.as_deref() == Some("") {
            add("multi_label", "must be a separator, e.g. \";\"");
        }
        found
    }

    /// Whether records are conversations.
    pub fn is_conversation(&self) -> bool {
        self.messages.is_some() || self.prompt.is_some() || self.image.is_some()
    }

    /// Whether `text` is a question about the context.
    pub fn is_question(&self) -> bool {
        self.context.is_some() && self.label.is_none()
    }

    /// Returns the column names, in the order of the cells of a row, see [`cell`].
    pub fn names(&self) -> [Option<&str>; cell::ALL] {
        let text = self.text.as_ref().or(self.messages.as_ref()).or(self.prompt.as_ref());
        let text2 = self.text2.as_ref().or(self.completion.as_ref());
        let Self { group, id, context, criterion, label, answer, cases, image, .. } = self;
        let [start, end] = [&self.answer_start, &self.answer_end];
        let [group, id, context, criterion, label, answer, start, end, cases, image] =
            [group, id, context, criterion, label, answer, start, end, cases, image]
                .map(Option::as_deref);
        let [text, text2] = [text, text2].map(|name| name.map(String::as_str));
        [text, text2, group, id, context, criterion, label, answer, start, end, cases, image]
    }

    /// Returns the labels if they are known before the files are read.
    pub fn known_labels(&self) -> Option<Vec<String>> {
        if self.normalise {
            return Some(NORMAL.iter().map(|(label, _)| label.to_string()).collect());
        }
        let targets = || {
            let labels: BTreeSet<&String> = self.mapping.as_ref()?.values().collect();
            Some(sorted(labels.into_iter().cloned().collect()))
        };
        self.labels.clone().or_else(targets)
    }

    /// Parses the labels in a cell of the file. Errors: the value that is not a label.
    pub fn labels_of(&self, cell: &str) -> std::result::Result<Vec<String>, String> {
        match &self.multi_label {
            None => Ok(vec![self.label_of(cell.trim())?]),
            Some(separator) => {
                let values = cell.split(separator.as_str()).map(str::trim);
                values.filter(|value| !value.is_empty()).map(|value| self.label_of(value)).collect()
            }
        }
    }

    fn label_of(&self, value: &str) -> std::result::Result<String, String> {
        let label = if self.normalise {
            let lower = value.to_lowercase();
            let found = NORMAL.iter().find(|(_, values)| values.contains(&lower.as_str()));
            found.map(|(label, _)| label.to_string())
        } else if let Some(mapping) = &self.mapping {
            let lower = value.to_lowercase();
            mapping.iter().find(|(key, _)| key.to_lowercase() == lower).map(|(_, to)| to.clone())
        } else {
            let allowed = self.labels.as_ref().is_none_or(|all| all.iter().any(|l| l == value));
            (allowed && !value.is_empty()).then(|| value.to_string())
        };
        label.ok_or_else(|| value.to_string())
    }
}

/// Sorts the labels found in files into the order of their classes. Errors: 65 for too many.
pub fn collected(labels: BTreeSet<String>, file: &Path) -> Result<Vec<String>> {
    require_label_limit(labels.len(), file)?;
    Ok(sorted(labels.into_iter().collect()))
}

/// Checks that the number of labels is within the limit of a label column. Errors: 65.
pub fn require_label_limit(labels: usize, file: &Path) -> Result<()> {
    match labels <= MAX_LABELS {
        true => Ok(()),
        false => Err(Error::data(format!(
            "{}: more than {MAX_LABELS} different labels; `label` must name the column of the classes",
            file.display()
        ))),
    }
}

/// Sorts labels, by value if all are integers.
fn sorted(mut labels: Vec<String>) -> Vec<String> {
    let numbers: std::result::Result<Vec<i64>, _> = labels.iter().map(|l| l.parse()).collect();
    match numbers {
        Ok(_) => labels.sort_by_key(|label| label.parse::<i64>().unwrap_or(0)),
        Err(_) => labels.sort(),
    }
    labels
}
