//! Puts `${VAR}` back where a configuration used a secret.
//!
//! The rest of the program only hides values that are long enough to be recognised ([`crate::secrets`]);
//! here a value of any length is hidden, since its place is known.

use crate::secrets::Secrets;
use serde_json::Value;

use super::check::visit;
use super::variables::Secret;

/// Shorter values are hidden only in the keys that use them.
const SEARCHED: usize = 6;

/// Puts the `${VAR}` back for every secret in a resolved configuration, and escapes every other `${`, so
/// that the result can be loaded again. It replaces only secrets that the configuration uses: the result
/// must not depend on what else is in the environment.
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

/// A message about `key` without the values of secrets; short ones are only looked for if the key, or one
/// below it, uses them.
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
