//! The data: pairs of a text and a vector, and texts and vectors without a partner.

use super::config::CycleVaeData;
use super::model::Sizes;
use crate::common::normalisation::Normalisation;
use crate::common::sources::{Sources, joined, source_key};
use data::inputs::InputFile;
use data::split::SplitName;
use data::text::{Embedding, TokenInfo, TokenSet};
use learn::dependency::{Dependencies, Dependency};
use learn::trained::Parts;
use std::path::Path;
use unix::{Error, Result};

/// What the manifest of a checkpoint calls the hash of the tokenizer.
pub(super) const TOKENIZER: &str = "tokenizer";
/// What it calls the hash of the encoder of the vectors and its settings.
const EMBEDDING: &str = "embedding";
/// Deviations below this fraction of their root mean square are raised to it: a dimension without variance would be
/// divided by zero.
const FLOOR: f64 = 1e-3;

/// A record: its tokens without padding, and its vector, either of which may be absent.
#[derive(Clone, Debug)]
pub(super) struct Record<'a> {
    /// Token ids; None for a vector without a text.
    pub ids: Option<&'a [i32]>,
    /// Vector; None for a text without a vector.
    pub vector: Option<&'a [f32]>,
}

impl<'a> Record<'a> {
    /// Reads record `i` of a set. Errors: 65 for damaged tokens.
    pub fn of(set: &'a TokenSet, i: usize) -> Result<Self> {
        let ids = set.checked(i)?.ids;
        Ok(Self { ids: (!ids.is_empty()).then_some(ids), vector: set.vector(i) })
    }
}

/// The opened splits.
pub(super) struct PairSets {
    pub train: Sources<TokenSet>,
    pub validation: TokenSet,
    /// Mean and deviation of each dimension of the vectors of the training pairs.
    pub normalisation: Normalisation,
}

/// Opens the tokens of a split in `folder`. Errors: 66, 65.
pub(super) fn open_split(folder: &Path, name: SplitName) -> Result<TokenSet> {
    if TokenSet::is_at(folder) && !TokenSet::has_split(folder, name) {
        let what =
            format!("has no tokens of the {name} split; run ds-prep split with a share for it");
        return Err(Error::open(folder, what));
    }
    TokenSet::open(folder, name)
}

/// Returns the sizes of a network for these tokens. Errors (78): the tokenizer has no mask token, or there are no
/// vectors.
pub(super) fn sizes(info: &TokenInfo, folder: &Path) -> Result<Sizes> {
    let problem = |what: &str| Error::config(format!("{}: {what}", folder.display()));
    let mask = info.special.mask.ok_or_else(|| {
        problem(
            "its tokenizer has no mask token, which masked diffusion needs; add one, e.g. [MASK]",
        )
    })?;
    if info.vector == 0 {
        return Err(problem(
            "its texts have no vectors; import them with ds-prep import --vectors, compute them with latent-cache make, or \
             name texts alone in data.additional",
        ));
    }
    let (vocabulary, length, vector) = (info.vocabulary, info.max_length, info.vector);
    Ok(Sizes { vocabulary, mask, length, vector })
}

/// Returns the normalisation of vectors with these statistics.
fn normalisation(set: &TokenSet, folder: &Path) -> Result<Normalisation> {
    let lacks = || Error::data(format!("{}: the training split has no vectors", folder.display()));
    let found = set.vector_statistics().filter(|found| found.count > 0).ok_or_else(lacks)?;
    let squares: f64 = found.deviation.iter().map(|x| x * x).sum();
    let floor = FLOOR * (squares / found.deviation.len() as f64).sqrt();
    let raised = |x: &f64| if floor > 0.0 { x.max(floor) } else { 1.0 };
    Ok(Normalisation { mean: found.mean, std: found.deviation.iter().map(raised).collect() })
}

impl PairSets {
    /// Errors: 66 when there are no tokens; 65 when they are damaged; those of [`sizes`]; 78 when a source has another
    /// tokenizer, length or dimension than the first.
    pub fn open(data: &CycleVaeData) -> Result<Self> {
        let first = open_split(&data.tokens, SplitName::Train)?;
        let validation = open_split(&data.tokens, SplitName::Validation)?;
        sizes(first.info(), &data.tokens)?;
        let normalisation = normalisation(&first, &data.tokens)?;
        let info = first.info().clone();
        let mut train = vec![(first, data.weight)];
        for (number, own) in (1..).zip(&data.additional) {
            let set = open_split(&own.tokens, SplitName::Train)?;
            require_same(&info, set.info(), number, &own.tokens)?;
            train.push((set, own.weight));
        }
        let train = Sources::new(train, |set| set.len() as u64);
        Ok(Self { train, validation, normalisation })
    }

    /// What the tokens of the pairs were made with.
    pub fn info(&self) -> &TokenInfo {
        self.validation.info()
    }

    /// Whether a training set has texts alone, and whether one has vectors alone.
    pub fn has_unpaired(&self) -> [bool; 2] {
        let any = |is: fn(&TokenInfo) -> bool| self.train.iter().any(|set| is(set.info()));
        [any(|info| info.vector == 0), any(|info| info.vectors_only)]
    }

    /// All sets, each listed once.
    fn all(&self) -> impl Iterator<Item = &TokenSet> {
        self.train.iter().chain([&self.validation])
    }

    /// The hash of the training data.
    pub fn hash(&self) -> String {
        joined(self.all().map(TokenSet::hash))
    }

    /// The files of all sets.
    pub fn input_files(&self) -> Vec<InputFile> {
        self.all().flat_map(TokenSet::input_files).collect()
    }

    /// What a model depends on besides its weights.
    pub fn dependencies(&self) -> Dependencies {
        let info = self.info();
        let tokenizer = (TOKENIZER, info.tokenizer_hash.clone());
        let embedding = info.embedding.as_ref().map(|own| (EMBEDDING, own.hash()));
        let all = [Some(tokenizer), embedding].into_iter().flatten();
        all.map(|(name, hash)| (name.into(), Dependency::new(None, hash))).collect()
    }
}

/// Checks that the vectors in `folder` are of the encoder that a model was trained with, if latent-cache made them. Errors:
/// 65.
pub(super) fn require_embedding(parts: &Parts, info: &TokenInfo, folder: &Path) -> Result<()> {
    let Some(recorded) = parts.dependencies.get(EMBEDDING) else { return Ok(()) };
    let found = info.embedding.as_ref().map(Embedding::hash);
    match info.vector == 0 || found.as_ref() == Some(&recorded.hash) {
        true => Ok(()),
        false => Err(Error::data(format!(
            "{}: its vectors are of another encoder, or made with other settings of latent-cache make, than those that {} was \
             trained with",
            folder.display(),
            parts.origin.checkpoint.display()
        ))),
    }
}

/// Checks that further data fit those of the first source. Errors: 78.
fn require_same(info: &TokenInfo, other: &TokenInfo, number: usize, folder: &Path) -> Result<()> {
    let key = source_key(number, "tokens");
    let differs = |what: &str, expected: String, found: String| {
        Err(Error::config(format!(
            "{key}: {}: {what} {found}, but those of data.tokens have {expected}; run ds-prep tokenize with the same \
             settings",
            folder.display()
        )))
    };
    if other.tokenizer_hash != info.tokenizer_hash {
        let short = |hash: &str| hash.chars().take(12).collect();
        let found = short(&other.tokenizer_hash);
        return differs("the tokens have the tokenizer", short(&info.tokenizer_hash), found);
    }
    let embeddings = [info, other].map(|info| info.embedding.as_ref());
    if let [Some(own), Some(theirs)] = embeddings
        && let Some(what) = own.difference(theirs)
    {
        let folder = folder.display();
        return Err(Error::config(format!(
            "{key}: {folder}: its vectors are not like those of data.tokens: {what}"
        )));
    }
    for (what, expected, found) in [
        ("the texts have the length", info.max_length, other.max_length),
        ("the vectors have the dimension", info.vector, other.vector),
    ] {
        // Texts alone have no dimension.
        if expected != found && found != 0 {
            return differs(what, expected.to_string(), found.to_string());
        }
    }
    Ok(())
}
