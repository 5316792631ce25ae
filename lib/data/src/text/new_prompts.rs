//! New prompts for a decoder.

use super::chat::{INSTRUCTION, Messages, about_images, check_prompt, pair, references};
use super::folder_rows::{images, is_image, pages};
use super::lines::LineReader;
use super::record_images::{Reference, folder_of};
use super::rows::HashedFile;
use crate::images::RgbImage;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::path::{Path, PathBuf};
use unix::publish::hash_file;
use unix::{Error, Result};

/// Messages that an assistant is to answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NewPrompt {
    /// The line of the input, from 1.
    pub line: u64,
    /// Identifies the prompt in the output.
    pub id: Option<String>,
    /// The messages, without the answer.
    pub messages: Messages,
}

/// Reads prompts in order, one on each line; empty lines are left out. Or the images of a folder, each of which is a prompt.
pub struct NewPrompts {
    source: Source,
    folder: PathBuf,
}

enum Source {
    /// Lines, and whether the file is one of JSON lines, whose lines are all objects.
    Lines(Box<LineReader>, bool),
    /// Images in the folder, numbered from 0.
    Images(std::iter::Enumerate<std::vec::IntoIter<PathBuf>>),
}

impl NewPrompts {
    /// Opens a file, an image or a folder of images; `-` is stdin. Errors: 2 for a table or a JSON document, which have no prompt on each line; 66; 74.
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() || is_image(path) {
            let all = match (path.is_dir(), path.file_name()) {
                (false, Some(name)) => vec![PathBuf::from(name)],
                _ => images(path)?,
            };
            if all.is_empty() {
                let what = "no PNG, JPEG or TIFF images in it";
                return Err(Error::open(path, what));
            }
            let source = Source::Images(all.into_iter().enumerate());
            return Ok(Self { source, folder: Self::folder_of(path).into() });
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if let "csv" | "tsv" | "json" = ending {
            return Err(Error::usage(format!(
                "{}: prompts are read from lines, of text or of JSON objects (.jsonl), not from .{ending} files; convert it",
                path.display()
            )));
        }
        let file = match path.as_os_str() == "-" {
            true => HashedFile::new(io::stdin()),
            false => HashedFile::open(path)?,
        };
        let lines = Box::new(LineReader::new(path, file));
        let source = Source::Lines(lines, matches!(ending, "jsonl" | "ndjson"));
        Ok(Self { source, folder: Self::folder_of(path).into() })
    }

    /// The folder that the paths of images in prompts at `path` are relative to.
    pub fn folder_of(path: &Path) -> &Path {
        folder_of(path)
    }

    /// What identifies the prompts at `path`: the hash of a file, or of the names and sizes of the images in a folder. Errors:
    /// 66, 74.
    pub fn identity(path: &Path) -> Result<String> {
        if !path.is_dir() {
            return hash_file(path);
        }
        let mut hasher = blake3::Hasher::new();
        for image in images(path)? {
            let file = path.join(&image);
            let size = std::fs::metadata(&file).map_err(|cause| Error::open(&file, cause))?.len();
            hasher.update(format!("{} {size}\n", image.display()).as_bytes());
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Reads the next prompt: an object with `messages`, `prompt`, or `image` and possibly `prompt`, and possibly `id`, or else
    /// plain text, which is the user's message. The assistant's messages at the end of a conversation, which are to be predicted, are left out.
    /// Errors: 65 with the line; 74.
    pub fn read(&mut self) -> Result<Option<NewPrompt>> {
        let (lines, objects) = match &mut self.source {
            Source::Lines(lines, objects) => (lines, *objects),
            Source::Images(images) => {
                let Some((number, image)) = images.next() else { return Ok(None) };
                let pages = pages(&self.folder, &image);
                let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
                let messages = vec![about_images(&pages, INSTRUCTION)];
                let id = Some(image.to_string_lossy().into_owned());
                return Ok(Some(NewPrompt { line: number as u64 + 1, id, messages }));
            }
        };
        let found = loop {
            let Some(text) = lines.next()? else { return Ok(None) };
            match (text.trim().is_empty(), objects && !text.starts_with('{')) {
                (true, _) => {}
                (false, true) => break Err("not a JSON object".into()),
                (false, false) => break parse(text),
            }
        };
        let line = lines.line;
        let (id, messages) = found.map_err(|what| lines.wrong(line, what))?;
        Ok(Some(NewPrompt { line, id, messages }))
    }
}

/// The id and the messages of a line. Errors: what is wrong.
fn parse(text: &str) -> std::result::Result<(Option<String>, Messages), String> {
    let object = text.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(text));
    let Some(mut object) = object.transpose().map_err(|cause| format!("not an object: {cause}"))?
    else {
        return Ok((None, prompt(text)));
    };
    let image = object.remove("image");
    if image.is_some() && object.contains_key("messages") {
        return Err("it has `messages` and `image`; remove one".into());
    }
    let messages = match (object.remove("messages"), object.remove("prompt")) {
        (None, question) if image.is_some() => {
            let Some(Value::String(image)) = &image else {
                return Err("`image` is not a text".into());
            };
            let question = question.as_ref().and_then(Value::as_str).unwrap_or(INSTRUCTION);
            vec![about_images(&[image], question)]
        }
        (Some(Value::Array(mut messages)), None) => {
            let is_answer = |own: &Value| own.get("role") == Some(&"assistant".into());
            let end = messages.iter().rposition(|own| !is_answer(own)).map_or(0, |last| last + 1);
            messages.truncate(end);
            messages
        }
        (None, Some(Value::String(text))) => prompt(&text),
        (Some(_), None) => return Err("`messages` is not a list".into()),
        (None, Some(_)) => return Err("`prompt` is not a text".into()),
        (Some(_), Some(_)) => return Err("it has `messages` and `prompt`; remove one".into()),
        (None, None) => return Err("it has neither `messages` nor `prompt` nor `image`".into()),
    };
    check_prompt(&messages)?;
    let id = match object.remove("id") {
        None | Some(Value::Null) => None,
        Some(Value::String(id)) => Some(id),
        Some(other) => Some(other.to_string()),
    };
    Ok((id, messages))
}

/// The user's message.
fn prompt(text: &str) -> Messages {
    pair(text, "").into_iter().take(1).collect()
}

/// Decodes the images of messages, whose paths are relative to `folder`, with what they are called. Errors: 65 for a reference or an
/// image that cannot be read; 74.
pub fn open_images(messages: &Messages, folder: &Path) -> Result<Vec<(String, RgbImage)>> {
    let found = references(messages).map_err(Error::data)?;
    let of = |(number, text): (usize, &String)| {
        let own = Reference::parse(text, folder, number).map_err(Error::data)?;
        let image = own.decode(&own.bytes()?)?;
        Ok((own.name, image))
    };
    found.iter().enumerate().map(of).collect()
}
