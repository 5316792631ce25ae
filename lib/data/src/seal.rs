//! Seals of JSON files: the last member, `seal`, is the BLAKE3 of all bytes before it, so that an edit or a
//! damaged byte is found when the file is read.

use std::path::Path;
use unix::{Error, Result};

const BEFORE: &str = ",\n\"seal\": \"";
const AFTER: &str = "\"\n}\n";
/// Hexadecimal digits of a hash.
const DIGITS: usize = 64;

/// A JSON object with its seal as the last member.
pub fn sealed(json: &str) -> String {
    let json = json.trim_end();
    let body = json.strip_suffix('}').unwrap_or(json).trim_end();
    format!("{body}{BEFORE}{}{AFTER}", blake3::hash(body.as_bytes()).to_hex())
}

/// Checks the seal of a file that `made_by` wrote. Errors: 65.
pub fn require(path: &Path, bytes: &[u8], made_by: &str) -> Result<()> {
    let body = bytes.len().checked_sub(BEFORE.len() + DIGITS + AFTER.len());
    let whole = body.is_some_and(|length| {
        let (body, seal) = bytes.split_at(length);
        seal == format!("{BEFORE}{}{AFTER}", blake3::hash(body).to_hex()).as_bytes()
    });
    if whole {
        return Ok(());
    }
    Err(Error::data(format!(
        "{}: seal: the content is not what was sealed; the file was edited or damaged after `{made_by}` wrote \
         it; run `{made_by}` again",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

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
