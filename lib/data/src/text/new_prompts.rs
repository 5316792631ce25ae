//! New prompts for a decoder.

use super::chat::{Messages, check_prompt, pair};
use super::lines::LineReader;
use super::rows::HashedFile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io;
use std::path::Path;
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

/// Reads prompts in order, one on each line. Empty lines are left out.
pub struct NewPrompts {
    lines: LineReader,
    /// Whether the file is one of JSON lines, whose lines are all objects.
    objects: bool,
}

impl NewPrompts {
    /// Opens a file; `-` is stdin. Errors: 2 for a table or a JSON document, which have no prompt on each line; 66; 74.
    pub fn open(path: &Path) -> Result<Self> {
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
        Ok(Self {
            lines: LineReader::new(path, file),
            objects: matches!(ending, "jsonl" | "ndjson"),
        })
    }

    /// Reads the next prompt: an object with `messages` or `prompt` and possibly `id`, or else plain text, which is the
    /// user's message. The assistant's messages at the end of a conversation, which are to be predicted, are left out.
    /// Errors: 65 with the line; 74.
    pub fn read(&mut self) -> Result<Option<NewPrompt>> {
        let found = loop {
            let Some(text) = self.lines.next()? else { return Ok(None) };
            match (text.trim().is_empty(), self.objects && !text.starts_with('{')) {
                (true, _) => {}
                (false, true) => break Err("not a JSON object".into()),
                (false, false) => break parse(text),
            }
        };
        let line = self.lines.line;
        let (id, messages) = found.map_err(|what| self.lines.wrong(line, what))?;
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
    let messages = match (object.remove("messages"), object.remove("prompt")) {
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
        (None, None) => return Err("it has neither `messages` nor `prompt`".into()),
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
