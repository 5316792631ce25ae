//! Sealed JSON files: the members `format` and `version` come first, and the last member, `seal`, is the BLAKE3 hash of
//! all bytes before it, so that edits and corruption are detected when the file is read.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use unix::publish::publish_bytes;
use unix::{Error, Result, small};

/// A kind of sealed file.
#[derive(Clone, Copy, Debug)]
pub struct SealedFile {
    /// The value of the member `format`, e.g. `longhaul-split`.
    pub format: &'static str,
    /// The value of the member `version`; no other version can be read.
    pub version: u32,
    /// The command that writes such files.
    pub made_by: &'static str,
    /// Maximum size of a file in bytes.
    pub max_bytes: u64,
}

impl SealedFile {
    /// Reads a file; the second value is the BLAKE3 hash of its bytes, which identifies it.
    ///
    /// Errors: 66 when it cannot be read; 65 when it has another format or version, or was edited or damaged.
    pub fn read<T: DeserializeOwned>(&self, path: &Path) -> Result<(T, String)> {
        #[derive(Deserialize)]
        struct Named {
            format: String,
            version: u32,
        }
        let Self { format, version, made_by, max_bytes } = self;
        let bytes = small::read(path, *max_bytes)?;
        let data_error = |what: String| Error::data(format!("{}: {what}", path.display()));
        let unread = |cause| data_error(format!("not a file of format {format}: {cause}"));
        let found: Named = serde_json::from_slice(&bytes).map_err(unread)?;
        if (found.format.as_str(), found.version) != (format, *version) {
            return Err(data_error(format!(
                "format `{}` version {}, not `{format}` version {version}",
                unix::text::quote(&found.format),
                found.version
            )));
        }
        let content = serde_json::from_slice(&bytes).map_err(unread)?;
        require(path, &bytes, made_by)?;
        Ok((content, blake3::hash(&bytes).to_hex().to_string()))
    }

    /// Whether the file at `path` declares this format.
    pub fn is_format_of(&self, path: &Path) -> bool {
        // `format` is the first member of the object.
        let begin = format!("{{\"format\":\"{}\"", self.format);
        let read = || {
            let mut found = vec![0; begin.len()];
            File::open(path)?.read_exact(&mut found)?;
            std::io::Result::Ok(found == begin.as_bytes())
        };
        path.is_file() && read().unwrap_or(false)
    }

    /// Returns the text of a sealed file with this content.
    pub fn text<T: Serialize>(&self, content: &T) -> Result<String> {
        #[derive(Serialize)]
        struct Document<'a, T> {
            format: &'a str,
            version: u32,
            #[serde(flatten)]
            content: &'a T,
        }
        let document = Document { format: self.format, version: self.version, content };
        Ok(sealed(&serde_json::to_string(&document).map_err(Error::bug)?))
    }

    /// Writes a file atomically.
    pub fn write<T: Serialize>(&self, path: &Path, content: &T) -> Result<()> {
        publish_bytes(path, self.text(content)?.as_bytes())
    }
}

const BEFORE: &str = ",\n\"seal\": \"";
const AFTER: &str = "\"\n}\n";
/// Number of hexadecimal digits in a hash.
const DIGITS: usize = 64;

/// Appends the seal to a JSON object as its last member.
pub fn sealed(json: &str) -> String {
    let json = json.trim_end();
    let body = json.strip_suffix('}').unwrap_or(json).trim_end();
    format!("{body}{BEFORE}{}{AFTER}", blake3::hash(body.as_bytes()).to_hex())
}

/// Checks the seal of a file that `made_by` wrote. Errors: 65.
fn require(path: &Path, bytes: &[u8], made_by: &str) -> Result<()> {
    let body = bytes.len().checked_sub(BEFORE.len() + DIGITS + AFTER.len());
    let whole = body.is_some_and(|length| {
        let (body, seal) = bytes.split_at(length);
        seal == format!("{BEFORE}{}{AFTER}", blake3::hash(body).to_hex()).as_bytes()
    });
    if whole {
        return Ok(());
    }
    Err(Error::data(format!(
        "{}: seal: the content does not match its hash; the file was edited or damaged after `{made_by}` wrote \
         it; run `{made_by}` again",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_formats_and_versions_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let kind = SealedFile { format: "a", version: 2, made_by: "x", max_bytes: 1000 };
        let content = std::collections::BTreeMap::from([("numbers".to_string(), vec![0.1, 2.0])]);
        kind.write(&path, &content).unwrap();
        #[derive(Deserialize)]
        struct Content {
            numbers: Vec<f64>,
        }
        let (found, hash) = kind.read::<Content>(&path).unwrap();
        assert_eq!(found.numbers, [0.1, 2.0]);
        assert_eq!(hash, unix::publish::hash_file(&path).unwrap());
        for other in [SealedFile { version: 3, ..kind }, SealedFile { format: "b", ..kind }] {
            let error = other.read::<Content>(&path).map(drop).unwrap_err();
            assert!(error.to_string().contains("format `a` version 2"), "{error}");
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_breaks_the_seal() {
        let path = Path::new("a.json");
        for json in ["{\"a\":[1]}", "{\n  \"a\": 1.5\n}\n"] {
            let text = sealed(json);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["seal"].as_str().unwrap().len(), DIGITS);
            require(path, text.as_bytes(), "x").unwrap();
            for at in 0..text.len() {
                assert!(require(path, &text.as_bytes()[..at], "x").is_err(), "cut at {at}");
                for bit in 0..8 {
                    let mut changed = text.clone().into_bytes();
                    changed[at] ^= 1 << bit;
                    assert!(require(path, &changed, "x").is_err(), "bit {bit} of byte {at}");
                }
            }
        }
    }
}
