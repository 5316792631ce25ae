//! Folders of tokens and vectors in one file for each record, as other programs write them: `tokens/SPLIT/STEM.npz` with
//! the arrays `input_ids` and `attention_mask`, and `latents/SPLIT/STEM.npy`.

use super::run_sizes::RunSizes;
use super::token_arrays::{Arrays, Counts, Description};
use super::tokenize::save_tokenizer;
use super::tokenizer::Tokenizer;
use super::tokens::{FILE, TokenInfo, TokenSet, store_path};
use super::vector_stats::moments;
use super::vectors::{Unpaired, axes};
use crate::fields::field::{Array, Axis, open_array};
use crate::fields::import::content_hash;
use crate::split::SplitName;
use crate::store::{Ragged, Writer};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::publish::create_folder;
use unix::{Error, Exit, Result, note};

/// Names of the folder of each split.
const NAMES: [&[&str]; 3] =
    [&["train", "training"], &["validation", "val", "valid", "dev"], &["test"]];
/// Ends of the names of files with tokens, which are no part of the stem.
const ENDS: [&str; 2] = ["_tokens.npz", ".npz"];

/// The files of a record.
struct Pair {
    stem: String,
    tokens: PathBuf,
    vector: PathBuf,
}

/// Copies the tokens and vectors in `from` into a folder of tokens. Records are in the order of their stems; padding is
/// left out, and of several vectors in a file the first is taken. The texts are what the tokenizer makes of the tokens.
///
/// Errors: 66; 65 for files without a partner, unless they are dropped, and for arrays that do not fit the tokenizer or
/// each other; 73 when the folder holds other tokens; and those of `done`.
pub fn import_tokens(
    from: &Path,
    tokenizer: &Tokenizer,
    unpaired: Unpaired,
    to: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<Vec<TokenSet>> {
    let mut lonely = Vec::new();
    let mut splits = Vec::new();
    for (name, folders) in SplitName::ALL.into_iter().zip(NAMES) {
        let exists = |folder: &&&str| from.join("tokens").join(folder).is_dir();
        if let Some(folder) = folders.iter().find(exists) {
            splits.push((name, pairs(from, folder, &mut lonely)?));
        }
    }
    if splits.is_empty() {
        let cause = "no folder tokens/train, tokens/validation or tokens/test with .npz files";
        return Err(Error::open(from, cause));
    }
    if !lonely.is_empty() && unpaired == Unpaired::Refuse {
        let count = lonely.len();
        let first = format!(
            "{}: {count} files have no partner; complete the folders, or leave them out with --unpaired drop:",
            from.display()
        );
        return Err(Error::list(Exit::Data, first, &lonely));
    }
    if !lonely.is_empty() {
        note!("left out: {} files without a partner", lonely.len());
    }
    create_folder(to)?;
    save_tokenizer(tokenizer, to)?;
    let (mut length, mut longest, mut several) = (None, 1, 0);
    let mut sizes = Vec::new();
    for (_, pairs) in &splits {
        let mut own = RunSizes::default();
        for pair in pairs {
            let (ids, vector) = (ids(pair, tokenizer)?, vector(pair)?);
            let expected = *length.get_or_insert(vector.0.len());
            if vector.0.len() != expected {
                let (file, found) = (pair.vector.display(), vector.0.len());
                return Err(Error::data(format!(
                    "{file}: {found} numbers, others have {expected}"
                )));
            }
            several += usize::from(vector.1 > 1);
            longest = longest.max(ids.len());
            own.add((ids.len() * 24 + 4 * expected + pair.stem.len()) as u64);
            done(1)?;
        }
        sizes.push(own.shard_records());
    }
    if several > 0 {
        note!("{several} files have several vectors, of which the first is taken");
    }
    let info = TokenInfo {
        chat: None,
        labels: Vec::new(),
        multi_label: false,
        pairs: false,
        answers: false,
        vocabulary: tokenizer.vocabulary(),
        special: tokenizer.special().clone(),
        max_length: longest,
        stride: 0,
        tokenizer_hash: tokenizer.hash().into(),
        vector: length.unwrap_or(0),
        vectors_only: false,
        language: None,
        embedding: None,
    };
    let mut made = Vec::new();
    for ((name, pairs), shard_records) in splits.iter().zip(sizes) {
        if pairs.is_empty() {
            continue;
        }
        write(pairs, *name, tokenizer, &info, shard_records, to, &mut done)?;
        made.push(TokenSet::open(to, *name)?);
    }
    Ok(made)
}

/// Returns the stems of the files in a folder whose names end in one of `ends`. Errors: 66.
fn stems(folder: &Path, ends: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    let cannot = |cause| Error::open(folder, cause);
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if let Some(stem) = ends.iter().find_map(|end| name.strip_suffix(end)) {
            found.insert(stem.to_string(), path);
        }
    }
    Ok(found)
}

/// Pairs the files of a split, and adds those without a partner to `lonely`.
fn pairs(from: &Path, folder: &str, lonely: &mut Vec<String>) -> Result<Vec<Pair>> {
    let tokens = stems(&from.join("tokens").join(folder), &ENDS)?;
    let vectors = from.join("latents").join(folder);
    let mut vectors = if vectors.is_dir() { stems(&vectors, &[".npy"])? } else { BTreeMap::new() };
    let mut found = Vec::new();
    for (stem, tokens) in tokens {
        match vectors.remove(&stem) {
            Some(vector) => found.push(Pair { stem, tokens, vector }),
            None => lonely.push(format!("{}: no vector", tokens.display())),
        }
    }
    lonely.extend(vectors.values().map(|path| format!("{}: no tokens", path.display())));
    Ok(found)
}

/// Reads a small array as one row, and returns the number of rows of the array.
fn first_row(path: &Path, name: Option<&str>) -> Result<(Vec<f32>, usize)> {
    let array: Array = open_array(path, name, false, axes)?;
    let mut values = vec![0.0; array.size(Axis::Channel).unwrap_or(0)];
    let rows = array.size(Axis::Sample).unwrap_or(1);
    if rows == 0 {
        return Err(Error::data(format!("{}: `{}` is empty", path.display(), array.name())));
    }
    array.read(0, 0..1, &mut values)?;
    Ok((values, rows))
}

/// Reads the ids of a record that the mask keeps.
fn ids(pair: &Pair, tokenizer: &Tokenizer) -> Result<Vec<i32>> {
    let [(ids, _), (mask, _)] = [
        first_row(&pair.tokens, Some("input_ids"))?,
        first_row(&pair.tokens, Some("attention_mask"))?,
    ];
    let file = pair.tokens.display();
    if ids.len() != mask.len() {
        let (ids, mask) = (ids.len(), mask.len());
        return Err(Error::data(format!("{file}: {ids} input_ids, but {mask} values in the mask")));
    }
    let kept = ids.iter().zip(&mask).filter(|(_, mask)| **mask != 0.0).map(|(id, _)| *id);
    let kept: Vec<f32> = kept.collect();
    let most = tokenizer.vocabulary();
    if let Some(id) = kept.iter().find(|id| id.fract() != 0.0 || !(0.0..most as f32).contains(*id))
    {
        return Err(Error::data(format!(
            "{file}: input_ids has {id}, but the tokenizer has {most} ids; --tokenizer must be that of the tokens"
        )));
    }
    match kept.is_empty() {
        true => Err(Error::data(format!("{file}: the mask leaves no token"))),
        false => Ok(kept.into_iter().map(|id| id as i32).collect()),
    }
}

fn vector(pair: &Pair) -> Result<(Vec<f32>, usize)> {
    let (values, rows) = first_row(&pair.vector, None)?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => {
            let (file, value) = (pair.vector.display(), values[at]);
            Err(Error::data(format!("{file}: the vector is {value} at {at}; replace the values")))
        }
        None => Ok((values, rows)),
    }
}

fn write(
    pairs: &[Pair],
    split: SplitName,
    tokenizer: &Tokenizer,
    info: &TokenInfo,
    shard_records: usize,
    to: &Path,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<()> {
    // There is no manifest; the files stand for it.
    let mut hasher = blake3::Hasher::new();
    for pair in pairs {
        hasher.update(pair.stem.as_bytes()).update(b"\n");
        hasher.update(content_hash(&pair.tokens)?.as_bytes());
        hasher.update(content_hash(&pair.vector)?.as_bytes());
    }
    let hash = hasher.finalize().to_hex().to_string();
    let description = Description {
        info: info.clone(),
        split,
        manifest: hash.clone(),
        stores: vec![hash],
        groups: false,
        ids: true,
        criteria: false,
        questions: false,
        records: pairs.len(),
        images: Vec::new(),
        tokens: None,
    };
    let (folder, arrays) = (store_path(to, split), Arrays::new(&description));
    let layout = arrays.layout(pairs.len(), shard_records);
    let accept = |old: &Description| match *old == description {
        true => Ok(()),
        false => {
            let cause = "it holds other tokens; remove it, or choose another folder";
            Err(Error::create(&folder, cause))
        }
    };
    let mut writer = Writer::open(FILE, &folder, layout, description.clone(), accept)?;
    writer.fill(|range| shard(pairs, tokenizer, info.vector, range, done))?;
    writer.save()
}

fn shard(
    pairs: &[Pair],
    tokenizer: &Tokenizer,
    length: usize,
    range: Range<usize>,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<(Vec<Vec<u8>>, Counts)> {
    let [mut tokens, mut offsets, mut types, mut texts, mut stems] =
        [0; 5].map(|_| Ragged::default());
    let (mut sources, mut vectors) = (Vec::new(), Vec::new());
    let mut counts = Counts { segments: 1, ..Counts::default() };
    for (i, pair) in range.clone().zip(&pairs[range]) {
        let ids = ids(pair, tokenizer)?;
        counts.tokens += ids.len();
        counts.unknown += ids.iter().filter(|id| Some(**id) == tokenizer.special().unk).count();
        tokens.push(&ids);
        offsets.push(&vec![[0_i32; 2]; ids.len()]);
        types.push(&vec![0_u8; ids.len()]);
        texts.push(tokenizer.decode(&ids)?.as_bytes());
        stems.push(pair.stem.as_bytes());
        sources.extend([0_u64.to_le_bytes(), (i as u64).to_le_bytes()].concat());
        vectors.extend(vector(pair)?.0);
        done(1)?;
    }
    counts.vector = moments(&vectors, length);
    let vectors = bytemuck::cast_slice::<f32, u8>(&vectors).to_vec();
    // In the order of `Arrays`: ends, numbers, then bytes.
    let arrays = vec![
        tokens.ends,
        texts.ends,
        stems.ends,
        sources,
        tokens.items,
        offsets.items,
        vectors,
        types.items,
        texts.items,
        stems.items,
    ];
    Ok((arrays, counts))
}
