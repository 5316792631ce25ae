//! Restores `${VAR}` in the places where a configuration uses a secret.
//!
//! In all other output, the program hides only values long enough to be recognised ([`crate::secrets`]). In a
//! configuration, values of any length are hidden, because their position is known.

use crate::secrets::Secrets;
use serde_json::Value;

use super::check::visit;
use super::variables::Secret;

/// Minimum length in characters of a value that is hidden everywhere; shorter values are hidden only in the keys that
/// use them.
const SEARCHED: usize = 6;

/// Restores `${VAR}` for every secret in a resolved configuration and escapes every other `${`, so that the result can
/// be loaded again. Only secrets that the configuration uses are replaced, so that the result does not depend on the
/// rest of the environment.
pub(super) fn hide(resolved: &mut Value, used: &[Secret]) {
    let values = values(used, SEARCHED);
    visit(resolved, "", &mut |value, path| {
        if let Some(secret) = used.iter().find(|secret| secret.key == path) {
            *value = Value::String(secret.written.clone());
        } else if let Value::String(text) = value {
            *text = values.redact(&text.replace("${", "$${")).into_owned();
        }
    });
}

/// Returns a message about `key` without the values of secrets. Short values are removed only if the key, or one below
/// it, uses them.
pub(super) fn hidden(message: &str, key: &str, used: &[Secret]) -> String {
    let here = used.iter().filter(|secret| secret.key.starts_with(key));
    let message = values(used, SEARCHED).redact(message).into_owned();
    values(here, 1).redact(&message).into_owned()
}

fn values<'a>(used: impl IntoIterator<Item = &'a Secret>, shortest: usize) -> Secrets {
    let mut values = Secrets::default();
    for (name, value) in used.into_iter().flat_map(|secret| &secret.variables) {
        if value.chars().count() >= shortest {
            values.add(name, value);
        }
    }
    values
}
