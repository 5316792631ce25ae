//! A trained network with what it needs to read texts and vectors.

use super::batch::Preparation;
use super::config::{CycleVaeData, CycleVaeLoss, CycleVaeModel};
use super::model::Network;
use super::sample::Runner;
use super::sets::{TOKENIZER, open_split, require_embedding, sizes};
use crate::common::normalisation::Normalisation;
use crate::trained::Opener;
use data::split::SplitName;
use data::text::{TokenInfo, Tokenizer};
use learn::params::Builder;
use learn::trained::{Parts, TrainedModel};
use std::path::{Path, PathBuf};
use unix::{Context, Error, Result};

/// The name of the folder of tokens in `--with NAME=FOLDER`.
pub(super) const TOKENS: &str = "tokens";

/// A network with its weights and its tokenizer.
pub(super) struct TrainedPair {
    pub trained: TrainedModel<Network>,
    pub preparation: Preparation,
    pub loss: CycleVaeLoss,
    pub info: TokenInfo,
    pub tokenizer: Tokenizer,
}

impl TrainedPair {
    /// Restores the network of a checkpoint for the tokens in `folder`, or those that it was trained on, or those of
    /// `--with tokens=FOLDER`.
    ///
    /// Errors: 65 when the checkpoint is damaged, or its tokenizer is not that of the tokens; 66 without tokens.
    pub fn restore(parts: &Parts, opener: &Opener, folder: Option<&Path>) -> Result<Self> {
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let own = || -> Result<PathBuf> {
            let replaced = opener.with.iter().find(|(name, _)| name == TOKENS);
            match replaced {
                Some((_, folder)) => Ok(folder.clone()),
                None => Ok(parts.section::<CycleVaeData>("data").context(checkpoint)?.tokens),
            }
        };
        let folder = folder.map_or_else(own, |folder| Ok(folder.to_path_buf()))?;
        let set = open_split(&folder, SplitName::Train).map_err(|error| {
            error.context(format!(
                "the tokens that {} was trained with; give their new path with --with {TOKENS}=FOLDER",
                checkpoint()
            ))
        })?;
        let info = set.info().clone();
        let recorded = parts.dependencies.get(TOKENIZER);
        if recorded.is_none_or(|recorded| recorded.hash != info.tokenizer_hash) {
            return Err(Error::data(format!(
                "{}: its tokenizer differs from that which {} was trained with; run ds-prep tokenize with the same \
                 tokenizer",
                folder.display(),
                checkpoint()
            )));
        }
        require_embedding(parts, &info, &folder)?;
        let config: CycleVaeModel = parts.section("model").context(checkpoint)?;
        let sizes = sizes(&info, &folder)?;
        let build = |b: &mut Builder| {
            let network = Network::new(b, &config, sizes);
            b.check().map(|()| network)
        };
        let trained = parts.restore(opener.mode, build).context(checkpoint)?;
        let normalisation = Normalisation::restore("vector", parts).context(checkpoint)?;
        let (length, padding) = (info.max_length, info.special.padding);
        Ok(Self {
            trained,
            preparation: Preparation { length, padding, normalisation },
            loss: parts.section::<CycleVaeLoss>("loss").context(checkpoint)?.resolved(),
            tokenizer: Tokenizer::open(&folder, info.max_length)?,
            info,
        })
    }

    /// Runs `body` without gradients.
    pub fn run<R>(&self, body: impl FnOnce(Runner) -> Result<R>) -> Result<R> {
        self.trained.run(|forward, network| body(Runner { network, forward, loss: &self.loss }))
    }

    /// Returns the tokens of a text without special tokens, which have no part in comparisons.
    pub fn words(&self, ids: &[i32]) -> Vec<i32> {
        let special = &self.info.special;
        let is_special = |id: &i32| {
            *id == special.padding || [special.cls, special.sep, special.mask].contains(&Some(*id))
        };
        ids.iter().copied().filter(|id| !is_special(id)).collect()
    }

    /// Returns the text of tokens.
    pub fn text(&self, ids: &[i32]) -> Result<String> {
        self.tokenizer.decode(&self.words(ids))
    }
}
