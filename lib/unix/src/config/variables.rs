//! Substitutes `${VAR}` and `${VAR:-default}` from the environment and from a `.env` file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Error, Result, secrets, text};
use serde_json::Value;

use super::check::visit;
use super::yaml::MAX_BYTES;

/// A string that contains a secret.
pub(super) struct Secret {
    /// Path of the key with this string.
    pub key: String,
    /// The string as written, with `${VAR}`.
    pub written: String,
    /// Names and values of the secret variables.
    pub variables: Vec<(String, String)>,
}

/// The result of a substitution.
#[derive(Default)]
pub(super) struct Substituted {
    /// The strings in the value that now contain secrets.
    pub secrets: Vec<Secret>,
    /// Pairs of key path and message.
    pub violations: Vec<(String, String)>,
}

/// Replaces every `${VAR}` in the strings of `value`; `$${` stands for a literal `${`.
pub(super) fn substitute(
    value: &mut Value,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Substituted {
    let mut done = Substituted::default();
    visit(value, "", &mut |value, path| match value {
        Value::String(text) if text.contains("${") => match expand(text, lookup) {
            Ok((expanded, variables)) => {
                let written = std::mem::replace(text, expanded);
                if !variables.is_empty() {
                    done.secrets.push(Secret { key: path.into(), written, variables });
                }
            }
            Err(message) => done.violations.push((path.into(), message)),
        },
        _ => {}
    });
    done
}

/// Returns the text with its variables substituted, and the secret variables among them.
fn expand(
    text: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<(String, Vec<(String, String)>), String> {
    let mut expanded = String::new();
    let mut hidden = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        expanded.push_str(&rest[..start]);
        if rest[..start].ends_with('$') {
            expanded.push('{');
            rest = &rest[start + 2..];
            continue;
        }
        let Some((inside, after)) = rest[start + 2..].split_once('}') else {
            return Err("a ${ without its }; a literal ${ is written $${".into());
        };
        let pair = inside.split_once(":-");
        let (name, default) = pair.map_or((inside, None), |(name, value)| (name, Some(value)));
        if !is_name(name) {
            return Err(format!(
                "${{{}}} is not a variable: write ${{NAME}} or ${{NAME:-default}}, \
                 and $${{ for a literal ${{",
                text::quote(inside)
            ));
        }
        // As in a shell, `:-` also replaces an empty value.
        let found = lookup(name).filter(|value| !value.is_empty() || default.is_none());
        let Some(value) = found.or(default.map(String::from)) else {
            return Err(format!(
                "the environment variable {name} is not set: set it, write it to .env, \
                 or give a default as ${{{name}:-…}}"
            ));
        };
        if secrets::is_secret(name) {
            secrets::register(name, &value);
            hidden.push((name.to_string(), value.clone()));
        }
        expanded.push_str(&value);
        rest = after;
    }
    expanded.push_str(rest);
    Ok((expanded, hidden))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads `NAME=VALUE` lines; comments, empty lines, `export` and quotes are allowed. A missing file counts as empty.
/// Registers secret values.
pub(super) fn read_env_file(path: &Path) -> Result<BTreeMap<String, String>> {
    let text = match std::fs::metadata(path) {
        Ok(found) if found.len() > MAX_BYTES || !found.is_file() => {
            let what = "not a regular file, or too large for a file of variables";
            return Err(Error::config(format!("{}: {what}", path.display())));
        }
        Ok(_) => std::fs::read_to_string(path).map_err(|cause| Error::open(path, cause))?,
        Err(_) => return Ok(BTreeMap::new()),
    };
    let mut variables = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.strip_prefix("export ").unwrap_or(line).split_once('=');
        let Some((name, value)) = pair.filter(|(name, _)| is_name(name.trim())) else {
            let place = format!("{}: line {}", path.display(), number + 1);
            return Err(Error::config(format!("{place}: expected NAME=VALUE")));
        };
        let (name, value) = (name.trim(), unquoted(value.trim()));
        secrets::register(name, value);
        variables.insert(name.into(), value.into());
    }
    Ok(variables)
}

/// Registers the secrets in `.env` in the current directory, because messages of programs that read no configuration
/// may contain them too. Errors are left to the program that reads the file.
pub fn register_env_file() {
    let _ = read_env_file(Path::new(".env"));
}

fn unquoted(value: &str) -> &str {
    let inside = |quote| value.strip_prefix(quote).and_then(|v| v.strip_suffix(quote));
    inside('"').or_else(|| inside('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, String> {
        let lookup = |name: &str| match name {
            "A" => Some("x".to_string()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        expand(text, &lookup).map(|(text, _)| text)
    }

    #[test]
    fn variables_defaults_and_escapes() {
        let cases = [
            ("${A}/${A}", "x/x"),
            ("${B:-y}z", "yz"),
            ("${EMPTY:-y}", "y"),
            ("<${EMPTY}>", "<>"),
            ("$${A}", "${A}"),
            ("$5 $A", "$5 $A"),
        ];
        for (text, expected) in cases {
            assert_eq!(expanded(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, word) in
            [("${B}", "B is not set"), ("${A", "without"), ("${A B}", "not a variable")]
        {
            assert!(expanded(text).unwrap_err().contains(word), "{text}");
        }
    }

    #[test]
    fn env_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".env");
        assert!(read_env_file(&path).unwrap().is_empty());
        std::fs::write(&path, "# c\n\nexport A=1\nB = \"two words\"\nC='x=y'\nD=\n").unwrap();
        let found = read_env_file(&path).unwrap();
        let pairs: Vec<(&str, &str)> = found.iter().map(|(k, v)| (&**k, &**v)).collect();
        assert_eq!(pairs, [("A", "1"), ("B", "two words"), ("C", "x=y"), ("D", "")]);
        std::fs::write(&path, "A=1\nnonsense\n").unwrap();
        assert!(read_env_file(&path).unwrap_err().to_string().contains("line 2"));
    }
}
