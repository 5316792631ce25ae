//! Embeddings of texts: one vector for each text, by an encoder, added to the tokens of the texts.
//!
//! All ranks encode blocks of texts, and rank 0 writes shards. Blocks have fixed bounds within their shard, so vectors do
//! not depend on the number of ranks or on interruptions.

mod encoder;
mod options;

pub use options::{EmbedOptions, TokenPooling};

use crate::common::record_source;
use crate::trained::Opener;
use data::inputs::Verifier;
use data::split::SplitName;
use data::text::{EmbeddingWriter, TextSplit, TokenInfo, TokenSet, tokenize};
use dist::Collective;
use encoder::{SentenceEncoder, Vectors};
use learn::evaluate::{Predictor, predict};
use learn::train::broadcast;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use unix::signal::Signals;
use unix::work::Work;
use unix::{Error, Result};

/// Texts per block.
const BLOCK: usize = 256;
/// The folder, in the output folder, of the tokens of a manifest.
const TOKENS: &str = "tokens";

/// Arguments of [`embed`].
pub struct EmbedRequest<'a> {
    /// A folder of transformers, a run directory or a checkpoint.
    pub model: &'a Path,
    /// Opens the model.
    pub opener: &'a Opener,
    /// A folder of tokens, or a split manifest of texts.
    pub data: &'a Path,
    /// The splits; None for all.
    pub splits: Option<&'a [SplitName]>,
    /// Records per shard, if given.
    pub shard: Option<usize>,
    /// The output folder.
    pub to: &'a Path,
    /// How vectors are computed.
    pub options: &'a EmbedOptions,
    /// The ranks that share the work; all of them can access the file system of `to`.
    pub ranks: &'a dyn Collective,
    /// Stop requests.
    pub signals: Signals,
}

/// Whether `data` are tokens, or a split manifest of texts.
pub fn is_of_texts(data: &Path) -> bool {
    TokenSet::is_at(data) || TextSplit::is_manifest(data)
}

/// Writes the embeddings of the texts of all splits, and returns a row for each split. A collective call; rank 0 has
/// `work`. A manifest is first tokenized with the tokenizer of the encoder.
///
/// Errors: 2 for options that do not fit the encoder; 65 for records without one text each, and for vectors that exist;
/// 66; 73 when the folder holds other vectors; 75 after a stop signal, with all complete shards stored.
pub fn embed(request: &EmbedRequest, mut work: Option<&mut Work>) -> Result<Vec<Value>> {
    let encoder = SentenceEncoder::open(request.model, request.opener, request.options)?;
    let check_stop =
        || request.signals.check_stop(|| "run the same command again to resume".into());
    let mut tokens = request.data.to_path_buf();
    if TextSplit::is_manifest(&tokens) {
        tokens = request.to.join(TOKENS);
        if let Some(work) = &mut work {
            work.progress(0, None)?;
            let (manifest, length) = (request.data, encoder.max_length);
            tokenize(manifest, &encoder.tokenizer, length, None, &tokens, |_| check_stop())?;
        }
        broadcast(request.ranks, ())?;
    }
    let splits = request.splits.unwrap_or(&SplitName::ALL).iter().copied();
    let splits =
        splits.filter(|name| request.splits.is_some() || TokenSet::has_split(&tokens, *name));
    let sets = splits.map(|name| TokenSet::open(&tokens, name)).collect::<Result<Vec<_>>>()?;
    sets.iter().try_for_each(|set| require_texts(set.info(), &tokens))?;
    let mut own = Embeddings { encoder, sets, output: None };
    if let Some(work) = work {
        own.output = Some(Output::open(&own, request, work)?);
    }
    predict(&mut own, request.ranks, request.signals)?;
    own.output.as_ref().map_or(Ok(Vec::new()), |output| output.rows(request.to))
}

/// Checks that each record is one text without a vector. Errors: 65.
fn require_texts(info: &TokenInfo, folder: &Path) -> Result<()> {
    let what = match info {
        TokenInfo { vectors_only: true, .. } => "its records are vectors without texts",
        TokenInfo { answers: true, .. } => "its records have contexts",
        TokenInfo { pairs: true, .. } => "its records have two texts",
        TokenInfo { vector: 1.., .. } => "its records have vectors already",
        _ => return Ok(()),
    };
    Err(Error::data(format!(
        "{}: {what}; embeddings are of records with one text and no vector",
        folder.display()
    )))
}

/// The prediction of all vectors that are missing.
struct Embeddings<'a> {
    encoder: SentenceEncoder,
    sets: Vec<TokenSet>,
    /// On rank 0.
    output: Option<Output<'a>>,
}

/// Some records of a shard of a set.
struct Block {
    set: usize,
    shard: usize,
    records: Range<usize>,
}

/// What rank 0 writes.
struct Output<'a> {
    writers: Vec<EmbeddingWriter>,
    /// Number of shards of each set that are made.
    made: Vec<usize>,
    /// Blocks that are not read yet, and blocks whose vectors are being computed.
    next: VecDeque<Block>,
    pending: VecDeque<Block>,
    /// The vectors of the shard that is being made, and number of its texts that were cut.
    vectors: Vec<f32>,
    cut: usize,
    /// Number of texts with stored vectors, at the start.
    done: usize,
    verifier: Verifier,
    signals: Signals,
    work: &'a mut Work,
}

impl<'a> Output<'a> {
    fn open(own: &Embeddings, request: &EmbedRequest, work: &'a mut Work) -> Result<Self> {
        let inputs = own.sets.iter().flat_map(TokenSet::input_files).collect();
        let verifier = Verifier::start(inputs, None)?;
        let (encoder, to) = (&own.encoder, request.to);
        let mut writers = Vec::new();
        let mut made = Vec::new();
        let mut next = VecDeque::new();
        for (set, tokens) in own.sets.iter().enumerate() {
            let (embedding, length) = (&encoder.embedding, encoder.dimensions);
            let writer = EmbeddingWriter::open(tokens, embedding, length, request.shard, to)?;
            record_source(writer.folder(), "encoder", request.model)?;
            let missing = writer.missing();
            made.push(missing.len());
            for shard in missing {
                let records = writer.records_of(shard);
                next.extend(records.clone().step_by(BLOCK).map(|first| Block {
                    set,
                    shard,
                    records: first..records.end.min(first + BLOCK),
                }));
            }
            writers.push(writer);
        }
        let missing: usize = next.iter().map(|block| block.records.len()).sum();
        let all: usize = own.sets.iter().map(TokenSet::len).sum();
        let done = all - missing;
        work.progress(done as u64, Some(all as u64))?;
        let (pending, vectors, signals) = (VecDeque::new(), Vec::new(), request.signals);
        Ok(Self { writers, made, next, pending, vectors, cut: 0, done, verifier, signals, work })
    }

    /// A row for each split.
    fn rows(&self, to: &Path) -> Result<Vec<Value>> {
        let row = |(writer, made): (&EmbeddingWriter, &usize)| {
            let set = TokenSet::open_split(writer.folder()).transpose()?;
            let set = set.ok_or_else(|| Error::bug(format!("no split in {}", to.display())))?;
            Ok(json!({
                "folder": writer.folder(),
                "texts": set.len(),
                "cut": set.cut(),
                "dimensions": set.info().vector,
                "shards_kept": writer.shards() - made,
                "shards_made": made,
            }))
        };
        self.writers.iter().zip(&self.made).map(row).collect()
    }
}

impl Predictor for Embeddings<'_> {
    type Input = (usize, Range<usize>);
    type Output = Vectors;

    fn noun(&self) -> &'static str {
        "texts"
    }

    fn items(&self) -> Option<u64> {
        Some(self.sets.iter().map(|set| set.len() as u64).sum())
    }

    fn done(&self) -> u64 {
        self.output.as_ref().map_or(0, |output| output.done as u64)
    }

    fn read(&mut self) -> Result<Option<(Self::Input, u64)>> {
        let Some(output) = &mut self.output else { return Ok(None) };
        let Some(block) = output.next.pop_front() else { return Ok(None) };
        let (set, records) = (block.set, block.records.clone());
        output.pending.push_back(block);
        let count = records.len() as u64;
        Ok(Some(((set, records), count)))
    }

    fn predict(&self, (set, records): Self::Input) -> Result<Vectors> {
        let (set, first) = (&self.sets[set], records.start);
        let texts = records.map(|i| set.texts(i)[0].unwrap_or_default());
        self.encoder.vectors(&texts.collect::<Vec<_>>(), first)
    }

    fn write(&mut self, found: Vec<Vectors>, done: u64) -> Result<()> {
        let Some(output) = &mut self.output else { return Ok(()) };
        for Vectors { values, cut } in found {
            let block = output.pending.pop_front();
            let Block { set, shard, records } =
                block.ok_or_else(|| Error::bug("vectors of no block"))?;
            output.vectors.extend(values);
            output.cut += cut;
            let writer = &mut output.writers[set];
            if records.end < writer.records_of(shard).end {
                continue;
            }
            // The inputs must match their hashes before anything that was made from them is stored.
            let signals = output.signals;
            output
                .verifier
                .finish(|| signals.check_stop(|| "run the same command again to resume".into()))?;
            let (vectors, cut) =
                (std::mem::take(&mut output.vectors), std::mem::take(&mut output.cut));
            writer.put(&self.sets[set], shard, &vectors, cut)?;
            output.work.stored();
        }
        output.work.progress(done, None)
    }
}
