//! Tokenizers in Hugging Face's files: tokenizer.json; or vocab.txt of BERT; or vocab.json and merges.txt of RoBERTa,
//! with the options of tokenizer_config.json.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;
use tokenizers::models::bpe::BPE;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, EncodeInput, Encoding, TruncationParams, decoders};
use unix::{Error, Result, small};

/// Largest file of a tokenizer, in bytes.
const MAX_FILE: u64 = 256 << 20;

/// The ids of special tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpecialTokens {
    /// Fills batches up.
    pub padding: i32,
    /// The first token of a text, whose state stands for the text.
    pub cls: Option<i32>,
    /// Between texts and at the end.
    pub sep: Option<i32>,
    /// Stands for a hidden token.
    pub mask: Option<i32>,
    /// Stands for a word that the vocabulary cannot express.
    pub unk: Option<i32>,
}

/// The tokens of a text, or of a pair of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The ids.
    pub ids: Vec<i32>,
    /// The segment of each: 0, or 1 for the second text of a pair if the model distinguishes them.
    pub types: Vec<u8>,
    /// The first character of each in its text, and the one after its last; 0 and 0 for special tokens.
    pub offsets: Vec<[i32; 2]>,
    /// Where the tokens of the last text are, without special tokens.
    pub last: Range<usize>,
    /// Whether tokens beyond the largest length were left out.
    pub truncated: bool,
}

/// A tokenizer with a largest length.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: SpecialTokens,
    vocabulary: usize,
    json: String,
    hash: String,
}

impl Tokenizer {
    /// Reads the tokenizer in `folder`, which will leave out tokens beyond `max_length`.
    ///
    /// Errors: 66 when it has no tokenizer; 65 when its files are damaged or not supported, or `max_length` has no room
    /// for a text.
    pub fn open(folder: &Path, max_length: usize) -> Result<Self> {
        let config = read_config(folder)?;
        let [json, words, pieces, merges] =
            ["tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"].map(|f| folder.join(f));
        let unusable = |path: &Path| {
            let path = path.display().to_string();
            move |cause: tokenizers::Error| Error::data(format!("{path}: {cause}"))
        };
        let (path, mut inner) = if json.exists() {
            let bytes = small::read(&json, MAX_FILE)?;
            let inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(unusable(&json))?;
            (json, inner)
        } else if words.exists() {
            let inner = word_piece(&words, &config).map_err(unusable(&words))?;
            (words, inner)
        } else if pieces.exists() && merges.exists() {
            let inner = byte_level(&pieces, &merges, &config).map_err(unusable(&pieces))?;
            (pieces, inner)
        } else {
            let cause =
                "it contains no tokenizer.json, no vocab.txt, and no vocab.json with merges.txt";
            return Err(Error::open(folder, cause));
        };
        // Lengths and padding are those of this program, whatever the file says.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(unusable(&path))?;
        let json = inner.to_string(false).map_err(unusable(&path))?;
        let hash = blake3::hash(json.as_bytes()).to_hex().to_string();
        let special = special_tokens(&inner, &config, &path)?;
        let last = inner.get_vocab(true).into_values().max().unwrap_or(0);
        let vocabulary = last as usize + 1;
        require_room(&inner, &special, max_length, &path)?;
        let truncation = TruncationParams { max_length, ..TruncationParams::default() };
        inner.with_truncation(Some(truncation)).map_err(unusable(&path))?;
        Ok(Self { inner, special, vocabulary, json, hash })
    }

    /// The same without a largest length.
    pub fn unlimited(&self) -> Self {
        let mut inner = self.inner.clone();
        // Only a stride that exceeds the length is an error.
        let _ = inner.with_truncation(None);
        Self { inner, ..self.clone() }
    }

    /// Number of ids: one more than the largest.
    pub fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// The ids of special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// BLAKE3 hash of the tokenizer, independent of the files it came from.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The content of its tokenizer.json.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// The text of a token.
    pub fn token(&self, id: i32) -> Option<String> {
        self.inner.id_to_token(u32::try_from(id).ok()?)
    }

    /// Encodes a text, or a pair of texts. Errors: 65 for a text that the tokenizer cannot encode.
    pub fn encode(&self, text: &str, text2: Option<&str>) -> Result<Encoded> {
        let found = self.inner.encode_char_offsets(input(text, text2), true);
        encoded(&found.map_err(|cause| Error::data(format!("cannot tokenize a text: {cause}")))?)
    }

    /// Encodes texts on all processors, in order. Errors: as [`encode`](Self::encode).
    pub fn encode_all(&self, texts: &[[Option<&str>; 2]]) -> Result<Vec<Encoded>> {
        let inputs = texts.iter().map(|[text, text2]| input(text.unwrap_or_default(), *text2));
        let found = self.inner.encode_batch_char_offsets(inputs.collect(), true);
        let found =
            found.map_err(|cause| Error::data(format!("cannot tokenize a text: {cause}")))?;
        found.iter().map(encoded).collect()
    }
}

fn input<'a>(text: &'a str, text2: Option<&'a str>) -> EncodeInput<'a> {
    match text2 {
        None => EncodeInput::Single(text.into()),
        Some(text2) => EncodeInput::Dual(text.into(), text2.into()),
    }
}

fn encoded(found: &Encoding) -> Result<Encoded> {
    let wrong = |_| Error::data("an id or offset of the tokenizer is too large");
    let number = |n: usize| i32::try_from(n).map_err(|_| wrong(()));
    let ids = found.get_ids().iter().map(|id| number(*id as usize)).collect::<Result<_>>()?;
    let types = found.get_type_ids().iter().map(|t| u8::try_from(*t).map_err(|_| wrong(())));
    let offsets = found.get_offsets().iter().map(|(a, b)| Ok([number(*a)?, number(*b)?]));
    // Where a tokenizer says nothing of its sequences, they are what it did not add.
    let (added, sequences) = (found.get_special_tokens_mask(), found.get_sequence_ids());
    let number = found.n_sequences().saturating_sub(1);
    let of_last = |i: &usize| sequences[*i] == Some(number) && added[*i] == 0;
    let start = (0..added.len()).find(of_last).unwrap_or(0);
    let end = (start..added.len()).rev().find(of_last).map_or(start, |last| last + 1);
    let last = start..end;
    Ok(Encoded {
        ids,
        last,
        types: types.collect::<Result<_>>()?,
        offsets: offsets.collect::<Result<_>>()?,
        truncated: !found.get_overflowing().is_empty(),
    })
}

/// Errors: 65 when special tokens alone fill `max_length`.
fn require_room(
    inner: &tokenizers::Tokenizer,
    special: &SpecialTokens,
    max_length: usize,
    path: &Path,
) -> Result<()> {
    let pair = inner.encode(input("", Some("")), true);
    let added = pair.map_or(Vec::new(), |found| found.get_ids().to_vec());
    let first = added.first().and_then(|id| i32::try_from(*id).ok());
    if first.is_none() || first != special.cls {
        return Err(Error::data(format!(
            "{}: texts do not begin with the classification token, [CLS] or <s>, which encoders of BERT and RoBERTa need; \
             its post-processor must add it",
            path.display()
        )));
    }
    let special = added.len();
    match max_length > special {
        true => Ok(()),
        false => Err(Error::data(format!(
            "{}: {special} special tokens leave no room for a text in {max_length} tokens; raise --max-length",
            path.display()
        ))),
    }
}

fn read_config(folder: &Path) -> Result<Map<String, Value>> {
    let path = folder.join("tokenizer_config.json");
    Ok(small::read_json(&path, MAX_FILE, "restore it, or remove it")?.unwrap_or_default())
}

fn flag(config: &Map<String, Value>, key: &str, default: bool) -> bool {
    config.get(key).and_then(Value::as_bool).unwrap_or(default)
}

/// The special tokens of BERT and of RoBERTa.
const PADDING: [&str; 2] = ["[PAD]", "<pad>"];
const CLS: [&str; 2] = ["[CLS]", "<s>"];
const SEP: [&str; 2] = ["[SEP]", "</s>"];
const MASK: [&str; 2] = ["[MASK]", "<mask>"];
const UNK: [&str; 2] = ["[UNK]", "<unk>"];

fn special_tokens(
    inner: &tokenizers::Tokenizer,
    config: &Map<String, Value>,
    path: &Path,
) -> Result<SpecialTokens> {
    let id = |key: &str, usual: [&str; 2]| {
        // Either the token or an object with its content.
        let given = config.get(key).map(|value| value.get("content").unwrap_or(value));
        let names = given.and_then(Value::as_str).into_iter().chain(usual);
        let mut ids = names.filter_map(|name| inner.token_to_id(name));
        ids.next().and_then(|id| i32::try_from(id).ok())
    };
    let padding = id("pad_token", PADDING).ok_or_else(|| {
        Error::data(format!(
            "{}: no padding token ([PAD] or <pad>); name it as pad_token in tokenizer_config.json",
            path.display()
        ))
    })?;
    Ok(SpecialTokens {
        padding,
        cls: id("cls_token", CLS),
        sep: id("sep_token", SEP),
        mask: id("mask_token", MASK),
        unk: id("unk_token", UNK),
    })
}

/// The name and id of a special token that the model must have.
fn required(
    inner: &tokenizers::Tokenizer,
    name: &str,
) -> std::result::Result<(String, u32), tokenizers::Error> {
    let id = inner.token_to_id(name).ok_or_else(|| format!("no token {name}"))?;
    Ok((name.into(), id))
}

/// BERT's tokenizer, of vocab.txt.
fn word_piece(
    path: &Path,
    config: &Map<String, Value>,
) -> std::result::Result<tokenizers::Tokenizer, tokenizers::Error> {
    let model = WordPiece::read_bytes(&small::read(path, MAX_FILE)?)?;
    let model = WordPiece::builder().vocab(model).build()?;
    let mut inner = tokenizers::Tokenizer::new(model);
    let lower = flag(config, "do_lower_case", true);
    let chinese = flag(config, "tokenize_chinese_chars", true);
    let accents = config.get("strip_accents").and_then(Value::as_bool);
    inner.with_normalizer(Some(BertNormalizer::new(true, chinese, accents, lower)))?;
    inner.with_pre_tokenizer(Some(BertPreTokenizer));
    let special = [required(&inner, "[CLS]")?, required(&inner, "[SEP]")?];
    let template = TemplateProcessing::builder()
        .try_single("[CLS]:0 $A:0 [SEP]:0")?
        .try_pair("[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1")?
        .special_tokens(special.to_vec())
        .build()?;
    inner.with_post_processor(Some(template));
    inner.with_decoder(Some(decoders::wordpiece::WordPiece::default()));
    let names = [UNK[0], SEP[0], PADDING[0], CLS[0], MASK[0]];
    add_special(&mut inner, &names)?;
    Ok(inner)
}

/// RoBERTa's tokenizer, of vocab.json and merges.txt.
fn byte_level(
    vocabulary: &Path,
    merges: &Path,
    config: &Map<String, Value>,
) -> std::result::Result<tokenizers::Tokenizer, tokenizers::Error> {
    for path in [vocabulary, merges] {
        small::require_file(path)?;
    }
    let [vocabulary, merges] = [vocabulary, merges].map(|path| path.to_string_lossy());
    let mut inner = tokenizers::Tokenizer::new(BPE::from_file(&vocabulary, &merges).build()?);
    let prefix = flag(config, "add_prefix_space", false);
    inner.with_pre_tokenizer(Some(ByteLevel::new(prefix, true, true)));
    let (sep, cls) = (required(&inner, SEP[1])?, required(&inner, CLS[1])?);
    let processing = RobertaProcessing::new(sep, cls).trim_offsets(true).add_prefix_space(prefix);
    inner.with_post_processor(Some(processing));
    inner.with_decoder(Some(ByteLevel::default()));
    add_special(&mut inner, &[CLS[1], PADDING[1], SEP[1], UNK[1], MASK[1]])?;
    Ok(inner)
}

fn add_special(
    inner: &mut tokenizers::Tokenizer,
    names: &[&str],
) -> std::result::Result<(), tokenizers::Error> {
    let known = names.iter().filter(|name| inner.token_to_id(name).is_some());
    let tokens: Vec<AddedToken> = known.map(|name| AddedToken::from(*name, true)).collect();
    inner.add_special_tokens(tokens)?;
    Ok(())
}
