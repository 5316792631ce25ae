//! Copies the rows of CSV, TSV and JSON files into a store of texts.
//!
//! The files are read twice, row by row: first to check every row, to collect the labels and to plan shards of limited
//! size, then to copy.

use super::answers::answer_of;
use super::chat::{Messages, messages_of, without_images};
use super::chunks::Chunks;
use super::columns::{Columns, cell, collected, require_label_limit};
use super::copy_rows::{Copy, ImageCopy};
use super::image_store;
use super::record_images::RecordImages;
use super::remarks::{Remarks, shown};
use super::rows::{Row, Rows, Seen, at_line};
use super::run_sizes::RunSizes;
use super::store::{Description, FILE, TextStore};
use super::vectors::{VectorOptions, Vectors};
use crate::split::Source;
use crate::store::{SourceFile, Store, Writer};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result, note, warn};

/// Maximum number of wrong labels reported at once.
const REPORTED: usize = 20;

/// What is copied into a store.
#[derive(Clone, Copy, Debug)]
pub struct TextImport<'a> {
    /// The columns of the files.
    pub columns: &'a Columns,
    /// Files with texts; none for vectors alone.
    pub files: &'a [PathBuf],
    /// The vectors of the records.
    pub vectors: &'a VectorOptions,
    /// How long texts are cut.
    pub chunks: Option<Chunks>,
}

/// Copies `files` into the store `folder`. Calls `done` with the number of rows read since its last call; an error of
/// `done` ends the import. After a failure, the same call resumes after the last complete shard.
///
/// Errors: 66; 65 for the files, with the line; 73 when the folder holds other texts; 74; and those of `done`.
pub fn import(
    columns: &Columns,
    files: &[PathBuf],
    folder: &Path,
    done: impl FnMut(usize) -> Result<()>,
) -> Result<TextStore> {
    let vectors = &VectorOptions::default();
    import_with(&TextImport { columns, files, vectors, chunks: None }, folder, done)
}

/// Copies texts with vectors, or either alone, into the store `folder`; see [`import`]. Errors: those of [`import`]; 65
/// also for vectors that are not finite, and for texts and vectors without a partner.
pub fn import_with(
    plan: &TextImport,
    folder: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<TextStore> {
    if plan.chunks.is_some() && (plan.columns.context.is_some() || plan.columns.text.is_none()) {
        return Err(Error::usage("--chunk: cuts texts, but the columns name a context or no text"));
    }
    let vectors = Vectors::open(plan.vectors)?;
    let mut images = RecordImages::default();
    let (mut description, shard_records) = match &vectors {
        Some(vectors) if plan.files.is_empty() => of_vectors(vectors, plan.vectors)?,
        vectors => survey(plan, vectors.as_ref(), &mut images, &mut done)?,
    };
    if description.dropped > 0 {
        let dropped = description.dropped;
        note!(
            "{dropped} rows were dropped: their label, criterion, answer or conversation cannot be used, or their group has \
             their criterion already"
        );
    }
    if !images.sizes.is_empty() {
        let copy = Copy::new(&description, plan.files, vectors.as_ref(), &images);
        description.images = Some(copy_images(copy, folder, &mut done)?);
    }
    let other = format!("{}: already holds texts from other files or columns", folder.display());
    let layout = description.layout(shard_records);
    let mut writer =
        Writer::open(FILE, folder, layout, description.clone(), |old: &Description| {
            match *old == description {
                true => Ok(()),
                false => Err(Error::create(
                    folder,
                    format!("{other}; remove it, or choose another folder"),
                )),
            }
        })?;
    let mut copy = Copy::new(&description, plan.files, vectors.as_ref(), &images);
    writer.fill(|range| Ok((copy.read(range, &mut done)?, ())))?;
    writer.save()?;
    TextStore::open(folder)
}

/// Copies the images of all records into their own store. Returns its hash.
fn copy_images(
    copy: Copy,
    folder: &Path,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<String> {
    let Copy { description, images, .. } = copy;
    let folder = image_store::image_folder(folder);
    let mut sizes = RunSizes::default();
    images.sizes.iter().for_each(|size| sizes.add(*size));
    let layout = image_store::layout(images.sizes.len(), sizes.shard_records());
    let own = image_store::Description {
        files: description.files.iter().map(|file| file.blake3.clone()).collect(),
        bytes: images.sizes.iter().sum(),
    };
    unix::space::ensure_space(&folder, own.bytes)?;
    let stale = || Error::data("it holds images of other records");
    let mut writer = Writer::open(image_store::FILE, &folder, layout, own.clone(), |old| {
        if *old == own { Ok(()) } else { Err(stale()) }
    })?;
    let mut copy = ImageCopy::new(copy);
    writer.fill(|range| Ok((copy.read(range, done)?, ())))?;
    writer.save()?;
    Ok(Store::<image_store::Description, ()>::open(image_store::FILE, &folder)?.hash().into())
}

/// Describes a store of vectors without texts. Returns the number of records per shard as well.
fn of_vectors(vectors: &Vectors, options: &VectorOptions) -> Result<(Description, usize)> {
    if options.ids.is_some() {
        return Err(Error::usage("--vector-ids: there are no texts with ids; name their files"));
    }
    let mut sizes = RunSizes::default();
    (0..vectors.rows()).for_each(|_| sizes.add(4 * vectors.length() as u64 + 8));
    let description = Description {
        columns: Columns::default(),
        labels: Vec::new(),
        dropped: 0,
        files: vectors.sources.clone(),
        vector: vectors.length(),
        vectors: vectors.sources.clone(),
        chunks: None,
        images: None,
    };
    Ok((description, sizes.shard_records()))
}

/// Reads all rows. Returns the description of the store and the number of records per shard.
fn survey(
    plan: &TextImport,
    vectors: Option<&Vectors>,
    images: &mut RecordImages,
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<(Description, usize)> {
    let &TextImport { columns, files, chunks, .. } = plan;
    let known = columns.known_labels();
    let mut found = BTreeSet::new();
    let (mut sources, mut wrong, mut dropped) = (Vec::new(), Vec::new(), 0);
    let (mut sizes, mut seen, mut remarks) = (RunSizes::default(), Seen::new(), Remarks::default());
    let mut partners = Partners::new(columns, vectors)?;
    for path in files {
        let mut rows = Rows::open(path, columns, chunks)?;
        let (mut records, mut read) = (0, 0);
        while let Some(mut row) = rows.next(&seen)? {
            read += 1;
            done(1)?;
            match checked(columns, &row) {
                Ok(Checked { labels, messages, .. }) => {
                    if !partners.has(&row, path) {
                        continue;
                    }
                    match images.add(&messages, &row, path)? {
                        None => continue,
                        Some(0) => {}
                        Some(_) => row.cells[0] = as_stored(&messages),
                    }
                    remarks.add(&row, labels.len());
                    found.extend(labels);
                    require_label_limit(found.len(), path)?;
                }
                Err(_) if !columns.strict => {
                    dropped += 1;
                    continue;
                }
                Err(what) => {
                    wrong.push(at_line(path, row.line, what));
                    if wrong.len() == REPORTED {
                        return Err(report(columns, &wrong, "the first of many"));
                    }
                }
            }
            rows.keep(&row, &mut seen);
            records += 1;
            let vector = vectors.map_or(0, |vectors| 4 * vectors.length());
            sizes.add((row.cells.iter().map(String::len).sum::<usize>() + vector) as u64);
        }
        dropped += rows.left_out;
        tell_unpaired(path, rows.unpaired());
        if read == 0 {
            return Err(Error::data(format!("{}: no rows", path.display())));
        }
        sources.push(SourceFile { path: path.clone(), blake3: rows.hash(), records });
    }
    if !wrong.is_empty() {
        return Err(report(columns, &wrong, "all"));
    }
    tell_unreadable(images);
    if !images.problems.is_empty() && sources.iter().all(|file| file.records == 0) {
        return Err(Error::data(format!("{}: none of the images can be read", files[0].display())));
    }
    partners.require(sources.iter().map(|file| file.records).sum(), dropped)?;
    let labels = match known {
        Some(labels) => {
            let absent: Vec<&String> =
                labels.iter().filter(|label| !found.contains(*label)).collect();
            if !absent.is_empty() {
                note!("no record has the label {}", shown(&absent));
            }
            labels
        }
        None => collected(found, &files[0])?,
    };
    if let Some(column) = columns.label.as_ref().filter(|_| labels.is_empty()) {
        let file = files[0].display();
        return Err(Error::data(format!("{file}: column `{column}`: no row has a label")));
    }
    remarks.tell(columns, &labels);
    let description = Description {
        columns: columns.clone(),
        labels,
        dropped,
        files: sources,
        vector: vectors.map_or(0, Vectors::length),
        vectors: vectors.map(|vectors| vectors.sources.clone()).unwrap_or_default(),
        chunks,
        images: None,
    };
    Ok((description, sizes.shard_records()))
}

/// A conversation with images as the store has it.
pub(super) fn as_stored(messages: &Messages) -> String {
    Value::Array(without_images(messages)).to_string()
}

/// Warns of the records whose images cannot be read.
fn tell_unreadable(images: &RecordImages) {
    let problems = &images.problems;
    for problem in problems.iter().take(REPORTED) {
        warn!("{problem}");
    }
    if !problems.is_empty() {
        let (count, listed) = (problems.len(), problems.len().min(REPORTED));
        let which =
            if listed < count { format!("; the first {listed} are listed") } else { String::new() };
        warn!("{count} records were left out: an image cannot be read{which}");
    }
}

fn tell_unpaired(path: &Path, [images, answers, others]: [usize; 3]) {
    if images + answers + others > 0 {
        note!(
            "{}: left out: {images} images without an answer (.md), {answers} answers without an image, {others} other files",
            path.display()
        );
    }
}

/// What a row holds.
pub(super) struct Checked {
    /// Its labels.
    pub labels: Vec<String>,
    /// Its answer.
    pub answer: [i32; 2],
    /// Its messages, if it is a conversation.
    pub messages: Messages,
}

/// Reads labels, answer and messages of a row. Errors: the problem in them.
pub(super) fn checked(columns: &Columns, row: &Row) -> std::result::Result<Checked, String> {
    let messages = match columns.is_conversation() {
        true => messages_of(&row.cells[0])?,
        false => Messages::new(),
    };
    let labels = match &columns.label {
        None => Vec::new(),
        Some(column) => {
            let found = columns.labels_of(&row.cells[cell::LABEL]);
            found.map_err(|value| wrong_label(columns, column, &value))?
        }
    };
    let criterion = &row.cells[cell::CRITERION];
    if columns.criteria.as_ref().is_some_and(|known| !known.contains(criterion)) {
        return Err(format!("{} is not one of `criteria`", unix::text::quote(criterion)));
    }
    Ok(Checked { labels, answer: answer_of(columns, row)?, messages })
}

fn wrong_label(columns: &Columns, column: &str, value: &str) -> String {
    let quoted = unix::text::quote(value);
    if value.is_empty() {
        return format!("column `{column}`: the label is empty");
    }
    let list = match (columns.normalise, &columns.mapping) {
        (true, _) => "neither a positive nor a negative label",
        (false, Some(_)) => "not a key of `mapping`",
        (false, None) => "not one of `labels`",
    };
    format!("column `{column}`: {quoted} is {list}")
}

fn report(columns: &Columns, wrong: &[Error], which: &str) -> Error {
    let first = match columns.messages.is_some() || columns.prompt.is_some() {
        true => format!(
            "conversations cannot be used ({which}); correct them, or drop such rows with `strict: false`:"
        ),
        false => format!(
            "labels or answers cannot be used ({which}); correct them, extend `labels` or `mapping` in columns.yaml, or \
             drop such rows with `strict: false`:"
        ),
    };
    Error::list(Exit::Data, first, wrong)
}

/// Which texts have a vector, and which vectors a text.
struct Partners<'a> {
    vectors: Option<&'a Vectors>,
    used: Vec<bool>,
    /// The texts without a vector.
    lonely: Vec<String>,
}

impl<'a> Partners<'a> {
    fn new(columns: &Columns, vectors: Option<&'a Vectors>) -> Result<Self> {
        let by_id = vectors.filter(|vectors| vectors.has_ids());
        if by_id.is_some() && columns.id.is_none() {
            return Err(Error::config("id: must name a column, the ids of --vector-ids"));
        }
        let used = vec![false; by_id.map_or(0, Vectors::rows)];
        Ok(Self { vectors, used, lonely: Vec::new() })
    }

    /// Looks up the vector of a row, if vectors have ids. Returns whether the row is kept.
    fn has(&mut self, row: &Row, path: &Path) -> bool {
        let Some(vectors) = self.vectors.filter(|vectors| vectors.has_ids()) else { return true };
        let id = &row.cells[cell::ID];
        match vectors.row_of(id) {
            Some(row) => self.used[row] = true,
            None => {
                let (file, line) = (path.display(), row.line);
                let id = unix::text::quote(id);
                self.lonely.push(format!("{file}: line {line}: no vector has its id {id}"));
                return false;
            }
        }
        true
    }

    /// Checks that each of `records` has a vector, after `dropped` rows were left out. Errors: 65.
    fn require(&self, records: usize, dropped: usize) -> Result<()> {
        let Some(vectors) = self.vectors else { return Ok(()) };
        if vectors.has_ids() {
            let [texts, unused] = vectors.require_paired(&self.used, &self.lonely)?;
            if texts + unused > 0 {
                note!("left out: {texts} texts without a vector, {unused} vectors without a text");
            }
            return Ok(());
        }
        if records == vectors.rows() {
            return Ok(());
        }
        let left =
            if dropped > 0 { format!(" after {dropped} rows were dropped") } else { String::new() };
        Err(Error::data(format!(
            "{}: {} vectors for {records} records{left}; by order each record needs one, else name their ids with --vector-ids",
            vectors.sources[0].path.display(),
            vectors.rows()
        )))
    }
}
