//! Keeping secrets out of what is written down.

use serde_json::Value;

use super::check::join;
use super::variables::Secret;

/// Values shorter than this are hidden only where they were put, not wherever they occur.
const SEARCHED: usize = 6;

/// Puts the `${VAR}` back for every secret in a resolved configuration, and escapes what would be
/// taken for a variable when it is loaded again.
pub(super) fn hide(resolved: &mut Value, secrets: &[Secret]) {
    walk(resolved, "", secrets);
}

fn walk(value: &mut Value, path: &str, secrets: &[Secret]) {
    if let Some(secret) = secrets.iter().find(|secret| secret.key == path) {
        *value = Value::String(secret.written.clone());
        return;
    }
    match value {
        Value::String(text) => {
            *text = text.replace("${", "$${");
            for (name, value) in secrets.iter().flat_map(|secret| &secret.variables) {
                if value.len() >= SEARCHED {
                    *text = text.replace(value, &format!("${{{name}}}"));
                }
            }
        }
        Value::Array(list) => {
            for (at, item) in list.iter_mut().enumerate() {
                walk(item, &join(path, at), secrets);
            }
        }
        Value::Object(map) => {
            for (key, item) in map {
                walk(item, &join(path, key), secrets);
            }
        }
        _ => {}
    }
}

/// A message without the values of secrets.
pub(super) fn hidden(message: &str, secrets: &[Secret]) -> String {
    let mut message = message.to_string();
    for (name, value) in secrets.iter().flat_map(|secret| &secret.variables) {
        if !value.is_empty() {
            // Messages show text with its escapes.
            for shown in [value.escape_debug().to_string(), value.clone()] {
                message = message.replace(&shown, &format!("${{{name}}}"));
            }
        }
    }
    message
}
