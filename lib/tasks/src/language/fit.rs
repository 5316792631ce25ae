//! Whether a model can read tokens.

use super::sft::{SftModel, TOKENIZER};
use data::text::chat::ImageTokens;
use data::text::{TokenInfo, TokenSet};
use learn::init::InitFrom;
use learn::trained::Parts;
use std::path::Path;
use unix::{Error, Result};

/// Checks that a model can read the tokens in `folder`. Errors: 78.
pub(super) fn require_fit(config: &SftModel, info: &TokenInfo, folder: &Path) -> Result<()> {
    let bad = |what: String| Err(Error::config(format!("{}: {what}", folder.display())));
    if info.chat.is_none() {
        return bad(
            "these are not tokens of conversations; import records with messages, or with prompt and completion, and tokenize \
             them with the tokenizer of a decoder"
                .into(),
        );
    }
    let images = info.chat.as_ref().and_then(|chat| chat.images.as_ref());
    if let (Some(own), Some(vision)) = (images, &config.vision)
        && own.token as usize != vision.image_token_id
    {
        return bad(format!(
            "the token of images is {}, but model.vision.image_token_id is {}; set the key to that of the tokenizer",
            own.token, vision.image_token_id
        ));
    }
    if config.decoder.vocab_size < info.vocabulary {
        return bad(format!(
            "the tokenizer has {} ids, but model.decoder.vocab_size is {}",
            info.vocabulary, config.decoder.vocab_size
        ));
    }
    match &config.tokenizer_hash {
        Some(hash) if *hash != info.tokenizer_hash => bad(format!(
            "the tokens were made with tokenizer {}, but model.tokenizer_hash is {hash}; run ds-prep tokenize with the \
             tokenizer of the decoder, or set the key to null",
            info.tokenizer_hash
        )),
        _ => Ok(()),
    }
}

/// Describes the special tokens of a tokenizer. Errors: 78 for one that a model with `vocabulary` tokens does not have.
pub(super) fn special_tokens(info: &TokenInfo, vocabulary: usize) -> Result<String> {
    let own = &info.special;
    let images = info.chat.as_ref().and_then(|chat| chat.images.as_ref());
    let image = images.map(|images| images.token);
    let all =
        [("padding", Some(own.padding)), ("bos", own.bos), ("eos", own.eos), ("image", image)];
    let all: Vec<(&str, i32)> =
        all.into_iter().filter_map(|(name, id)| Some((name, id?))).collect();
    let has = |id: i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
    match all.iter().find(|(_, id)| !has(*id)) {
        Some((name, id)) => Err(Error::config(format!(
            "the token {name} is {id}, but model.decoder.vocab_size is {vocabulary}"
        ))),
        None => {
            let all: Vec<String> = all.iter().map(|(name, id)| format!("{name} {id}")).collect();
            Ok(format!("{}, of {} ids", all.join(", "), info.vocabulary))
        }
    }
}

/// Opens what the images of a set are cut with; None if it has no images. Errors: 65, 66; 78 when the model has no vision tower, or
/// one for other patches.
pub(super) fn image_tokens(config: &SftModel, set: &TokenSet) -> Result<Option<ImageTokens>> {
    let folder = set.folder();
    let info = set.info().chat.as_ref().and_then(|chat| chat.images.as_ref());
    let Some(info) = info.filter(|_| set.has_images()) else { return Ok(None) };
    let bad = |what: String| Err(Error::config(format!("{}: {what}", folder.display())));
    let Some(vision) = &config.vision else {
        return bad(
            "conversations have images, but the model has no vision tower: model.vision is null"
                .into(),
        );
    };
    let tokens = ImageTokens::of_tokens(folder, info)?;
    let processor = &tokens.processor;
    let sizes = [
        ("patch_size", processor.patch_size, vision.patch_size),
        ("merge_size", processor.merge_size, vision.spatial_merge_size),
        ("temporal_patch_size", processor.temporal_patch_size, vision.temporal_patch_size),
    ];
    match sizes.iter().find(|(_, given, own)| *given as usize != *own) {
        None => Ok(Some(tokens)),
        Some((key, given, own)) => bad(format!(
            "{key} of the image processor is {given}, but model.vision has {own}; take both from the same model"
        )),
    }
}

/// Checks that no sequence of a set is longer than the model permits. Errors: 78.
pub(super) fn require_lengths(config: &SftModel, set: &TokenSet, folder: &Path) -> Result<()> {
    let (longest, limit) = (longest(set), config.decoder.max_position_embeddings);
    match longest <= limit {
        true => Ok(()),
        false => Err(Error::config(format!(
            "{}: a conversation of the {} split has {longest} tokens, but model.decoder.max_position_embeddings is {limit}; \
             run ds-prep tokenize with --max-length {limit}",
            folder.display(),
            set.name()
        ))),
    }
}

fn longest(set: &TokenSet) -> usize {
    (0..set.len()).map(|i| set.ids(i).len()).max().unwrap_or(0)
}

/// If training starts from a checkpoint, checks that it was trained with the tokenizer of the tokens in `folder`. Errors: 78.
pub(super) fn require_origin(init: &InitFrom, info: &TokenInfo, folder: &Path) -> Result<()> {
    // An unreadable checkpoint is no error here: a resumed run may not need it any more, and a new run reports the
    // problem when it loads the weights.
    let Ok(parts) = Parts::read(&init.from, init.weights) else { return Ok(()) };
    match parts.dependencies.get(TOKENIZER) {
        Some(own) if own.hash != info.tokenizer_hash => Err(Error::config(format!(
            "{}: its tokenizer differs from that which {} was trained with; run ds-prep tokenize with the same one",
            folder.display(),
            init.from.display()
        ))),
        _ => Ok(()),
    }
}
