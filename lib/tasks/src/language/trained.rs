//! Trained decoders.

use super::batch::{Labelled, by_length};
use super::fit::require_fit;
use super::generator::Generator;
use super::record_patches::RecordPatches;
use super::sft::{Language, PROCESSOR, SftModel, SftTask, TEMPLATE, TOKENIZER};
use super::vision::Images;
use crate::trained::Opener;
use data::text::chat::{ChatTokenizer, LossOn, Messages};
use data::text::{TokenInfo, Tokenizer};
use learn::evaluate::Model;
use learn::generate::{Finish, Generation, Prompt, generate};
use learn::params::Builder;
use learn::task::Define;
use learn::trained::{Parts, TrainedModel};
use std::collections::BTreeMap;
use std::path::Path;
use unix::{Context, Error, Exit, Result};

/// Tokens of prompts and answers that are generated at once: their keys and values fill memory.
const BATCH_TOKENS: usize = 32_768;

/// A decoder with its weights, its tokenizer and its chat template.
#[derive(Debug)]
pub struct TrainedLanguage {
    pub(super) trained: TrainedModel<Language>,
    config: SftModel,
    /// Tokenizer and chat template.
    pub chat: ChatTokenizer,
    /// The tokens that end an answer.
    pub stops: Vec<i32>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its text, without special tokens.
    pub text: String,
    /// Number of its tokens.
    pub tokens: usize,
    /// Why it ended.
    pub finish: Finish,
}

impl TrainedLanguage {
    /// Restores the decoder of a checkpoint for tokens in `folder`, described by `info`.
    ///
    /// Errors: 65 when it is damaged, or its tokenizer or chat template are not those of the tokens; 66; 78 when it cannot
    /// read them.
    pub fn restore(
        parts: &Parts,
        opener: &Opener,
        info: &TokenInfo,
        folder: &Path,
    ) -> Result<Self> {
        let checkpoint = || parts.origin.checkpoint.display().to_string();
        let config: SftModel = parts.section("model").context(checkpoint)?;
        // The tokenizer is compared with that of the run below, which the message names.
        require_fit(&SftModel { tokenizer_hash: None, ..config.clone() }, info, folder)?;
        let template = info.chat.as_ref().map(|chat| &chat.template);
        let images = info.chat.as_ref().and_then(|chat| chat.images.as_ref());
        let processor = images.filter(|_| parts.dependencies.contains_key(PROCESSOR));
        let all = [
            (TOKENIZER, Some(&info.tokenizer_hash)),
            (TEMPLATE, template),
            (PROCESSOR, processor.map(|own| &own.processor)),
        ];
        for (name, own) in all {
            if parts.dependencies.get(name).map(|recorded| &recorded.hash) != own {
                return Err(Error::data(format!(
                    "{}: the {name} differs from that which {} was trained with; run ds-prep tokenize with the same \
                     tokenizer, template, image processor and limits",
                    folder.display(),
                    checkpoint()
                )));
            }
        }
        let build = |b: &mut Builder| {
            let model = Language::new(b, &config, info.special.padding);
            b.check().map(|()| model)
        };
        let trained = parts.restore(opener.mode, build).context(checkpoint)?;
        let loss_on = info.chat.as_ref().map_or(LossOn::default(), |chat| chat.loss_on);
        let chat = Tokenizer::open_chat(folder, info.max_length, loss_on)?;
        let stops = chat.stops()?;
        Ok(Self { trained, config, chat, stops })
    }

    /// The same model with compact parameters ([`ParamSet::compact`](learn::params::ParamSet::compact)).
    pub fn compact(mut self) -> Self {
        self.trained.params.compact(self.trained.mode.rounds());
        self
    }

    /// Where it comes from; `data` is the hash of the tokens that it must have been trained on.
    pub fn model(&self, data: &str) -> Model {
        let (origin, parameters) = (self.trained.origin.clone(), self.trained.params.count());
        Model { task: SftTask::SPEC.name, origin, parameters, data: Some(data.into()) }
    }

    /// Whether it has a vision tower.
    pub fn reads_images(&self) -> bool {
        self.config.vision.is_some()
    }

    /// Its configuration.
    pub fn config(&self) -> &SftModel {
        &self.config
    }

    /// The sum of the cross entropies of the labels of each sequence, which are numbered from `first` in messages. Errors: 1
    /// when one is not finite.
    pub fn losses(&self, sequences: &[Labelled], first: usize) -> Result<Vec<f64>> {
        let found = self.trained.run(|forward, model| model.losses(forward, sequences))?;
        match found.iter().position(|loss| !loss.is_finite()) {
            None => Ok(found),
            Some(i) => Err(Error::new(
                Exit::Failure,
                format!(
                    "{}: the loss of record {} (from 0) is not finite (NaN or infinity); use an earlier checkpoint (ckpt list \
                     RUN), or train again with a lower learning rate",
                    self.trained.origin.checkpoint.display(),
                    first + i
                ),
            )),
        }
    }

    /// The ids of the prompt, with these images, that asks for the next answer. Errors: 65 for messages that the template refuses, or that leave
    /// no room for an answer.
    pub fn prompt(&self, messages: &Messages, images: &RecordPatches) -> Result<Vec<i32>> {
        let tokens: Vec<usize> = images.grids().map(|grid| self.chat.image_tokens(grid)).collect();
        let ids = self.chat.prompt((messages, &tokens))?;
        self.require_room(&ids).map_err(Error::data)?;
        Ok(ids)
    }

    /// Checks that a prompt leaves room for an answer. Errors: what is wrong.
    pub fn require_room(&self, prompt: &[i32]) -> Result<(), String> {
        let limit = self.config.decoder.max_position_embeddings;
        match prompt.len() < limit {
            true => Ok(()),
            false => Err(format!(
                "the prompt has {} tokens, which leaves no room for an answer: the model reads at most {limit} \
                 (max_position_embeddings)",
                prompt.len()
            )),
        }
    }

    /// The answers to prompts with their images, each with the number that its random draws depend on. Prompts of similar length share a
    /// batch; an answer ends at the longest sequence of the model.
    pub fn answers(
        &self,
        prompts: &[(Prompt, Images)],
        generation: &Generation,
    ) -> Result<Vec<Answer>> {
        let limit = self.config.decoder.max_position_embeddings;
        let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (i, (own, _)) in prompts.iter().enumerate() {
            let room = limit.saturating_sub(own.ids.len()).min(generation.max_new_tokens);
            by_room.entry(room).or_default().push(i);
        }
        let mut found = vec![None; prompts.len()];
        for (room, own) in by_room {
            let generation = Generation { max_new_tokens: room, ..generation.clone() };
            let lengths: Vec<usize> = own.iter().map(|i| prompts[*i].0.ids.len() + room).collect();
            for which in by_length(&lengths, BATCH_TOKENS) {
                let which: Vec<usize> = which.into_iter().map(|at| own[at]).collect();
                let (batch, images): (Vec<Prompt>, Vec<Images>) =
                    which.iter().map(|i| prompts[*i]).unzip();
                let generated = self.trained.run(|forward, model| {
                    let generator = Generator::new(forward, model).with_images(&images);
                    generate(&generator, &batch, &generation)
                });
                for (i, own) in which.iter().zip(generated?) {
                    let text = self.chat.tokenizer.decode(&own.ids)?;
                    found[*i] = Some(Answer { text, tokens: own.ids.len(), finish: own.finish });
                }
            }
        }
        let missing = || Error::bug("a prompt without an answer");
        found.into_iter().map(|own| own.ok_or_else(missing)).collect()
    }
}
