//! A tokenizer and a chat template for decoders that are trained from random weights.

use super::images::TOKEN;
use super::messages_of;
use crate::images::{PROCESSOR_FILE, Preprocessor};
use crate::text::TextSet;
use serde_json::{Value, json};
use std::path::Path;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, TokenizerBuilder};
use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result};

/// Padding, and the beginning and the end of a turn. They come after all others, as in Qwen's vocabularies.
const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
/// What surrounds an image, and its place.
const OF_IMAGES: [&str; 3] = ["<|vision_start|>", "<|vision_end|>", TOKEN];
/// How Qwen2 cuts texts before it merges bytes; digits stay single.
const PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// ChatML.
const TEMPLATE: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// The same for messages that may show images.
const IMAGE_TEMPLATE: &str = "{% for message in messages %}\
{{ '<|im_start|>' + message['role'] + '\\n' }}\
{% if message['content'] is string %}{{ message['content'] }}\
{% else %}{% for part in message['content'] %}\
{% if part['type'] == 'image' %}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}{% else %}{{ part['text'] }}{% endif %}\
{% endfor %}{% endif %}{{ '<|im_end|>' + '\\n' }}\
{% endfor %}\
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/// Patches along each side of the square that becomes one token.
const MERGE: u32 = 2;

/// Writes a byte-level BPE tokenizer with at most `size` entries for the conversations of `set`, as tokenizer.json and
/// tokenizer_config.json, and a ChatML template, chat_template.jinja, to the folder `to`; for conversations with images also
/// preprocessor_config.json, with patches of `patch_size` pixels a side. Returns the number of entries.
///
/// Errors: 2 for a size of patches without images; 65 when `size` is too small for all bytes; 73 when the folder has another
/// tokenizer; 74.
pub(in crate::text) fn vocabulary(
    set: &TextSet,
    size: usize,
    patch_size: Option<u32>,
    to: &Path,
) -> Result<usize> {
    let bytes = ByteLevel::alphabet();
    let has_images = set.stores().iter().any(|store| store.image_store().is_some());
    if patch_size.is_some() && !has_images {
        return Err(Error::usage("--patch-size: no effect on conversations without images"));
    }
    let special = [&SPECIAL[..], if has_images { &OF_IMAGES } else { &[] }].concat();
    if size < bytes.len() + special.len() {
        return Err(Error::data(format!(
            "--size {size}: bytes and special tokens alone need {} entries",
            bytes.len() + special.len()
        )));
    }
    let mut turns = Vec::new();
    for i in 0..set.len() {
        let (store, record) = set.locate(i);
        let json = store.texts(record)[0].unwrap_or_default();
        let messages = messages_of(json);
        for message in messages.map_err(|cause| Error::data(format!("record {i}: {cause}")))? {
            let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
            let parts = message["content"].as_array().into_iter().flatten();
            let texts = parts.filter_map(|part| part["text"].as_str()).collect::<String>();
            turns.push(format!("{}\n{}{texts}", text("role"), text("content")));
        }
    }
    let unusable = |cause: tokenizers::Error| Error::data(format!("{}: {cause}", to.display()));
    let pattern = SplitPattern::Regex(PATTERN.into());
    let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(unusable)?;
    let byte_level = ByteLevel::new(false, true, false);
    let pre_tokenizer = Sequence::new(vec![split.into(), byte_level.into()]);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(Some(NFC))
        .with_pre_tokenizer(Some(pre_tokenizer))
        .with_post_processor(Some(byte_level))
        .with_decoder(Some(byte_level))
        .build()
        .map_err(unusable)?;
    let mut trainer = BpeTrainerBuilder::new()
        .show_progress(false)
        .vocab_size(size - special.len())
        .initial_alphabet(bytes.into_iter().collect())
        .build();
    tokenizer.train(&mut trainer, turns.into_iter()).map_err(unusable)?;
    tokenizer
        .add_special_tokens(special.iter().map(|token| AddedToken::from(*token, true)))
        .map_err(unusable)?;
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "model_max_length": 1_000_000,
    });
    let json = tokenizer.to_string(true).map_err(unusable)?;
    create_folder(to)?;
    let path = to.join("tokenizer.json");
    if path.exists() && std::fs::read(&path).is_ok_and(|old| old != json.as_bytes()) {
        let what = "another tokenizer exists; remove it, or choose another folder";
        return Err(Error::create(&path, what));
    }
    publish_bytes(&path, json.as_bytes())?;
    publish_bytes(&to.join("tokenizer_config.json"), format!("{config:#}\n").as_bytes())?;
    let template = if has_images { IMAGE_TEMPLATE } else { TEMPLATE };
    publish_bytes(&to.join("chat_template.jinja"), template.as_bytes())?;
    if has_images {
        let processor = Preprocessor::of_patches(patch_size.unwrap_or(16), MERGE);
        publish_bytes(&to.join(PROCESSOR_FILE), processor.text().as_bytes())?;
    }
    Ok(tokenizer.get_vocab_size(true))
}
