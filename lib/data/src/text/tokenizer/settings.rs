//! Settings of a tokenizer besides its vocabulary, from tokenizer_config.json, special_tokens_map.json and
//! added_tokens.json, and the class of transformers that reads them.

use super::class::Class;
use super::folder::file_of;
use super::keys::{CONFIG, SPECIAL};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::AddedToken;
use unix::foreign_keys::check;
use unix::text::quote;
use unix::{Error, Result};

/// The special tokens in the order in which transformers adds them to a vocabulary.
const NAMED: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Keys of lists of further special tokens.
const EXTRA: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

/// The settings of a tokenizer.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// Path of tokenizer_config.json.
    path: PathBuf,
    config: Map<String, Value>,
    /// The class that reads the folder, if a file names one.
    pub class: Option<Class>,
    /// The special tokens named by files or by the class.
    named: BTreeMap<&'static str, AddedToken>,
    extra: Vec<AddedToken>,
    /// Added tokens with their ids.
    added: BTreeMap<u32, AddedToken>,
    /// Whether the files list the added tokens.
    pub lists_added: bool,
    /// Whether models take the segments of tokens; None if no file says.
    pub segments: Option<bool>,
}

impl Settings {
    /// Reads the settings in `folder`. Errors: 65 for files that are damaged or contradict each other, and for
    /// unsupported settings.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("tokenizer_config.json");
        let config = file_of(&path)?;
        check(&path, &config, CONFIG)?;
        let of_special = folder.join("special_tokens_map.json");
        let special = file_of(&of_special)?;
        check(&of_special, &special, SPECIAL)?;
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let model = file_of(&folder.join("config.json"))?;
        let text = |map: &Map<String, Value>, key: &str| {
            map.get(key).and_then(Value::as_str).map(String::from)
        };
        let name = text(&config, "tokenizer_class").or_else(|| text(&model, "tokenizer_class"));
        let by_name = name.as_ref().map(|name| {
            Class::of_name(name).ok_or_else(|| {
                bad(format!(
                    "tokenizer_class {name} is not supported; known are those of BERT, DistilBERT, RoBERTa, XLM-R and Qwen2, \
                     and PreTrainedTokenizerFast for what tokenizer.json says"
                ))
            })
        });
        let by_model = text(&model, "model_type").and_then(|kind| Class::of_model(&kind));
        let class = by_name.transpose()?.or(by_model.map(|(class, _)| class));
        let has_segments = match &name {
            Some(name) => name.starts_with("BertTokenizer") || name.starts_with("Electra"),
            None => by_model.is_some_and(|(_, segments)| segments),
        };
        let segments = match config.get("model_input_names").filter(|names| !names.is_null()) {
            None => class.map(|_| has_segments),
            Some(names) => {
                let names: Vec<String> = serde_json::from_value(names.clone())
                    .map_err(|_| bad("model_input_names is not a list of names".into()))?;
                if !names.iter().any(|name| name == "attention_mask") {
                    let what =
                        "model_input_names without attention_mask: padding would be read as text";
                    return Err(bad(what.into()));
                }
                Some(names.iter().any(|name| name == "token_type_ids"))
            }
        };
        let mut own = Self {
            path,
            config,
            class,
            named: BTreeMap::new(),
            extra: Vec::new(),
            added: BTreeMap::new(),
            lists_added: false,
            segments,
        };
        own.read_added(&folder.join("added_tokens.json"), &special)?;
        own.read_special(&of_special, &special)?;
        Ok(own)
    }

    fn bad(&self, what: String) -> Error {
        Error::data(format!("{}: {what}", self.path.display()))
    }

    /// Reads a boolean setting. Errors: 65 for any other type.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        Ok(self.optional_flag(key)?.unwrap_or(default))
    }

    /// Reads a boolean setting that may be missing.
    pub fn optional_flag(&self, key: &str) -> Result<Option<bool>> {
        match self.config.get(key).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.bad(format!("{key} {other} is neither true nor false"))),
        }
    }

    /// Whether truncation removes the first tokens of long texts instead of the last ones; None if the file does not
    /// say.
    pub fn truncates_left(&self) -> Result<Option<bool>> {
        match self.config.get("truncation_side").filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(Value::String(side)) if side == "left" => Ok(Some(true)),
            Some(Value::String(side)) if side == "right" => Ok(Some(false)),
            Some(other) => Err(self.bad(format!("truncation_side {other} is not a side"))),
        }
    }

    fn read_added(&mut self, path: &Path, special: &Map<String, Value>) -> Result<()> {
        if let Some(decoder) = self.config.get("added_tokens_decoder").filter(|v| !v.is_null()) {
            let tokens = decoder.as_object();
            let tokens =
                tokens.ok_or_else(|| self.bad("added_tokens_decoder is not a mapping".into()))?;
            for (id, token) in tokens.clone() {
                let own = id.parse().ok().zip(token_of(&token, false));
                let own = own.filter(|_| token.is_object());
                let (id, token) = own
                    .ok_or_else(|| self.bad(format!("added_tokens_decoder: {id}: not a token")))?;
                self.added.insert(id, token);
            }
            self.lists_added = true;
        }
        let file = file_of(path)?;
        for (content, id) in file {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok()).ok_or_else(|| {
                let path = path.display();
                Error::data(format!("{path}: {content}: {id} is not the id of a token"))
            })?;
            if let Some((known, _)) = self.added.iter().find(|(_, token)| token.content == content)
            {
                if *known != id {
                    return Err(Error::data(format!(
                        "{}: {content} has id {id}, but {known} in tokenizer_config.json",
                        path.display()
                    )));
                }
                continue;
            }
            if self.lists_added && self.config.contains_key("added_tokens_decoder") {
                return Err(Error::data(format!(
                    "{}: {content} is missing in added_tokens_decoder of tokenizer_config.json",
                    path.display()
                )));
            }
            let is = |value: &Value| token_of(value, true).is_some_and(|t| t.content == content);
            let is_named = |map: &Map<String, Value>| {
                NAMED.iter().any(|key| map.get(*key).is_some_and(is))
                    || EXTRA.iter().any(|key| {
                        let list = map.get(*key).and_then(Value::as_array);
                        list.is_some_and(|list| list.iter().any(is))
                    })
            };
            let is_special = is_named(&self.config) || is_named(special);
            let token = AddedToken::from(content, is_special).normalized(!is_special);
            self.added.insert(id, token);
            self.lists_added = true;
        }
        Ok(())
    }

    fn read_special(&mut self, path: &Path, special: &Map<String, Value>) -> Result<()> {
        let given = |map: &Map<String, Value>, key: &str| {
            map.get(key).filter(|value| !value.is_null()).cloned()
        };
        let class = self.class;
        for key in NAMED {
            let [of_config, of_map] = [&self.config, special].map(|map| given(map, key));
            let parse = |value: &Value| {
                token_of(value, true).ok_or_else(|| self.bad(format!("{key} {value}: not a token")))
            };
            let of_config = of_config.as_ref().map(parse).transpose()?;
            let of_map = of_map.as_ref().map(parse).transpose()?;
            let usual = class.and_then(|class| class.usual(key));
            let usual = usual.map(|name| AddedToken::from(name, true));
            // Versions of transformers differ in which of the two files takes precedence.
            let other = of_config.as_ref().or(usual.as_ref());
            if let (Some(map), Some(other)) = (&of_map, other)
                && map.content != other.content
                && (of_config.is_some() || self.config.contains_key("added_tokens_decoder"))
            {
                return Err(Error::data(format!(
                    "{}: {key} is {}, but {} in tokenizer_config.json; make them agree",
                    path.display(),
                    quote(&map.content),
                    quote(&other.content)
                )));
            }
            if let Some(token) = of_map.or(of_config).or(usual) {
                self.named.insert(key, self.with_flags(token));
            }
        }
        for (map, key) in [
            (&self.config, EXTRA[0]),
            (&self.config, EXTRA[1]),
            (special, EXTRA[0]),
            (special, EXTRA[1]),
        ] {
            let Some(list) = given(map, key) else { continue };
            let list = list.as_array().cloned();
            let list = list.ok_or_else(|| self.bad(format!("{key} is not a list of tokens")))?;
            for value in list {
                let token = token_of(&value, true)
                    .ok_or_else(|| self.bad(format!("{key}: {value}: not a token")))?;
                if !self.extra.iter().any(|known| known.content == token.content) {
                    self.extra.push(self.with_flags(token));
                }
            }
        }
        Ok(())
    }

    /// Returns `token` as a special token, with its matching flags from the list of added tokens.
    fn with_flags(&self, token: AddedToken) -> AddedToken {
        let known = self.added.values().find(|known| known.content == token.content);
        known.cloned().unwrap_or(token).special(true)
    }

    /// Sets the class if no file names one. Errors: 65 if a file names a different one.
    pub fn require_class(&mut self, class: Class, path: &Path) -> Result<()> {
        match self.class {
            Some(own) if own != class => Err(self.bad(format!(
                "its class, or that of config.json, does not read {}",
                path.display()
            ))),
            _ => {
                self.class = Some(class);
                for key in NAMED {
                    let usual = class.usual(key).map(|name| AddedToken::from(name, true));
                    if let (Some(usual), false) = (usual, self.named.contains_key(key)) {
                        self.named.insert(key, self.with_flags(usual));
                    }
                }
                Ok(())
            }
        }
    }

    /// Takes special tokens that no file names from the vocabulary, if it has those of BERT or RoBERTa.
    pub fn assume(&mut self, inner: &tokenizers::Tokenizer) {
        for key in NAMED {
            let usual = [Class::Bert, Class::Roberta].map(|class| class.usual(key));
            let known = |name: &&str| inner.token_to_id(name).is_some();
            let usual = usual.into_iter().flatten().find(known);
            if let (Some(usual), false) = (usual, self.named.contains_key(key)) {
                self.named.insert(key, self.with_flags(AddedToken::from(usual, true)));
            }
        }
    }

    /// Returns the name of a special token.
    pub fn name(&self, key: &str) -> Option<&str> {
        self.named.get(key).map(|token| token.content.as_str())
    }

    /// The special tokens by key.
    pub fn named(&self) -> BTreeMap<String, String> {
        let token = |(key, token): (&&str, &AddedToken)| (key.to_string(), token.content.clone());
        self.named.iter().map(token).collect()
    }

    /// Adds the tokens that the files name, in the order of transformers: those with ids, then the special ones.
    ///
    /// Errors: 65 when the id of a token differs from the files, or when the classification, separator, padding or end
    /// token is missing from the vocabulary.
    pub fn add_tokens(&self, inner: &mut tokenizers::Tokenizer, path: &Path) -> Result<()> {
        let unusable = |cause| Error::data(format!("{}: {cause}", path.display()));
        for (key, token) in &self.named {
            let needed = ["cls_token", "sep_token", "pad_token", "eos_token"].contains(key);
            let is_added = self.added.values().any(|added| added.content == token.content);
            if needed && !is_added && inner.token_to_id(&token.content).is_none() {
                let missing =
                    format!("the vocabulary has no token {}, which is the {key}", token.content);
                return Err(unusable(missing.into()));
            }
        }
        self.require_agreement(inner, path)?;
        let own = inner.get_added_tokens_decoder();
        let is_known = |token: &&AddedToken| {
            let mut all = own.values().chain(self.added.values());
            all.any(|known| known.content == token.content)
        };
        let special = NAMED.iter().filter_map(|key| self.named.get(key)).chain(&self.extra);
        let special = special.filter(|token| !is_known(token));
        let all: Vec<AddedToken> = self.added.values().chain(special).cloned().collect();
        inner.add_tokens(all).map_err(unusable)?;
        for (id, token) in &self.added {
            let found = inner.token_to_id(&token.content);
            if found != Some(*id) {
                return Err(self.bad(format!(
                    "the added token {} is listed with id {id}, but appending it to the vocabulary of {} gives {}",
                    quote(&token.content),
                    path.display(),
                    found.map_or("none".into(), |id| format!("id {id}"))
                )));
            }
        }
        Ok(())
    }

    /// Checks that tokenizer.json has the same added tokens. Errors: 65.
    fn require_agreement(&self, inner: &tokenizers::Tokenizer, path: &Path) -> Result<()> {
        let known = inner.get_added_tokens_decoder();
        for own in known.values() {
            let listed = self.added.values().find(|token| token.content == own.content);
            let what = match listed {
                Some(listed) if !have_same_flags(listed, own) => "is found in other places",
                None if self.lists_added && !self.is_special(&own.content) => {
                    "is not an added token"
                }
                _ => continue,
            };
            return Err(self.bad(format!(
                "the added token {} of {} {what} there; make the files agree",
                quote(&own.content),
                path.display()
            )));
        }
        Ok(())
    }

    fn is_special(&self, content: &str) -> bool {
        let mut all = self.named.values().chain(&self.extra);
        all.any(|token| token.content == content)
    }
}

/// Whether two added tokens have the same matching flags.
fn have_same_flags(a: &AddedToken, b: &AddedToken) -> bool {
    (a.lstrip, a.rstrip, a.single_word, a.normalized)
        == (b.lstrip, b.rstrip, b.single_word, b.normalized)
}

/// Parses a token: its text, or an object with its text and matching flags.
fn token_of(value: &Value, special: bool) -> Option<AddedToken> {
    if let Value::String(content) = value {
        return Some(AddedToken::from(content.as_str(), special));
    }
    let fields = value.as_object()?;
    let known =
        ["content", "lstrip", "rstrip", "single_word", "normalized", "special", "id", "__type"];
    if fields.keys().any(|key| !known.contains(&key.as_str())) {
        return None;
    }
    let flag = |key: &str, default: bool| match fields.get(key) {
        None | Some(Value::Null) => Some(default),
        Some(value) => value.as_bool(),
    };
    let special = special || flag("special", false)?;
    let token = AddedToken::from(fields.get("content")?.as_str()?, special);
    Some(
        token
            .lstrip(flag("lstrip", false)?)
            .rstrip(flag("rstrip", false)?)
            .single_word(flag("single_word", false)?)
            .normalized(flag("normalized", !special)?),
    )
}
