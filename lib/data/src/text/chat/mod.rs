//! Conversations, and the chat templates that turn them into the text that a model reads.
//!
//! A template is a program in Jinja, as `apply_chat_template` of transformers runs it. Two things differ, so that a data set
//! does not depend on the day it is made: `strftime_now` is not defined, and templates use the date that they have for
//! this case.

mod encode;
mod images;
mod parts;
mod python;
mod vocabulary;

pub(super) use encode::NO_PROCESSOR;
pub use encode::{ChatInfo, ChatTokenizer, LossOn, Turn, WithImages};
pub use images::{ImageInfo, ImageLimits, ImageTokens};
pub(super) use parts::answer;
pub use parts::{INSTRUCTION, about_images, count_images, references, without_images};
pub(super) use vocabulary::vocabulary;

use super::tokenizer::file_of;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error as JinjaError, ErrorKind, context};
use minijinja_contrib::pycompat::unknown_method_callback;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::text::quote;
use unix::{Error, Exit, Result, small};

/// The roles of the messages of a conversation.
pub const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Maximum size of a file with a template.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of instructions of a rendering.
const FUEL: u64 = 10_000_000;
/// Stands for the content of a message; no text has this character, which Unicode leaves to private agreement.
const MARK: &str = "\u{f8ff}\u{f8fe}\u{f8ff}";
/// The name of the template in error messages of the library.
const NAME: &str = "template";

/// The messages of a conversation, each an object with `role`, `content` (a text, or a list of texts and images) and whatever
/// else a template reads.
pub type Messages = Vec<Value>;

/// Reads the messages of a conversation: a JSON list of objects. Errors: what is wrong.
pub fn messages_of(json: &str) -> std::result::Result<Messages, String> {
    let messages: Messages =
        serde_json::from_str(json).map_err(|cause| format!("not a list of messages: {cause}"))?;
    check(&messages)?;
    Ok(messages)
}

/// Checks the roles and contents of messages, of which one must be an assistant's. Errors: the message that is wrong, and
/// why.
pub fn check(messages: &[Value]) -> std::result::Result<(), String> {
    check_messages(messages)?;
    match messages.iter().any(is_assistant) {
        true => Ok(()),
        false => Err("no message is an assistant's, so there is nothing to learn".into()),
    }
}

/// Checks the roles and contents of messages that an assistant is to answer. Errors: the message that is wrong, and why.
pub fn check_prompt(messages: &[Value]) -> std::result::Result<(), String> {
    check_messages(messages)?;
    match messages.last() {
        None => Err("there are no messages".into()),
        Some(last) if is_assistant(last) => {
            Err("the last message is the assistant's, so there is nothing to answer".into())
        }
        Some(_) => Ok(()),
    }
}

fn check_messages(messages: &[Value]) -> std::result::Result<(), String> {
    for (number, message) in messages.iter().enumerate() {
        let bad = |what: String| format!("message {number}: {what}");
        let Some(message) = message.as_object() else {
            return Err(bad("not an object with role and content".into()));
        };
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
        if !ROLES.contains(&role) {
            let known = ROLES.join(", ");
            return Err(bad(format!("the role \"{}\" is not one of {known}", quote(role))));
        }
        match message.get("content") {
            Some(Value::String(text)) if text.contains(MARK) => {
                return Err(bad("its content has characters for private use".into()));
            }
            Some(Value::String(_)) => {}
            Some(Value::Array(parts)) => parts::check(parts).map_err(bad)?,
            // An assistant that only calls tools says nothing.
            None | Some(Value::Null) if message.contains_key("tool_calls") => {}
            _ => return Err(bad("its content is neither a text nor a list of parts".into())),
        }
    }
    Ok(())
}

fn is_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// The conversation of a question and its answer.
pub fn pair(prompt: &str, completion: &str) -> Messages {
    vec![json!({"role": "user", "content": prompt}), parts::answer(completion)]
}

/// A conversation as a model reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text, with special tokens.
    pub text: String,
    /// What the assistant's turns consist of, in characters of the text: what follows the prompt, up to and with the end of
    /// the turn.
    pub turns: Vec<Range<usize>>,
    /// Number of turns that the template renders in another way once the conversation goes on, such as without what the
    /// assistant thought.
    pub changed: usize,
}

/// A chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// The file that it is from.
    path: PathBuf,
    source: String,
    /// The special tokens by key, such as `bos_token`.
    tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// Reads the template of the model in `folder`: chat_template.jinja, else chat_template.json, else the key
    /// `chat_template` of tokenizer_config.json. `tokens` are its special tokens by key.
    ///
    /// Errors: 66 when there is none; 65 when it is damaged, with the line.
    pub fn open(folder: &Path, tokens: BTreeMap<String, String>) -> Result<Self> {
        let [jinja, json, config] =
            ["chat_template.jinja", "chat_template.json", "tokenizer_config.json"]
                .map(|name| folder.join(name));
        let (path, source) = if jinja.exists() {
            let source = String::from_utf8(small::read(&jinja, MAX_FILE)?);
            let bad = |_| Error::data(format!("{}: not valid UTF-8", jinja.display()));
            (jinja.clone(), source.map_err(bad)?)
        } else {
            let in_json = of_key(&json, &file_of(&json)?)?.map(|source| (json, source));
            let found = match in_json {
                Some(found) => Some(found),
                None => of_key(&config, &file_of(&config)?)?.map(|source| (config, source)),
            };
            found.ok_or_else(|| {
                let cause = "it has no chat template: no chat_template.jinja, and no chat_template in tokenizer_config.json";
                Error::open(folder, cause)
            })?
        };
        Self::new(&path, source, tokens)
    }

    fn new(path: &Path, source: String, tokens: BTreeMap<String, String>) -> Result<Self> {
        let mut environment = Environment::new();
        // As transformers sets up Jinja.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(Error::bug)?);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", python::tojson);
        environment.add_function("raise_exception", |what: String| -> Result<String, JinjaError> {
            Err(JinjaError::new(ErrorKind::InvalidOperation, what))
        });
        environment
            .add_template_owned(NAME, source.clone())
            .map_err(|cause| unusable(path, &cause))?;
        Ok(Self { environment, path: path.into(), source, tokens })
    }

    /// The template itself.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders messages; with `prompt` also the beginning of the next turn, which is the assistant's. Errors: 65 with the
    /// line of the template.
    pub fn render(&self, messages: &[Value], prompt: bool) -> Result<String> {
        let found = self.environment.get_template(NAME).and_then(|template| {
            let messages = Serde(messages);
            let tokens = minijinja::Value::from(Serde(&self.tokens));
            template.render(context! { messages, add_generation_prompt => prompt, ..tokens })
        });
        found.map_err(|cause| unusable(&self.path, &cause))
    }

    /// Renders a conversation and finds the assistant's turns in it. Each turn is what its rendering adds to that of the
    /// prompt before it; where the rendering of the whole conversation has neither, the content of the message is located
    /// in it. Errors: those of [`Self::render`].
    pub fn rendered(&self, messages: &[Value]) -> Result<Rendered> {
        let text = self.render(messages, false)?;
        let (mut turns, mut changed) = (Vec::new(), 0);
        for at in (0..messages.len()).filter(|at| is_assistant(&messages[*at])) {
            // Some templates refuse conversations without a user.
            let prompt = self.render(&messages[..at], true).ok();
            let turn = match at + 1 == messages.len() {
                true => Some(text.clone()),
                false => self.render(&messages[..=at], false).ok(),
            };
            let found = prompt.zip(turn).filter(|(prompt, turn)| {
                turn.starts_with(prompt.as_str()) && text.starts_with(turn.as_str())
            });
            turns.push(match found {
                Some((prompt, turn)) => prompt.len()..turn.len(),
                None => {
                    changed += 1;
                    self.located(messages, at, &text)?
                }
            });
        }
        // From bytes to characters.
        let turns = turns.into_iter().map(|turn| {
            let start = text[..turn.start].chars().count();
            start..start + text[turn].chars().count()
        });
        Ok(Rendered { turns: turns.collect(), changed, text })
    }

    /// Finds the content of message `at` in the rendering `text` of all messages, with what ends its turn.
    fn located(&self, messages: &[Value], at: usize, text: &str) -> Result<Range<usize>> {
        let mut marked = messages.to_vec();
        if let Some(message) = marked[at].as_object_mut() {
            message.insert("content".into(), MARK.into());
        }
        let whole = self.render(&marked, false)?;
        let Some(start) = whole.find(MARK) else { return Ok(0..0) };
        let rest = &whole[start + MARK.len()..];
        if !text.starts_with(&whole[..start]) || !text.ends_with(rest) {
            return Ok(0..0);
        }
        // What follows the content if nothing follows the turn.
        let turn = self.render(&marked[..=at], false).unwrap_or_default();
        let ending = turn.rfind(MARK).map_or("", |from| &turn[from + MARK.len()..]);
        let ending = if rest.starts_with(ending) { ending.len() } else { 0 };
        // The content may end before it starts: where there is none, a template may leave out what separates it.
        Ok(start..(text.len() - rest.len() + ending).max(start))
    }
}

fn unusable(path: &Path, cause: &JinjaError) -> Error {
    let what = cause.detail().map_or_else(|| cause.kind().to_string(), String::from);
    let line = cause.line().map_or(String::new(), |line| format!("line {line}: "));
    Error::new(Exit::Data, format!("{}: {line}{what}", path.display()))
}

/// The key `chat_template` of a JSON file: a text, or a list of named ones with one named `default`.
fn of_key(path: &Path, file: &Map<String, Value>) -> Result<Option<String>> {
    let text = |value: &Value| value.as_str().map(String::from);
    let found = match file.get("chat_template") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(named)) => {
            let default = named.iter().find(|own| own["name"] == "default");
            default.and_then(|own| text(&own["template"]))
        }
        Some(own) => text(own),
    };
    match found {
        Some(found) => Ok(Some(found)),
        None => {
            let what = "chat_template is neither a text nor a list with one named `default`";
            Err(Error::data(format!("{}: {what}", path.display())))
        }
    }
}
