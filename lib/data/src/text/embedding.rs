//! Tokens with the vectors that an encoder computes from their texts: a copy of the tokens in which each record has a
//! vector. It is valid only for these tokens, this encoder and these settings, which its index records.

use super::token_arrays::{Arrays, Counts, Description};
use super::tokens::{FILE, TokenSet, store_path};
use super::vector_stats::moments;
use crate::seal::SealedFile;
use crate::split::SplitName;
use crate::store::{Index, Writer};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::publish::{create_folder, publish_bytes};
use unix::{Error, Result, small};

/// The files of a tokenizer in a folder of tokens.
const TOKENIZER: [&str; 2] = ["tokenizer.json", "tokenizer_config.json"];
/// Maximum size of a file of a tokenizer in bytes.
const MAX_TOKENIZER: u64 = 1 << 30;
/// Maximum number of moments in an index, which holds those of each dimension for each shard, 130 bytes each.
const MAX_MOMENTS: usize = 400_000;
/// Number of shards of a split, if shards would otherwise have fewer records than [`SHARD`].
const SHARDS: usize = 128;
/// Records per shard of a small split.
const SHARD: usize = 1024;

/// The file in the folder of a split that tells where the encoder is.
pub const SOURCE: &str = "source.json";

/// Tokens with embeddings; they are read like any others.
pub(super) const MADE: SealedFile = SealedFile { made_by: "latent-cache make", ..FILE };

/// How an encoder computed vectors from texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Embedding {
    /// Hash of the weights and the shape of the encoder, and of its tokenizer.
    pub encoder: String,
    /// How the states of the tokens become one vector: mean, cls or max.
    pub pooling: String,
    /// Whether vectors were divided by their Euclidean norm.
    pub normalize: bool,
    /// Maximum number of tokens of a text that the encoder read.
    pub max_length: usize,
    /// Whether matrix products rounded their operands to bf16.
    #[serde(default, skip_serializing_if = "is_off")]
    pub amp: bool,
}

fn is_off(key: &bool) -> bool {
    !*key
}

impl Embedding {
    /// Describes how other vectors differ from these; None if they do not.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let state = |on: bool| if on { "normalized" } else { "not normalized" };
        if self.encoder != other.encoder {
            let short = |hash: &str| hash.chars().take(12).collect::<String>();
            let (theirs, own) = (short(&other.encoder), short(&self.encoder));
            return Some(format!("they are of the encoder {theirs}, not {own}"));
        }
        if self.pooling != other.pooling {
            return Some(format!("their pooling is {}, not {}", other.pooling, self.pooling));
        }
        if self.normalize != other.normalize {
            return Some(format!("they are {}", state(other.normalize)));
        }
        let (own, theirs) = (self.max_length, other.max_length);
        if own != theirs {
            return Some(format!("the encoder read up to {theirs} tokens, not {own}"));
        }
        let option = if other.amp { "with" } else { "without" };
        (self.amp != other.amp).then(|| format!("they were made {option} --amp"))
    }

    /// Identifies the encoder and its settings.
    pub fn hash(&self) -> String {
        let Self { encoder, pooling, normalize, max_length, amp } = self;
        let amp = if *amp { "\namp" } else { "" };
        let text = format!("{encoder}\n{pooling}\n{normalize}\n{max_length}{amp}");
        blake3::hash(text.as_bytes()).to_hex().to_string()
    }
}

/// A split of tokens with embeddings that is being written.
#[derive(Debug)]
pub struct EmbeddingWriter {
    folder: PathBuf,
    arrays: Arrays,
    length: usize,
    writer: Writer<Description, Counts>,
}

impl EmbeddingWriter {
    /// Resumes or begins the copy of `from` in the folder `to`, with vectors of `length` numbers. A shard has `shard`
    /// records, by default 1024, or a 128th of the split if that is more.
    ///
    /// Errors: 2 for too many shards; 73 when the folder holds anything else, with what differs; 74.
    pub fn open(
        from: &TokenSet,
        embedding: &Embedding,
        length: usize,
        shard: Option<usize>,
        to: &Path,
    ) -> Result<Self> {
        let mut description = from.store.index().description.clone();
        description.info.vector = length;
        description.info.embedding = Some(embedding.clone());
        description.tokens = Some(from.hash().into());
        let usual = from.len().div_ceil(SHARDS).next_power_of_two().max(SHARD);
        let shard = shard.unwrap_or(usual);
        if from.len().div_ceil(shard) * length > MAX_MOMENTS {
            return Err(Error::usage(format!(
                "--shard {shard}: {} records would need more shards than an index can list; use at least --shard {usual}",
                from.len()
            )));
        }
        create_folder(to)?;
        require_same_splits(&description, to)?;
        copy_tokenizer(from.folder(), to)?;
        let (folder, arrays) = (store_path(to, from.name()), Arrays::new(&description));
        let layout = arrays.layout(from.len(), shard);
        let accept = |old: &Description| match difference(&description, old) {
            None => Ok(()),
            Some(what) => Err(refused(&folder, &what)),
        };
        let writer = Writer::open(MADE, &folder, layout, description.clone(), accept)?;
        Ok(Self { folder, arrays, length, writer })
    }

    /// The folder of the split.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The numbers of the shards that are missing or damaged, ascending. Reads all others.
    pub fn missing(&self) -> Vec<usize> {
        self.writer.missing()
    }

    /// Number of shards.
    pub fn shards(&self) -> usize {
        self.writer.index.shards.len()
    }

    /// The records of a shard.
    pub fn records_of(&self, shard: usize) -> Range<usize> {
        self.writer.records_of(shard)
    }

    /// Writes a shard: the tokens of its records in `from`, and their `vectors`, one after the other. The encoder read
    /// only the beginning of `cut` texts. Errors: 70 for the wrong number of values; 73, 74.
    pub fn put(
        &mut self,
        from: &TokenSet,
        shard: usize,
        vectors: &[f32],
        cut: usize,
    ) -> Result<()> {
        let records = self.records_of(shard);
        let vector = bytemuck::cast_slice(vectors).to_vec();
        let mut arrays = from.store.copy(records.clone());
        let place = self.arrays.vector.filter(|place| *place <= arrays.len());
        arrays.insert(place.ok_or_else(|| Error::bug("no array for vectors"))?, vector);
        let counts = Counts { vector: moments(vectors, self.length), cut, ..counts(from, records) };
        self.writer.put(shard, &arrays, counts)
    }
}

/// Counts of some records, without vectors. Which records were truncated is not known: the truncated ones of a shard
/// count for its first record.
fn counts(set: &TokenSet, records: Range<usize>) -> Counts {
    let (index, unk) = (set.store.index(), set.info().special.unk);
    let begins = |shard: &usize| records.contains(&(shard * index.layout.shard_records));
    let shards = index.summaries().enumerate().filter(|(shard, _)| begins(shard));
    let truncated = shards.map(|(_, counts)| counts.truncated).sum();
    let mut found = Counts { truncated, ..Counts::default() };
    for i in records.clone() {
        let (ids, segments) = (set.ids(i), set.types(i).iter().max());
        found.tokens += ids.len();
        found.unknown += ids.iter().filter(|id| Some(**id) == unk).count();
        found.segments = found.segments.max(segments.map_or(0, |most| usize::from(*most) + 1));
    }
    found
}

fn refused(folder: &Path, what: &str) -> Error {
    Error::create(folder, format!("it holds {what}; remove it, or choose another folder"))
}

/// Describes how what a folder holds differs from what is to be written.
fn difference(new: &Description, old: &Description) -> Option<String> {
    if old == new {
        return None;
    }
    let (Some(own), Some(theirs)) = (&new.info.embedding, &old.info.embedding) else {
        return Some("tokens whose vectors no encoder made".into());
    };
    if let Some(what) = own.difference(theirs) {
        return Some(format!("other vectors: {what}"));
    }
    if new.info.vector != old.info.vector {
        let (found, expected) = (old.info.vector, new.info.vector);
        return Some(format!("vectors of {found} numbers, not {expected}"));
    }
    Some("vectors of other texts or tokens".into())
}

/// Checks that the other splits in the folder have vectors of the same kind. Errors: 73.
fn require_same_splits(new: &Description, to: &Path) -> Result<()> {
    for name in SplitName::ALL.into_iter().filter(|name| *name != new.split) {
        let folder = store_path(to, name);
        // A damaged split is replaced when it is made again.
        let Ok((old, _)) = Index::<Description, Counts>::load(MADE, &folder) else { continue };
        let old = Description {
            split: new.split,
            tokens: new.tokens.clone(),
            records: new.records,
            ..old.description
        };
        if let Some(what) = difference(new, &old) {
            return Err(refused(&folder, &what));
        }
    }
    Ok(())
}

/// Copies the tokenizer of a folder of tokens. Errors: 66; 73 when there is another one.
fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    for name in TOKENIZER {
        let (bytes, path) = (small::read(&from.join(name), MAX_TOKENIZER)?, to.join(name));
        match std::fs::read(&path) {
            Ok(old) if old == bytes => continue,
            Ok(_) if name == TOKENIZER[0] => {
                return Err(refused(&path, "another tokenizer"));
            }
            _ => publish_bytes(&path, &bytes)?,
        }
    }
    Ok(())
}
