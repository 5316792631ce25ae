//! The worst items of an evaluation, as `worst.jsonl` and `worst.html` have them.

use std::path::Path;

use serde_json::{Map, Value};
use unix::{Error, Result, secrets, small};

use super::run::redacted;
use crate::evaluation::MAX_PICTURE;

/// Maximum size of worst.jsonl and of worst.html in bytes.
const MAX_BYTES: u64 = 256 << 20;

/// The items with the largest losses, the largest first, with secrets redacted.
#[derive(Clone, Debug, Default)]
pub struct WorstItems {
    /// Column names of their table: the fields of all items.
    pub columns: Vec<String>,
    /// Rows of the table: numbers, texts or null; objects and lists are JSON texts.
    pub rows: Vec<Vec<Value>>,
    /// Pictures as PNG, by the file name in the column `picture`.
    pub pictures: Vec<(String, Vec<u8>)>,
    /// The files `worst.jsonl`, whose pictures are beside it, and `worst.html`.
    pub files: Vec<(String, Vec<u8>)>,
}

impl WorstItems {
    /// Reads those of a folder of `evaluate score`; empty if it shows none. Errors: 65 for damaged files, 66, 74.
    pub fn read(folder: &Path) -> Result<Self> {
        let (lines, page) = (folder.join("worst.jsonl"), folder.join("worst.html"));
        if !lines.exists() {
            return Ok(Self::default());
        }
        let text = small::read(&lines, MAX_BYTES)?;
        let bad = |cause: serde_json::Error| Error::data(format!("{}: {cause}", lines.display()));
        let mut items: Vec<Map<String, Value>> = Vec::new();
        for item in serde_json::Deserializer::from_slice(&text).into_iter::<Map<String, Value>>() {
            let item = redacted(Value::Object(item.map_err(bad)?))?;
            items.extend(item.as_object().cloned());
        }
        if items.is_empty() {
            return Ok(Self::default());
        }
        let mut pictures = Vec::new();
        for (number, item) in items.iter_mut().enumerate() {
            // The name follows from the place, so that a line cannot name a file outside the folder.
            let name = format!("worst-{}.png", number + 1);
            if let Some(picture) = item.get_mut("picture") {
                let path = folder.join("pictures").join(&name);
                pictures.push((name.clone(), small::read(&path, MAX_PICTURE)?));
                *picture = name.into();
            }
        }
        let lines: String =
            items.iter().map(|item| Value::Object(item.clone()).to_string() + "\n").collect();
        let mut files = vec![("worst.jsonl".to_string(), lines.into_bytes())];
        if page.exists() {
            let text = small::read(&page, MAX_BYTES)?;
            let text = secrets::redact(&String::from_utf8_lossy(&text)).into_owned();
            files.push(("worst.html".into(), text.into_bytes()));
        }
        let mut columns: Vec<String> = Vec::new();
        for key in items.iter().flat_map(Map::keys) {
            if !columns.contains(key) {
                columns.push(key.clone());
            }
        }
        let cell = |item: &Map<String, Value>, key: &String| match item.get(key) {
            None => Value::Null,
            Some(value @ (Value::Object(_) | Value::Array(_))) => value.to_string().into(),
            Some(value) => value.clone(),
        };
        let row = |item| columns.iter().map(|key| cell(item, key)).collect();
        Ok(Self { rows: items.iter().map(row).collect(), columns, pictures, files })
    }
}
