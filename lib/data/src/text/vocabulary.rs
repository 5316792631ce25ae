//! Builds a tokenizer for texts without a pretrained one from the frequent words and all characters of a training
//! split; for conversations, see [`chat::vocabulary`].

use super::TextSet;
use super::chat;
use super::tokenizer::Tokenizer;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{Normalizer, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result};

const SPECIAL: [&str; 5] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];

/// Writes a vocab.txt for BERT's tokenizer with at most `size` entries: special tokens, characters at the beginning of
/// words and inside them, and the most frequent words of `set`, with ties in alphabetical order. Also writes
/// tokenizer.json. Conversations get a byte-level BPE tokenizer and a chat template instead, and with images the settings of an image
/// processor with patches of `patch_size` pixels a side. Returns the number of entries.
///
/// Errors: 2 for a size of patches without images; 65 when `size` is too small for the characters, or there are no texts; 73 when the folder has a different vocabulary; 74.
pub fn vocabulary(set: &TextSet, size: usize, patch_size: Option<u32>, to: &Path) -> Result<usize> {
    if set.content().vectors_only {
        return Err(Error::data(
            "vectors without texts have no words; use the vocabulary of texts",
        ));
    }
    if set.content().conversations {
        return chat::vocabulary(set, size, patch_size, to);
    }
    if patch_size.is_some() {
        return Err(Error::usage("--patch-size: no effect on texts without images"));
    }
    let mut counts: HashMap<String, u64> = HashMap::new();
    for i in 0..set.len() {
        let (store, record) = set.locate(i);
        let found = words(&store.all_texts(record));
        for word in found.map_err(|cause| Error::data(format!("record {i}: {cause}")))? {
            *counts.entry(word).or_default() += 1;
        }
    }
    let characters: BTreeSet<char> = counts.keys().flat_map(|word| word.chars()).collect();
    let mut entries: Vec<String> = SPECIAL.map(String::from).to_vec();
    entries.extend(characters.iter().map(char::to_string));
    entries.extend(characters.iter().map(|c| format!("##{c}")));
    if entries.len() > size {
        let needed = entries.len();
        return Err(Error::data(format!(
            "--size {size}: the characters of the texts alone need {needed} entries"
        )));
    }
    let mut frequent: Vec<(String, u64)> =
        counts.into_iter().filter(|(word, _)| word.chars().count() > 1).collect();
    frequent.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    frequent.truncate(size - entries.len());
    entries.extend(frequent.into_iter().map(|(word, _)| word));
    let text = entries.join("\n") + "\n";
    let path = to.join("vocab.txt");
    if path.exists() && std::fs::read(&path).is_ok_and(|old| old != text.as_bytes()) {
        return Err(Error::create(
            &path,
            "another vocabulary exists; remove it, or choose another folder",
        ));
    }
    create_folder(to)?;
    publish_bytes(&path, text.as_bytes())?;
    let json = to.join("tokenizer.json");
    if !json.exists() {
        publish_bytes(&json, Tokenizer::open(to, SPECIAL.len())?.json().as_bytes())?;
    }
    Ok(entries.len())
}

/// Splits a text into words like BERT's tokenizer: lower case, without accents, punctuation on its own.
fn words(text: &str) -> std::result::Result<Vec<String>, tokenizers::Error> {
    let mut text = PreTokenizedString::from(text);
    let normalizer = BertNormalizer::default();
    text.normalize(|part| normalizer.normalize(part))?;
    BertPreTokenizer.pre_tokenize(&mut text)?;
    let parts = text.get_splits(OffsetReferential::Normalized, OffsetType::None);
    Ok(parts.into_iter().map(|(word, _, _)| word.to_string()).collect())
}
