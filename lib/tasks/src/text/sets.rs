//! The data of the text tasks.

use crate::common::TrainOn;
use crate::trained::Opener;
use data::inputs::InputFile;
use data::loader::Buckets;
use data::split::SplitName;
use data::text::{TokenInfo, TokenSet};
use learn::dependency::{Dependencies, Dependency};
use learn::trained::Parts;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use unix::{Context, Error, Result};

/// The training and validation data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TextData {
    /// Token ids of the splits, a directory written by `ds-prep tokenize`.
    pub tokens: PathBuf,
    /// The splits to train on.
    #[serde(default)]
    pub train_on: TrainOn,
    /// Train on only the first records of these splits, at most this many. Null: on all.
    // Not serialised when null, so that configurations older than this key keep their hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub train_subset: Option<u64>,
    /// Batches per pool: within each pool, texts are sorted by length and cut into batches, which are then read in
    /// random order. Larger pools need less padding. 0 or 1: batches of random lengths.
    #[serde(default = "bucket_batches")]
    #[schemars(range(min = 0, max = 10_000))]
    pub bucket_batches: u64,
}

fn bucket_batches() -> u64 {
    32
}

/// What the manifest of a checkpoint calls the hash of tokenizer and labels.
const TOKENIZER: &str = "tokenizer and labels";

/// The opened splits.
pub struct Sets {
    /// The splits to train on.
    pub train: Vec<TokenSet>,
    pub validation: TokenSet,
    /// Number of records to train on.
    records: usize,
    bucket_batches: u64,
}

impl Sets {
    /// Errors: 66 when there are no tokens; 65 when they are damaged or a split is empty.
    pub fn open(data: &TextData) -> Result<Self> {
        let open = |name| open_split(&data.tokens, name);
        let (train, validation) = (open(SplitName::Train)?, open(SplitName::Validation)?);
        let mut train = vec![train];
        if data.train_on == TrainOn::TrainAndValidation {
            train.push(open(SplitName::Validation)?);
        }
        let all = train.iter().map(TokenSet::len).sum();
        let limit = data.train_subset.and_then(|limit| usize::try_from(limit).ok());
        let records = limit.map_or(all, |limit| limit.min(all));
        Ok(Self { train, validation, records, bucket_batches: data.bucket_batches })
    }

    /// What the tokens were made with.
    pub fn info(&self) -> &TokenInfo {
        self.train[0].info()
    }

    /// The number of the set, and that of the record in it, of each record that is trained on.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, usize)> {
        let of = |(number, set): (usize, &TokenSet)| (0..set.len()).map(move |i| (number, i));
        self.train.iter().enumerate().flat_map(of).take(self.records)
    }

    /// All records that are trained on.
    pub fn records(&self) -> impl Iterator<Item = (&TokenSet, usize)> {
        self.numbered().map(|(number, i)| (&self.train[number], i))
    }

    /// Number of segments of the tokens that are trained on.
    pub fn segments(&self) -> usize {
        self.train.iter().map(TokenSet::segments).max().unwrap_or(0)
    }

    /// The no-answer threshold where none was fitted: 0 if there are records without an answer; otherwise None, and an
    /// answer is always predicted.
    pub fn threshold(&self) -> Option<f64> {
        let validation = (0..self.validation.len()).map(|i| (&self.validation, i));
        let has_no_answer =
            self.records().chain(validation).any(|(set, i)| set.answer(i).is_none());
        (self.info().answers && has_no_answer).then_some(0.0)
    }

    /// Buckets of samples with these numbers of tokens.
    pub fn buckets(&self, lengths: impl Iterator<Item = usize>) -> Buckets {
        Buckets { lengths: lengths.map(|n| n as u32).collect(), pool: self.bucket_batches }
    }

    /// The hashes of training and validation tokens: both determine which checkpoint is best.
    pub fn hash(&self) -> String {
        format!("{}+{}", self.train[0].hash(), self.validation.hash())
    }

    pub fn input_files(&self) -> Vec<InputFile> {
        // With train+validation, the validation split is also trained on, but its files are listed only once.
        [&self.train[0], &self.validation].into_iter().flat_map(TokenSet::input_files).collect()
    }

    /// What a model depends on besides its weights.
    pub fn dependencies(&self) -> Dependencies {
        [(TOKENIZER.into(), Dependency::new(None, tokenizer_hash(self.info())))].into()
    }
}

/// The hash of tokenizer, kind of records and labels, which the manifest of a checkpoint records.
pub(super) fn tokenizer_hash(info: &TokenInfo) -> String {
    let TokenInfo { multi_label, pairs, answers, .. } = info;
    let kind = format!("{multi_label} {pairs} {answers}");
    let text = format!("{}\n{kind}\n{}", info.tokenizer_hash, info.labels.join("\n"));
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The hash that a checkpoint records. Errors: 65 without one.
pub(super) fn recorded_tokenizer(parts: &Parts) -> Result<String> {
    if let Some(recorded) = parts.dependencies.get(TOKENIZER) {
        return Ok(recorded.hash.clone());
    }
    // Version 0.1.0 stored the bytes of the hash as a buffer.
    let bytes = parts.buffer("tokenizer_and_labels")?;
    Ok(bytes.iter().map(|byte| format!("{:02x}", *byte as u8)).collect())
}

/// The name of the folder of tokens in `--with NAME=FOLDER`.
const TOKENS: &str = "tokens";

/// The training tokens of a model, in the folder of its configuration, or of `--with tokens=FOLDER`. Errors: 2 for
/// other models; 65, 66.
pub(crate) fn trained_tokens(parts: &Parts, opener: &Opener) -> Result<(TextData, TokenSet)> {
    opener.require_known(parts, &[TOKENS])?;
    let checkpoint = || parts.origin.checkpoint.display().to_string();
    let mut data: TextData = parts.section("data").context(checkpoint)?;
    if let Some((_, folder)) = opener.with.first() {
        data.tokens.clone_from(folder);
    }
    let set = TokenSet::open(&data.tokens, SplitName::Train).map_err(|error| {
        error.context(format!(
            "the tokens that {} was trained with; give their new path with --with {TOKENS}=FOLDER",
            checkpoint()
        ))
    })?;
    Ok((data, set))
}

/// Opens a split. `ds-prep tokenize` writes only splits that have records. Errors: 66, 65.
fn open_split(folder: &Path, name: SplitName) -> Result<TokenSet> {
    if TokenSet::is_at(folder) && !TokenSet::has_split(folder, name) {
        let what = format!(
            "it has tokens of other splits, but none of the {name} split, which is empty in the manifest; run ds-prep split \
             with a share for it and tokenize again, or score another one with --split"
        );
        return Err(Error::open(folder, what));
    }
    TokenSet::open(folder, name)
}

/// The split to score, the training and the validation split, which must have records.
pub fn open_sets(folder: &Path, name: SplitName) -> Result<[TokenSet; 3]> {
    let [set, train, validation] =
        [name, SplitName::Train, SplitName::Validation].map(|name| open_split(folder, name));
    Ok([set?, train?, validation?])
}
