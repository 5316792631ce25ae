//! Hides secret values: the values of variables with a name that marks them as secret.
//!
//! Every program registers the secrets of its environment when it starts, and the secrets in `.env`, site files and
//! commands when it reads them. [`crate::text`] replaces them with `${NAME}` in all messages, tables, logs and records.
//! Files that need the actual value (such as a manifest that contains a path) keep it and are readable only by their
//! owner ([`crate::publish`]).

use std::borrow::Cow;
use std::sync::{PoisonError, RwLock};

use serde_json::Value;

use crate::text;

/// A variable is secret if its name contains one of these strings.
const NAMES: [&str; 8] =
    ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "JWT"];
/// Minimum length in characters of a value that is replaced everywhere: shorter values occur in ordinary text. The
/// configuration still hides shorter values in the keys that use them.
const SHORTEST: usize = 6;
/// Fields of longhaul's own records that contain fixed words, versions or times, which readers depend on.
const OWN_FIELDS: [&str; 11] = [
    "kind", "state", "task", "done", "change", "cause", "metric", "time", "program", "version",
    "commit",
];

static KNOWN: RwLock<Secrets> = RwLock::new(Secrets { needles: Vec::new() });

/// Secret values, each with its replacement.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    needles: Vec<(String, String)>,
}

impl Secrets {
    /// Adds the value of a variable in every form in which a message may contain it: verbatim, escaped for Rust, JSON
    /// and URLs, and line by line.
    pub fn add(&mut self, name: &str, value: &str) {
        let whole = value.trim();
        let lines = whole.lines().map(str::trim).filter(|line| line.chars().count() >= SHORTEST);
        for piece in std::iter::once(whole).chain(lines) {
            for form in forms(piece) {
                if !form.is_empty() && self.needles.iter().all(|(known, _)| *known != form) {
                    self.needles.push((form, format!("${{{name}}}")));
                }
            }
        }
    }

    /// Replaces every value in the text with `${NAME}`. Overlapping values are replaced together, with the name of the
    /// longest.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut hits: Vec<(usize, usize, &str)> = Vec::new();
        for (needle, shown) in &self.needles {
            // Occurrences of the same value may overlap too: `abab` in `ababab`.
            let mut from = 0;
            while let Some(at) = text[from..].find(needle.as_str()) {
                let start = from + at;
                hits.push((start, start + needle.len(), shown));
                from = start + needle.chars().next().map_or(1, char::len_utf8);
            }
        }
        if hits.is_empty() {
            return Cow::Borrowed(text);
        }
        hits.sort_by_key(|(start, end, _)| (*start, std::cmp::Reverse(*end)));
        let mut merged: Vec<(usize, usize, usize, &str)> = Vec::new();
        for (start, end, shown) in hits {
            let length = end - start;
            match merged.last_mut() {
                Some(last) if start < last.1 => {
                    last.1 = last.1.max(end);
                    if length > last.2 {
                        (last.2, last.3) = (length, shown);
                    }
                }
                _ => merged.push((start, end, length, shown)),
            }
        }
        let (mut redacted, mut after) = (String::with_capacity(text.len()), 0);
        for (start, end, _, shown) in merged {
            redacted.push_str(&text[after..start]);
            redacted.push_str(shown);
            after = end;
        }
        redacted.push_str(&text[after..]);
        Cow::Owned(redacted)
    }

    /// Redacts all strings in a record that may come from outside: keys that do not have longhaul's form, and all
    /// values except fixed words in [`OWN_FIELDS`]. A secret that happens to be `finished` must not make records
    /// unreadable.
    pub fn redact_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if let Cow::Owned(redacted) = self.redact(text) {
                    *text = redacted;
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.redact_value(item)),
            Value::Object(fields) => {
                let old = std::mem::take(fields);
                fields.extend(old.into_iter().map(|(key, mut value)| {
                    if !is_own_word(&key, &value) {
                        self.redact_value(&mut value);
                    }
                    match self.redact(&key) {
                        Cow::Owned(redacted) if !is_own_key(&key) => (redacted, value),
                        _ => (key, value),
                    }
                }));
            }
            _ => {}
        }
    }
}

/// Whether a key has the form of the keys in longhaul's records.
pub(crate) fn is_own_key(key: &str) -> bool {
    key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether the value of a field is one of longhaul's fixed words. A sentence is not, because it may quote anything.
pub(crate) fn is_own_word(field: &str, value: &Value) -> bool {
    let is_word =
        |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.:".contains(&b));
    OWN_FIELDS.contains(&field) && value.as_str().is_some_and(is_word)
}

/// Returns all forms in which a message may contain a value.
fn forms(value: &str) -> Vec<String> {
    let inside = |quoted: String| {
        quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_string()
    };
    let url = |upper: bool| -> String {
        let encode = |byte: u8| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ if upper => format!("%{byte:02X}"),
            _ => format!("%{byte:02x}"),
        };
        value.bytes().map(encode).collect()
    };
    let plain = [
        value.to_string(),
        inside(format!("{value:?}")),
        value.escape_debug().to_string(),
        value.escape_default().to_string(),
        inside(Value::from(value).to_string()),
        text::escape(value).into_owned(),
        url(true),
        url(false),
    ];
    plain.into_iter().chain((0..3).flat_map(|before| base64(value, before))).collect()
}

/// Returns the Base64 characters, in both alphabets, that depend only on `value` when a multiple of 3 bytes and
/// `before` more bytes precede it: HTTP authorisation encodes `USER:PASSWORD`.
fn base64(value: &str, before: usize) -> [String; 2] {
    let bytes: Vec<u8> = std::iter::repeat_n(0, before).chain(value.bytes()).collect();
    let whole = (8 * before).div_ceil(6)..8 * bytes.len() / 6;
    let digit = |at: usize| {
        let pair = |byte: usize| {
            u16::from(bytes[byte]) << 8 | bytes.get(byte + 1).map_or(0, |b| u16::from(*b))
        };
        usize::from(pair(6 * at / 8) >> (10 - 6 * at % 8) & 63)
    };
    let digits: Vec<usize> = whole.map(digit).collect();
    [b"+/", b"-_"].map(|last| {
        let alphabet: Vec<u8> =
            (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(*last).collect();
        digits.iter().map(|digit| char::from(alphabet[*digit])).collect()
    })
}

/// Whether a variable with this name is secret.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    NAMES.iter().any(|part| name.contains(part))
}

/// Registers the value to be hidden from now on if `name` marks it as secret.
pub fn register(name: &str, value: &str) {
    let value = value.trim();
    if is_secret(name) && value.chars().count() >= SHORTEST {
        KNOWN.write().unwrap_or_else(PoisonError::into_inner).add(name, value);
    }
}

/// Registers the secrets in the environment.
pub fn register_environment() {
    for (name, value) in std::env::vars_os() {
        register(&name.to_string_lossy(), &value.to_string_lossy());
    }
}

/// Registers the secrets on a command line that are given as `NAME=VALUE`, including in a list
/// (`--export=ALL,NAME=VALUE`), as `--name=VALUE` or as `--name VALUE`.
pub fn register_words<S: AsRef<str>>(words: &[S]) {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
    };
    let mut option: Option<&str> = None;
    for word in words.iter().map(AsRef::as_ref) {
        match option.take() {
            Some(name) if !word.starts_with('-') => register(name, word),
            _ => {}
        }
        let name = word.trim_start_matches('-');
        option = (word.starts_with('-') && is_name(name)).then_some(name);
        for part in word.split(|c: char| c == ',' || c.is_whitespace()) {
            // In `--export=NAME=VALUE` the first name is an option, so continue with the rest.
            let mut rest = part;
            while let Some((name, value)) = rest.split_once('=') {
                let name = name.trim_start_matches('-');
                if is_name(name) {
                    register(name, value.trim_matches(['"', '\'']));
                }
                rest = if is_secret(name) { "" } else { value };
            }
        }
    }
}

/// Replaces all registered secrets in a text.
pub fn redact(text: &str) -> Cow<'_, str> {
    KNOWN.read().unwrap_or_else(PoisonError::into_inner).redact(text)
}

/// Replaces all registered secrets in the strings of a value; `None` if no secret is registered.
pub(crate) fn redact_value(value: impl FnOnce() -> Option<Value>) -> Option<Value> {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    if known.needles.is_empty() {
        return None;
    }
    let mut value = value()?;
    known.redact_value(&mut value);
    Some(value)
}

/// Whether the content of a file contains a registered secret.
pub fn occur_in(content: &[u8]) -> bool {
    let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
    !known.needles.is_empty()
        && matches!(known.redact(&String::from_utf8_lossy(content)), Cow::Owned(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        let mut secrets = Secrets::default();
        pairs.iter().for_each(|(name, value)| secrets.add(name, value));
        secrets
    }

    #[test]
    fn every_form_of_a_value_is_replaced() {
        let value = "p\"a's\\s/\u{e9}\u{1b}@x";
        let known = secrets(&[("A_KEY", value)]);
        for shown in [
            value.to_string(),
            format!("{value:?}"),
            value.escape_default().to_string(),
            Value::from(value).to_string(),
            text::escape(value).into_owned(),
            "p%22a%27s%5Cs%2F%C3%A9%1B%40x".to_string(),
            "p%22a%27s%5cs%2f%c3%a9%1b%40x".to_string(),
        ] {
            let text = format!("cannot open <{shown}>");
            let redacted = known.redact(&text);
            assert!(
                redacted.contains("<${A_KEY}>") || redacted.contains("<\"${A_KEY}\">"),
                "{redacted}"
            );
        }
    }

    #[test]
    fn a_value_is_found_in_base64() {
        let known = secrets(&[("A_PASSWORD", "hunter22?>")]);
        // Base64 of "hunter22?>", "me:hunter22?>", "you:hunter22?>!" and "a:hunter22?>"; the last one uses the URL
        // alphabet.
        for (shown, redacted) in [
            ("aHVudGVyMjI/Pg==", "${A_PASSWORD}g=="),
            ("bWU6aHVudGVyMjI/Pg==", "bWU6${A_PASSWORD}g=="),
            ("eW91Omh1bnRlcjIyPz4h", "eW91Om${A_PASSWORD}4h"),
            ("YTpodW50ZXIyMj8-", "YTp${A_PASSWORD}"),
        ] {
            assert_eq!(known.redact(shown), redacted);
        }
    }

    #[test]
    fn overlapping_values_leave_nothing_behind() {
        let known =
            secrets(&[("SHORT_KEY", "abcdef"), ("LONG_KEY", "xabcdefg"), ("C_KEY", "defghij")]);
        assert_eq!(known.redact("<xabcdefg>"), "<${LONG_KEY}>");
        assert_eq!(known.redact("<abcdefghij>"), "<${C_KEY}>");
        assert_eq!(known.redact("<abcdef abcdef>"), "<${SHORT_KEY} ${SHORT_KEY}>");
        assert_eq!(known.redact("abcde"), "abcde");
        assert_eq!(secrets(&[("A_KEY", "ababab")]).redact("abababab"), "${A_KEY}");
    }

    #[test]
    fn a_value_of_several_lines_is_found_line_by_line() {
        let known = secrets(&[("PEM_KEY", "-----BEGIN-----\nMIIBOgIBAAJB\nend\n")]);
        assert_eq!(known.redact("at MIIBOgIBAAJB: no"), "at ${PEM_KEY}: no");
        assert_eq!(known.redact("in -----BEGIN-----\nMIIBOgIBAAJB\nend"), "in ${PEM_KEY}");
    }

    #[test]
    fn values_in_records() {
        let mut value = serde_json::json!({"hunter22": ["a hunter22", 22], "n": null});
        secrets(&[("PASSWORD", "hunter22")]).redact_value(&mut value);
        assert_eq!(value, serde_json::json!({"hunter22": ["a ${PASSWORD}", 22], "n": null}));
        let mut value =
            serde_json::json!({"my-pass": 1, "state": "my-pass /x", "kind": ["my-pass"]});
        secrets(&[("PASSWORD", "my-pass")]).redact_value(&mut value);
        let shown = "${PASSWORD}";
        assert_eq!(
            value,
            serde_json::json!({shown: 1, "state": "${PASSWORD} /x", "kind": [shown]})
        );
    }

    #[test]
    fn words_and_keys_of_our_own_stay() {
        let record = serde_json::json!({"kind": "refused", "best": {"metric": "skipped_samples"}, "skipped_samples": 3});
        let mut value = record.clone();
        let known = [("A_KEY", "refused"), ("B_KEY", "skipped_samples"), ("C_KEY", "metric")];
        secrets(&known).redact_value(&mut value);
        assert_eq!(value, record);
        let mut value = serde_json::json!({"reason": "connection refused"});
        secrets(&known).redact_value(&mut value);
        assert_eq!(value, serde_json::json!({"reason": "connection ${A_KEY}"}));
    }

    // A single test: the registry is global to the process.
    #[test]
    fn what_is_registered() {
        register("PATH_OF_X", "registered-0");
        register("X_TOKEN", "abcde");
        register("x_passwd", "registered-1 ");
        register_words(&[
            "sbatch",
            "--export=ALL,WANDB_API_KEY=registered-2,A=1",
            "--token=registered-3",
            "--api-key",
            "registered-4",
            "GITHUB_TOKEN=registered-5=x",
            "model.token_mixing=not-registered",
            "--key",
            "--not-registered",
        ]);
        for at in 1..=4 {
            let text = format!("<registered-{at}>");
            assert!(!redact(&text).contains("registered"), "{}", redact(&text));
        }
        assert_eq!(redact("registered-5=x"), "${GITHUB_TOKEN}");
        for shown in ["registered-0", "abcde", "not-registered"] {
            assert_eq!(redact(shown), shown);
        }
        assert!(occur_in(b"\xff registered-1") && !occur_in(b"registered-0"));
    }
}
