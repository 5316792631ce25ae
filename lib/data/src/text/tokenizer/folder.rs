//! Opens the tokenizer in a folder, and checks that its files describe the same tokenizer.

use super::class::Class;
use super::hostile;
use super::settings::Settings;
use super::{Cut, SpecialTokens, input, keys};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tokenizers::decoders;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::processors::template::TemplateProcessing;
use unix::cli::catch_panics;
use unix::foreign_keys::check;
use unix::text::quote;
use unix::{Error, Result, small};

/// The pattern by which Qwen2Tokenizer of transformers 5.24 divides texts.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

type Library<T> = std::result::Result<T, tokenizers::Error>;

/// Maximum size of a tokenizer file in bytes.
const MAX_FILE: u64 = 256 << 20;

/// The tokenizer of a folder, without a maximum length.
pub(super) struct Folder {
    /// The file with its vocabulary.
    pub path: PathBuf,
    pub inner: tokenizers::Tokenizer,
    pub special: SpecialTokens,
    /// The special tokens by key, such as `bos_token`.
    pub named: BTreeMap<String, String>,
    pub cut: Cut,
}

/// Reads the object in a JSON file; empty if the file is missing. Errors: 65.
pub(in crate::text) fn file_of(path: &Path) -> Result<Map<String, Value>> {
    Ok(small::read_json(path, MAX_FILE, "restore it, or remove it")?.unwrap_or_default())
}

impl Folder {
    /// Opens a folder. Errors: 66 when it has no tokenizer; 65 when its files are damaged, contradict each other or are
    /// not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        let mut settings = Settings::read(folder)?;
        let [json, words, pieces, merges] =
            ["tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"].map(|f| folder.join(f));
        let mut left = None;
        let (path, inner) = if json.exists() {
            let file = file_of(&json)?;
            check(&json, &file, keys::JSON)?;
            hostile::check(&file).map_err(|what| unusable(&json, &what))?;
            left = truncation_of(&file);
            let mut inner = read(&json, || {
                // `parse` is already compiled in the library, unlike `from_bytes`, which is generic.
                serde_json::to_string(&file)?.parse::<tokenizers::Tokenizer>()
            })?;
            inner.with_padding(None);
            inner.with_truncation(None).map_err(|cause| unusable(&json, &cause.to_string()))?;
            settings.assume(&inner);
            settings.add_tokens(&mut inner, &json)?;
            require_class(&settings, &inner, &json)?;
            require_padding(&settings, &file, &json)?;
            (json, inner)
        } else if words.exists() {
            settings.require_class(Class::Bert, &words)?;
            let mut inner = read(&words, || word_piece(&words, &settings))?;
            settings.add_tokens(&mut inner, &words)?;
            read(&words, || template(&mut inner, &settings))?;
            (words, inner)
        } else if pieces.exists() && merges.exists() {
            settings.require_class(Class::Roberta, &pieces)?;
            let ids: Map<String, Value> = file_of(&pieces)?;
            hostile::require_dense(ids.values()).map_err(|what| unusable(&pieces, &what))?;
            let mut inner = read(&pieces, || byte_level(&pieces, &merges, &settings))?;
            settings.add_tokens(&mut inner, &pieces)?;
            read(&pieces, || roberta_processing(&mut inner, &settings))?;
            (pieces, inner)
        } else {
            let cause =
                "it contains no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt";
            return Err(Error::open(folder, cause));
        };
        let special = special_tokens(&inner, &settings, &path)?;
        let left = settings.truncates_left()?.or(left).unwrap_or(false);
        let types =
            read(&path, || Ok(inner.encode(input("a", Some("a")), true)?.get_type_ids().to_vec()))?;
        let has_segments = types.iter().any(|segment| *segment > 0);
        let no_segments = has_segments && settings.segments == Some(false);
        let named = settings.named();
        Ok(Self { path, inner, special, named, cut: Cut { left, no_segments } })
    }
}

fn unusable(path: &Path, what: &str) -> Error {
    Error::data(format!("{}: {what}", path.display()))
}

/// Calls the library, which panics on some damaged files. Errors: 65 with the file.
fn read<T>(path: &Path, call: impl FnOnce() -> Library<T>) -> Result<T> {
    let found = catch_panics(call).map_err(|cause| unusable(path, &cause))?;
    found.map_err(|cause| unusable(path, &cause.to_string()))
}

/// Whether the truncation in tokenizer.json removes the first tokens; None without truncation. Its lengths are ignored.
fn truncation_of(file: &Map<String, Value>) -> Option<bool> {
    let direction = file.get("truncation")?.get("direction")?.as_str()?;
    Some(direction == "Left")
}

/// Checks that padding in tokenizer.json agrees with tokenizer_config.json. Errors: 65.
fn require_padding(settings: &Settings, file: &Map<String, Value>, path: &Path) -> Result<()> {
    let Some(padding) = file.get("padding").filter(|padding| !padding.is_null()) else {
        return Ok(());
    };
    let text = |key: &str| padding.get(key).and_then(Value::as_str);
    let (token, named) = (text("pad_token"), settings.name("pad_token"));
    if let (Some(token), Some(named)) = (token, named)
        && token != named
    {
        let what = format!("padding with {}, but pad_token is {}", quote(token), quote(named));
        return Err(unusable(path, &what));
    }
    match text("direction") {
        Some("Left") => Err(unusable(path, "padding on the left is not supported")),
        _ => Ok(()),
    }
}

/// Checks that tokenizer.json equals the tokenizer that its class builds from its vocabulary, because for such classes
/// transformers ignores the rest of the file. Errors: 65 with the part that differs.
fn require_class(settings: &Settings, inner: &tokenizers::Tokenizer, path: &Path) -> Result<()> {
    let Some(class) = settings.class.filter(|class| *class != Class::File) else { return Ok(()) };
    let own: Value = serde_json::from_str(&read(path, || inner.to_string(false))?)
        .map_err(|cause| unusable(path, &cause.to_string()))?;
    let flag = |key: &str, default: bool| settings.flag(key, default);
    let expected = match class {
        Class::Bert => json!({
            "normalizer": {
                "type": "BertNormalizer",
                "clean_text": true,
                "handle_chinese_chars": flag("tokenize_chinese_chars", true)?,
                "strip_accents": settings.optional_flag("strip_accents")?,
                "lowercase": flag("do_lower_case", true)?,
            },
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "model": {
                "type": "WordPiece",
                "unk_token": settings.name("unk_token"),
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
            },
        }),
        Class::Roberta => json!({
            "normalizer": null,
            "pre_tokenizer": {
                "type": "ByteLevel",
                "add_prefix_space": flag("add_prefix_space", false)?,
                "trim_offsets": true,
                "use_regex": true,
            },
            "model": {
                "type": "BPE",
                "dropout": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": false,
            },
        }),
        Class::Qwen2 => {
            // Changes only the offsets of spaces.
            let trims = &own["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"];
            qwen2(flag("add_prefix_space", false)?, trims)
        }
        Class::XlmRoberta | Class::File => {
            let scheme = if flag("add_prefix_space", true)? { "always" } else { "never" };
            json!({
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                    {"type": "WhitespaceSplit"},
                    {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true},
                ]},
                "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": false},
            })
        }
    };
    let differs = |part: &str, expected: &Value, own: &Value| {
        unusable(
            path,
            &format!(
                "{part} is {own}, but tokenizer_config.json and its tokenizer_class, which transformers obeys, make it \
                 {expected}; make the files agree, or set tokenizer_class to PreTrainedTokenizerFast"
            ),
        )
    };
    if let Some((part, expected, own)) = difference(&expected, &own) {
        return Err(differs(&part, expected, own));
    }
    if class == Class::XlmRoberta && !is_sentencepiece_table(&own["normalizer"]) {
        return Err(differs("normalizer", &json!("that of SentencePiece"), &own["normalizer"]));
    }
    require_template(settings, class, inner, path)
}

/// What Qwen2Tokenizer makes of a vocabulary.
fn qwen2(add_prefix_space: bool, trim_offsets: &Value) -> Value {
    json!({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": QWEN2}, "behavior": "Isolated", "invert": false},
            {
                "type": "ByteLevel",
                "add_prefix_space": add_prefix_space,
                "trim_offsets": trim_offsets,
                "use_regex": false,
            },
        ]},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
        },
    })
}

/// Whether a tokenizer.json is what Qwen2Tokenizer, without options, makes of its vocabulary.
pub(super) fn is_of_qwen2(json: &str) -> bool {
    let Ok(own) = serde_json::from_str::<Value>(json) else { return false };
    let trims = &own["pre_tokenizer"]["pretokenizers"][1]["trim_offsets"];
    difference(&qwen2(false, trims), &own).is_none()
}

/// The first part of a tokenizer.json, with its value, that is not as `expected`. Of the model, which only the file has, only
/// options are compared.
fn difference<'a>(expected: &'a Value, own: &'a Value) -> Option<(String, &'a Value, &'a Value)> {
    for (part, expected) in expected.as_object()? {
        let own = &own[part];
        if part == "model" {
            let mut options = expected.as_object()?.iter();
            if let Some((key, expected)) = options.find(|(key, value)| own[*key] != **value) {
                return Some((format!("{key} of the model"), expected, &own[key]));
            }
        } else if own != expected {
            return Some((part.clone(), expected, own));
        }
    }
    None
}

/// Whether a normalizer consists only of the SentencePiece table; replacing characters by spaces has no effect, because
/// texts are split at spaces anyway.
fn is_sentencepiece_table(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array();
    let is_table = |part: &Value| part["type"] == "Precompiled";
    let is_spaces = |part: &Value| part["type"] == "Replace" && part["content"] == " ";
    match parts {
        Some(parts) => parts.iter().all(|part| is_table(part) || is_spaces(part)),
        None => normalizer.is_null() || is_table(normalizer),
    }
}

/// Checks that texts and pairs get the special tokens of the class. Errors: 65.
fn require_template(
    settings: &Settings,
    class: Class,
    inner: &tokenizers::Tokenizer,
    path: &Path,
) -> Result<()> {
    let id = |key: &str| settings.name(key).and_then(|name| inner.token_to_id(name));
    let (Some(cls), Some(sep)) = (id("cls_token"), id("sep_token")) else { return Ok(()) };
    let (cls, sep) = match class {
        Class::XlmRoberta => (id("bos_token").unwrap_or(cls), id("eos_token").unwrap_or(sep)),
        _ => (cls, sep),
    };
    let text = read(path, || Ok(inner.encode("a", false)?.get_ids().to_vec()))?;
    let pair = read(path, || inner.encode(input("a", Some("a")), true))?;
    let single = read(path, || inner.encode("a", true))?;
    let between = if class == Class::Bert { vec![sep] } else { vec![sep, sep] };
    let one = [&[cls][..], &text, &[sep]].concat();
    let both = [&[cls][..], &text, &between, &text, &[sep]].concat();
    let second = if class == Class::Bert { text.len() + 1 } else { 0 };
    let mut types = vec![0; both.len()];
    types[both.len() - second..].fill(1);
    let is_same = single.get_ids() == one && pair.get_ids() == both && pair.get_type_ids() == types;
    match is_same {
        true => Ok(()),
        false => Err(unusable(
            path,
            "post_processor adds other special tokens than its tokenizer_class, which transformers obeys; make the files \
             agree, or set tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json",
        )),
    }
}

fn special_tokens(
    inner: &tokenizers::Tokenizer,
    settings: &Settings,
    path: &Path,
) -> Result<SpecialTokens> {
    let id = |key: &str| {
        let id = settings.name(key).and_then(|name| inner.token_to_id(name));
        id.and_then(|id| i32::try_from(id).ok())
    };
    // Decoders often have none; batches of them are padded where no loss is.
    let ends = || id("eos_token").filter(|_| id("cls_token").is_none());
    let padding = id("pad_token").or_else(ends).ok_or_else(|| {
        unusable(
            path,
            "no padding token ([PAD] or <pad>); name it as pad_token in tokenizer_config.json",
        )
    })?;
    Ok(SpecialTokens {
        padding,
        cls: id("cls_token"),
        sep: id("sep_token"),
        mask: id("mask_token"),
        unk: id("unk_token"),
        bos: None,
        eos: None,
    })
}

/// Returns the name and id of a special token that the model must have.
fn required(
    inner: &tokenizers::Tokenizer,
    settings: &Settings,
    key: &str,
) -> Library<(String, u32)> {
    let name = settings.name(key).unwrap_or_default();
    let missing = || format!("the vocabulary has no token {name}, which is the {key}");
    let id = inner.token_to_id(name).ok_or_else(missing)?;
    Ok((name.into(), id))
}

/// Builds BERT's tokenizer from vocab.txt.
fn word_piece(path: &Path, settings: &Settings) -> Library<tokenizers::Tokenizer> {
    let model = WordPiece::read_bytes(&small::read(path, MAX_FILE)?)?;
    let unk = settings.name("unk_token").unwrap_or("[UNK]").to_string();
    let model = WordPiece::builder().vocab(model).unk_token(unk).build()?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let lower = settings.flag("do_lower_case", true)?;
    let chinese = settings.flag("tokenize_chinese_chars", true)?;
    let accents = settings.optional_flag("strip_accents")?;
    inner.with_normalizer(Some(BertNormalizer::new(true, chinese, accents, lower)))?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    inner.with_decoder(Some(decoders::wordpiece::WordPiece::default()));
    Ok(inner)
}

fn template(inner: &mut tokenizers::Tokenizer, settings: &Settings) -> Library<()> {
    let special = ["cls_token", "sep_token"].map(|key| required(inner, settings, key));
    let [(cls, cls_id), (sep, sep_id)] = match special {
        [Ok(cls), Ok(sep)] => [cls, sep],
        [Err(cause), _] | [_, Err(cause)] => return Err(cause),
    };
    let single = vec![format!("{cls}:0"), "$A:0".into(), format!("{sep}:0")];
    let pair = [single.clone(), vec!["$B:1".into(), format!("{sep}:1")]].concat();
    let template = TemplateProcessing::builder()
        .try_single(single)?
        .try_pair(pair)?
        .special_tokens(vec![(cls, cls_id), (sep, sep_id)])
        .build()?;
    inner.with_post_processor(Some(template));
    Ok(())
}

/// Builds RoBERTa's tokenizer from vocab.json and merges.txt.
fn byte_level(
    vocabulary: &Path,
    merges: &Path,
    settings: &Settings,
) -> Library<tokenizers::Tokenizer> {
    for path in [vocabulary, merges] {
        small::require_file(path)?;
    }
    let [vocabulary, merges] = [vocabulary, merges].map(|path| path.to_string_lossy());
    let mut inner = tokenizers::Tokenizer::new(BPE::from_file(&vocabulary, &merges).build()?);
    let prefix = settings.flag("add_prefix_space", false)?;
    inner.with_pre_tokenizer(Some(ByteLevel::new(prefix, true, true)));
    inner.with_decoder(Some(ByteLevel::default()));
    Ok(inner)
}

fn roberta_processing(inner: &mut tokenizers::Tokenizer, settings: &Settings) -> Library<()> {
    let (sep, cls) =
        (required(inner, settings, "sep_token")?, required(inner, settings, "cls_token")?);
    let trim = settings.flag("trim_offsets", true)?;
    let prefix = settings.flag("add_prefix_space", false)?;
    let processing = RobertaProcessing::new(sep, cls).trim_offsets(trim).add_prefix_space(prefix);
    inner.with_post_processor(Some(processing));
    Ok(())
}
