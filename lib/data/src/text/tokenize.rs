//! Encodes the texts of a manifest once, before training.

use super::chat::ChatTokenizer;
use super::kind::is_zero;
use super::run_sizes::RunSizes;
use super::sentences::Language;
use super::store::{NO_ANSWER, RAGGED};
use super::token_arrays::{Arrays, Counts, Description};
use super::tokenize_chat::{ImagePlaces, conversations, image_sources};
use super::tokenizer::Encoded;
use super::tokenizer::Tokenizer;
use super::tokens::{FILE, TokenInfo, TokenSet, store_path};
use super::vector_stats::moments;
use super::windows::RecordTokens;
use super::{TextSet, TextStore};
use crate::images::PROCESSOR_FILE;
use crate::split::Source;
use crate::store::{Ragged, RecordStore, Writer};
use serde::Serialize;
use serde_json::json;
use std::ops::Range;
use std::path::Path;
use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result};

/// Number of texts encoded at once.
const BATCH: usize = 1024;
/// Size of a token in a store in bytes.
const TOKEN: u64 = 13;

/// Token counts of a split, for a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenizeReport {
    /// The split.
    pub split: String,
    /// Number of records.
    pub records: usize,
    /// Tokens of all records.
    pub tokens: usize,
    /// Number of tokens that stand for words outside the vocabulary.
    pub unknown: usize,
    /// Number of truncated records; contexts are never truncated.
    pub truncated: usize,
    /// Length of the vectors; 0 without.
    #[serde(skip_serializing_if = "is_zero")]
    pub vector: usize,
}

impl TokenizeReport {
    /// Counts the tokens of a set.
    pub fn of(set: &TokenSet) -> Self {
        let [tokens, unknown] = set.token_counts();
        let (split, records) = (set.name().to_string(), set.len());
        let (truncated, vector) = (set.truncated(), set.info().vector);
        Self { split, records, tokens, unknown, truncated, vector }
    }
}

/// Encodes all splits of `manifest` into the folder `to`. Texts are truncated to `max_length` tokens. Contexts are kept
/// whole, to be read in windows of `max_length` tokens that overlap by `stride` tokens, by default a quarter of
/// `max_length`. Calls `done` with the number of records encoded since its last call; an error of `done` ends the work.
/// After a failure, the same call resumes after the last complete shard.
/// Errors: 2 for a stride without contexts; 66, 65 for the manifest, its stores and texts; 73 when the folder holds
/// other tokens; 74; and those of `done`.
pub fn tokenize(
    manifest: &Path,
    tokenizer: &Tokenizer,
    max_length: usize,
    stride: Option<usize>,
    to: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<TokenSet>> {
    let sets = TextSet::open_all(manifest)?;
    if stride.is_some() && !sets[0].content().answers {
        return Err(Error::usage("--stride: no effect on texts, only on contexts of answers"));
    }
    let stride = stride.unwrap_or(max_length / 4);
    if sets[0].content().conversations {
        let what = "conversations, which need a tokenizer with a chat template";
        return Err(Error::usage(format!("{}: {what}", manifest.display())));
    }
    let encoder = Encoder::Texts([tokenizer, &tokenizer.unlimited()]);
    encode_all(&sets, &encoder, [max_length, stride], to, &mut done)
}

/// Encodes the conversations of all splits of `manifest` into the folder `to`, truncated to `max_length` tokens; see
/// [`tokenize`]. Errors: as there; 65 also for conversations that the chat template refuses, or without a token that a loss
/// counts.
pub fn tokenize_chat(
    manifest: &Path,
    chat: &ChatTokenizer,
    max_length: usize,
    to: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<TokenSet>> {
    let sets = TextSet::open_all(manifest)?;
    encode_all(&sets, &Encoder::Chat(chat), [max_length, 0], to, &mut done)
}

/// What encodes records.
enum Encoder<'a> {
    /// A tokenizer with and without a maximum length.
    Texts([&'a Tokenizer; 2]),
    Chat(&'a ChatTokenizer),
}

impl Encoder<'_> {
    fn tokenizer(&self) -> &Tokenizer {
        match self {
            Self::Texts([tokenizer, _]) => tokenizer,
            Self::Chat(chat) => &chat.tokenizer,
        }
    }
}

fn encode_all(
    sets: &[TextSet],
    encoder: &Encoder,
    lengths: [usize; 2],
    to: &Path,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<Vec<TokenSet>> {
    sets[0].stores().iter().try_for_each(RecordStore::verify)?;
    create_folder(to)?;
    if let Encoder::Chat(chat) = encoder {
        save(&to.join("chat_template.jinja"), chat.template.source())?;
        if let Some(images) = &chat.images {
            save(&to.join(PROCESSOR_FILE), &images.processor.text())?;
        }
    }
    save_tokenizer(encoder.tokenizer(), to)?;
    for set in sets.iter().filter(|set| !set.is_empty()) {
        encode(set, encoder, lengths, to, done)?;
    }
    let sets = sets.iter().filter(|set| !set.is_empty());
    sets.map(|set| TokenSet::open(to, set.name())).collect()
}

/// Writes a file of the tokenizer. Errors: 73 when the folder has that of another one.
fn save(path: &Path, content: &str) -> Result<()> {
    if path.exists() && std::fs::read(path).is_ok_and(|old| old != content.as_bytes()) {
        let cause = "the tokens there are of another tokenizer or image processor; remove them, or choose another folder";
        return Err(Error::create(path, cause));
    }
    publish_bytes(path, content.as_bytes())
}

/// Writes the tokenizer next to the tokens, so that new texts can be encoded in the same way.
pub(super) fn save_tokenizer(tokenizer: &Tokenizer, to: &Path) -> Result<()> {
    save(&to.join("tokenizer.json"), tokenizer.json())?;
    let special = tokenizer.special();
    let name = |id: Option<i32>| id.and_then(|id| tokenizer.token(id));
    let cut = tokenizer.cut();
    let inputs: &[&str] = match cut.no_segments {
        true => &["input_ids", "attention_mask"],
        false => &["input_ids", "token_type_ids", "attention_mask"],
    };
    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": inputs,
        "truncation_side": if cut.left { "left" } else { "right" },
        "pad_token": name(Some(special.padding)),
        "cls_token": name(special.cls),
        "sep_token": name(special.sep),
        "mask_token": name(special.mask),
        "unk_token": name(special.unk),
    });
    for (key, id) in [("bos_token", special.bos), ("eos_token", special.eos)] {
        if let Some(token) = name(id) {
            config[key] = token.into();
        }
    }
    publish_bytes(&to.join("tokenizer_config.json"), config.to_string().as_bytes())
}

fn encode(
    set: &TextSet,
    encoder: &Encoder,
    [max_length, stride]: [usize; 2],
    to: &Path,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    let (kind, tokenizer) = (set.content().clone(), encoder.tokenizer());
    let info = TokenInfo {
        labels: kind.labels,
        multi_label: kind.multi_label,
        pairs: kind.pairs,
        answers: kind.answers,
        chat: match encoder {
            Encoder::Texts(_) => None,
            Encoder::Chat(chat) => Some(chat.info()),
        },
        vocabulary: tokenizer.vocabulary(),
        special: tokenizer.special().clone(),
        max_length,
        stride: if kind.answers { stride } else { 0 },
        tokenizer_hash: tokenizer.hash().into(),
        vector: kind.vector,
        vectors_only: kind.vectors_only,
        language: language_of(set),
        embedding: None,
    };
    let all = |has: fn(&TextStore) -> bool| set.stores().iter().all(has);
    let description = Description {
        info,
        split: set.name(),
        manifest: set.manifest_hash().into(),
        stores: set.stores().iter().map(|store| store.hash().into()).collect(),
        groups: all(|store| store.description().has_groups()),
        ids: all(|store| store.description().columns.id.is_some()),
        criteria: all(|store| store.description().columns.criterion.is_some()),
        questions: kind.answers && all(|store| store.description().columns.text.is_some()),
        records: set.len(),
        images: image_sources(set, to)?,
        tokens: None,
    };
    let mut sizes = RunSizes::default();
    for i in 0..set.len() {
        let (store, record) = set.locate(i);
        let bytes = store.all_texts(record).len();
        let tokens = if description.info.answers { bytes + 8 } else { (bytes + 4).min(max_length) };
        let vector = 4 * description.info.vector as u64;
        sizes.add(bytes as u64 + TOKEN * tokens as u64 + vector);
    }
    let (folder, arrays) = (store_path(to, set.name()), Arrays::new(&description));
    let layout = arrays.layout(set.len(), sizes.shard_records());
    let mut writer = Writer::open(
        FILE,
        &folder,
        layout,
        description.clone(),
        |old: &Description| match *old == description {
            true => Ok(()),
            false => Err(Error::create(
                &folder,
                "it holds tokens of another manifest, tokenizer or length; remove it, or choose another folder",
            )),
        },
    )?;
    let info = &description.info;
    writer.fill(|range| shard(set, encoder, info, &arrays, range, done))?;
    writer.save()
}

/// Returns the synthetic language of all stores, if they share one.
fn language_of(set: &TextSet) -> Option<Language> {
    let mut all = set.stores().iter().map(|store| store.description().columns.language);
    let first = all.next()?;
    first.filter(|_| all.all(|other| other == first))
}

/// Encodes some records and returns the bytes of their arrays.
fn shard(
    set: &TextSet,
    encoder: &Encoder,
    info: &TokenInfo,
    arrays: &Arrays,
    range: Range<usize>,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<(Vec<Vec<u8>>, Counts)> {
    let [mut ids, mut offsets, mut types] = [0; 3].map(|_| Ragged::default());
    let [mut text_ids, mut text_types] = [0; 2].map(|_| Ragged::default());
    let mut texts: [Ragged; RAGGED.len()] = Default::default();
    let [mut sources, mut labels, mut contexts, mut answers] = [0; 4].map(|_| Vec::<u8>::new());
    let mut vectors: Vec<f32> = Vec::new();
    let (mut counts, mut images) = (Counts::default(), ImagePlaces::default());
    let unk = encoder.tokenizer().special().unk;
    let records: Vec<(&TextStore, usize)> = range.clone().map(|i| set.locate(i)).collect();
    for batch in records.chunks(BATCH) {
        let pairs: Vec<[Option<&str>; 2]> = batch.iter().map(|(s, i)| s.texts(*i)).collect();
        let of_texts = match encoder {
            Encoder::Chat(chat) => conversations(chat, batch, &mut images, &mut counts)?,
            Encoder::Texts(_) if info.answers && !info.is_joint() => Vec::new(),
            Encoder::Texts(_) if info.vectors_only => vec![Encoded::default(); batch.len()],
            Encoder::Texts([tokenizer, _]) => tokenizer.encode_all(&pairs)?,
        };
        for encoded in of_texts.iter().filter(|_| info.is_joint()) {
            text_ids.push(&encoded.ids);
            text_types.push(&encoded.types);
            counts.truncated += usize::from(encoded.truncated);
        }
        let records = match encoder {
            Encoder::Texts([_, unlimited]) if info.answers => {
                unlimited.encode_all(&with_contexts(batch, info))?
            }
            _ => of_texts,
        };
        for ((store, i), encoded) in batch.iter().zip(records) {
            RecordTokens::of(&encoded, "", (&[], &[]), info).map_err(|what| {
                let at = place(store, *i);
                Error::data(format!("{at}: {what}; raise --max-length, or lower --stride"))
            })?;
            contexts.extend(bytemuck::cast_slice::<i32, u8>(
                &[encoded.last.start, encoded.last.end].map(|at| at as i32),
            ));
            let answer = store.answer(*i).map_or(NO_ANSWER, |found| found.map(|at| at as i32));
            answers.extend(bytemuck::cast_slice::<i32, u8>(&answer));
            ids.push(&encoded.ids);
            offsets.push(&encoded.offsets);
            types.push(&encoded.types);
            counts.tokens += encoded.ids.len();
            let segments = encoded.types.iter().max().map_or(0, |most| usize::from(*most) + 1);
            counts.segments = counts.segments.max(segments);
            counts.truncated += usize::from(encoded.truncated);
            counts.unknown += encoded.ids.iter().filter(|id| Some(**id) == unk).count();
            let number = set.stores().iter().position(|other| std::ptr::eq(other, *store));
            sources.extend((number.unwrap_or(0) as u64).to_le_bytes());
            sources.extend((*i as u64).to_le_bytes());
            labels.extend(bytemuck::cast_slice::<i32, u8>(store.label(*i)));
            vectors.extend(store.vector(*i).unwrap_or_default());
            let [text, text2] = store.texts(*i);
            let [group, id] = [store.group_name(*i), store.id(*i)];
            let own = [text, text2, group, id, store.context(*i), store.criterion(*i)];
            for (ragged, own) in texts.iter_mut().zip(own) {
                ragged.push(own.unwrap_or_default().as_bytes());
            }
        }
        done(batch.len())?;
    }
    let used = texts.into_iter().zip(arrays.texts).filter(|(_, place)| place.is_some());
    let (ends, bytes): (Vec<_>, Vec<_>) = used.map(|(own, _)| (own.ends, own.items)).unzip();
    let label = arrays.label.map(|_| labels);
    let joint = |bytes: Vec<u8>| info.is_joint().then_some(bytes);
    let (image_ends, images, grids) = match images.finish(arrays) {
        Some([ends, images, grids]) => (Some(ends), Some(images), Some(grids)),
        None => (None, None, None),
    };
    let numbers = [ids.ends].into_iter().chain(ends).chain(joint(text_ids.ends));
    let numbers = numbers.chain(image_ends).chain([sources]).chain(images);
    let numbers = numbers.chain([ids.items, offsets.items]).chain(label);
    let of_contexts = [contexts, answers].into_iter().filter(|_| info.answers);
    counts.vector = moments(&vectors, info.vector);
    let vector = arrays.vector.map(|_| bytemuck::cast_slice(&vectors).to_vec());
    let numbers =
        numbers.chain(of_contexts).chain(grids).chain(vector).chain(joint(text_ids.items));
    let small = [types.items].into_iter().chain(joint(text_types.items)).chain(bytes);
    Ok((numbers.chain(small).collect(), counts))
}

/// The file and the line of a record.
pub(super) fn place(store: &TextStore, i: usize) -> String {
    format!("{}: line {}", store.origin(i).0.display(), store.line(i))
}

/// Returns the texts to encode for records with contexts: the question and the context, or the context alone.
fn with_contexts<'a>(
    records: &[(&'a TextStore, usize)],
    info: &TokenInfo,
) -> Vec<[Option<&'a str>; 2]> {
    let of = |(store, i): &(&'a TextStore, usize)| {
        let (question, context) = (store.texts(*i)[0], store.context(*i));
        match question.filter(|_| !info.is_joint()) {
            Some(question) => [Some(question), context],
            None => [context, None],
        }
    };
    records.iter().map(of).collect()
}
