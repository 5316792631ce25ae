//! Finds problems in a store of texts.

use super::TextStore;
use super::chat::messages_of;
use super::vectors;
use crate::split::Source;
use crate::split::check::{CheckReport, ProblemKind};
use crate::store::RecordStore;
use serde_json::Value;
use std::collections::HashMap;

/// Reports every problem in the records of a store.
pub(super) fn check_store(store: &TextStore, report: &mut CheckReport) {
    let kind = store.kind();

    let mut labels: HashMap<blake3::Hash, (&[i32], bool)> = HashMap::new();
    for i in 0..store.len() {
        let (file, record) = store.origin(i);
        let mut add = |kind: ProblemKind, what: String| {
            let what = format!("{what} (line {})", store.line(i));
            report.add_record(kind, file, Some(record), what);
        };
        let [text, text2] = store.texts(i);
        let texts = [("text", text), ("second text", text2), ("context", store.context(i))];
        for (name, text) in texts {
            if text.is_some_and(|text| text.trim().is_empty()) {
                add(ProblemKind::EmptyText, format!("its {name} is empty; remove the record"));
            }
        }
        if kind.conversations && has_empty_answer(store.texts(i)[0].unwrap_or_default()) {
            add(ProblemKind::EmptyText, "an answer is empty; remove the record".into());
        }
        if !kind.has_label(store.label(i)) {
            add(ProblemKind::Label, "its label is not in the list; import it again".into());
        }
        check_images(store, i, &mut add);
        let length = store.context(i).map_or(0, |context| context.chars().count());
        if store.answer(i).is_some_and(|[start, end]| start >= end || end > length) {
            add(ProblemKind::Label, "its answer is not in its context; import it again".into());
        }
        let first = labels.entry(store.input_hash(i)).or_insert((store.label(i), false));
        first.1 |= first.0 != store.label(i);
    }
    vectors::check(store, report);
    let differing = labels.values().filter(|(_, differ)| *differ).count();
    if differing > 0 {
        unix::note!(
            "{}: {differing} texts occur more than once with different labels",
            store.path().display()
        );
    }
}

/// Reports images that cannot be decoded.
fn check_images(store: &TextStore, i: usize, add: &mut impl FnMut(ProblemKind, String)) {
    let Some(images) = store.image_store() else { return };
    let names = store.image_names(i);
    for (own, name) in store.images(i).into_iter().zip(names) {
        if let Err(error) = images.decode(name, own) {
            add(ProblemKind::Unreadable, format!("{error}; import it again"));
        }
    }
}

/// Whether a conversation has an assistant's message without content.
fn has_empty_answer(json: &str) -> bool {
    let is_empty = |message: &Value| {
        let content = message["content"].as_str();
        message["role"] == "assistant" && content.is_some_and(|text| text.trim().is_empty())
    };
    messages_of(json).is_ok_and(|messages| messages.iter().any(is_empty))
}
