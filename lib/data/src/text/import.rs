//! Copies the rows of CSV, TSV and JSON files into a store of texts.
//!
//! The files are read twice, row by row: first to check every row, to collect the labels and to plan shards of limited
//! size, then to copy.

use super::answers::answer_of;
use super::columns::{Columns, cell, collected, require_label_limit};
use super::remarks::{Remarks, shown};
use super::rows::{Row, Rows, Seen, at_line};
use super::store::{Arrays, Description, FILE, RAGGED, TextStore};
use crate::split::Source;
use crate::store::{Ragged, SourceFile, Writer};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result, note};

/// Maximum size of a shard in bytes, unless a single record is larger.
const SHARD: u64 = 64 << 20;
/// Maximum number of wrong labels reported at once.
const REPORTED: usize = 20;

/// Copies `files` into the store `folder`. Calls `done` with the number of rows read since its last call; an error of
/// `done` ends the import. After a failure, the same call resumes after the last complete shard.
///
/// Errors: 66; 65 for the files, with the line; 73 when the folder holds other texts; 74; and those of `done`.
pub fn import(
    columns: &Columns,
    files: &[PathBuf],
    folder: &Path,
    mut done: impl FnMut(usize) -> Result<()>,
) -> Result<TextStore> {
    let (description, shard_records) = survey(columns, files, &mut done)?;
    if description.dropped > 0 {
        let dropped = description.dropped;
        note!(
            "{dropped} rows were dropped: their label, criterion or answer cannot be used, or their group has their criterion \
             already"
        );
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
    let mut copy = Copy::new(&description, files);
    writer.fill(|range| Ok((copy.read(range, &mut done)?, ())))?;
    writer.save()?;
    TextStore::open(folder)
}

/// Reads all rows. Returns the description of the store and the number of records per shard.
fn survey(
    columns: &Columns,
    files: &[PathBuf],
    done: &mut impl FnMut(usize) -> Result<()>,
) -> Result<(Description, usize)> {
    let known = columns.known_labels();
    let mut found = BTreeSet::new();
    let (mut sources, mut wrong, mut dropped) = (Vec::new(), Vec::new(), 0);
    let (mut sizes, mut seen, mut remarks) = (RunSizes::default(), Seen::new(), Remarks::default());
    for path in files {
        let mut rows = Rows::open(path, columns)?;
        let (mut records, mut read) = (0, 0);
        while let Some(row) = rows.next(&seen)? {
            read += 1;
            done(1)?;
            match checked(columns, &row) {
                Ok((labels, _)) => {
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
                        return Err(report(&wrong, "the first of many"));
                    }
                }
            }
            rows.keep(&row, &mut seen);
            records += 1;
            sizes.add(row.cells.iter().map(String::len).sum::<usize>() as u64);
        }
        dropped += rows.left_out;
        if read == 0 {
            return Err(Error::data(format!("{}: no rows", path.display())));
        }
        sources.push(SourceFile { path: path.clone(), blake3: rows.hash(), records });
    }
    if !wrong.is_empty() {
        return Err(report(&wrong, "all"));
    }
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
    let description = Description { columns: columns.clone(), labels, dropped, files: sources };
    Ok((description, sizes.shard_records()))
}

/// Returns the labels and the answer of a row. Errors: the problem in them.
fn checked(columns: &Columns, row: &Row) -> std::result::Result<(Vec<String>, [i32; 2]), String> {
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
    Ok((labels, answer_of(columns, row)?))
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

fn report(wrong: &[Error], which: &str) -> Error {
    let first = format!(
        "labels or answers cannot be used ({which}); correct them, extend `labels` or `mapping` in columns.yaml, or drop \
         such rows with `strict: false`:"
    );
    Error::list(Exit::Data, first, wrong)
}

/// For each k, the maximum size in bytes of an aligned run of 2^k records.
#[derive(Default)]
pub(super) struct RunSizes {
    count: u64,
    runs: [(u64, u64); 21],
}

impl RunSizes {
    pub(super) fn add(&mut self, bytes: u64) {
        for (k, (sum, largest)) in self.runs.iter_mut().enumerate() {
            if self.count.is_multiple_of(1 << k) {
                *sum = 0;
            }
            *sum += bytes;
            *largest = (*largest).max(*sum);
        }
        self.count += 1;
    }

    /// Returns the largest power of two for which all runs of this many records fit into a shard.
    pub(super) fn shard_records(&self) -> usize {
        let fits = self.runs.iter().rposition(|(_, largest)| *largest <= SHARD);
        1 << fits.unwrap_or(0)
    }
}

/// A row with its label and answer as stored.
type Record = (Row, Vec<i32>, [i32; 2]);

/// The second pass over the files, which copies the rows.
struct Copy<'a> {
    description: &'a Description,
    files: &'a [PathBuf],
    classes: HashMap<&'a str, usize>,
    arrays: Arrays,
    /// The file that is being read.
    file: usize,
    rows: Option<Rows>,
    /// The number of the next record.
    next: usize,
    seen: Seen,
}

impl<'a> Copy<'a> {
    fn new(description: &'a Description, files: &'a [PathBuf]) -> Self {
        let classes = description.labels.iter().map(String::as_str);
        let classes = classes.enumerate().map(|(class, label)| (label, class)).collect();
        let arrays = Arrays::new(description);
        let seen = Seen::new();
        Self { description, files, classes, arrays, file: 0, rows: None, next: 0, seen }
    }

    /// Reads a range of records and returns the bytes of their arrays. Earlier records are skipped.
    fn read(
        &mut self,
        range: Range<usize>,
        done: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Vec<u8>>> {
        let (mut lines, mut labels, mut answers) = (Vec::new(), Vec::<i32>::new(), Vec::new());
        let mut ragged: [Ragged; RAGGED.len()] = Default::default();
        while self.next < range.end {
            let Some((row, label, answer)) = self.record()? else { return Err(self.changed()) };
            self.next += 1;
            done(1)?;
            if self.next <= range.start {
                continue;
            }
            lines.extend(row.line.to_le_bytes());
            labels.extend(label);
            answers.extend(answer);
            for (ragged, cell) in ragged.iter_mut().zip(&row.cells) {
                ragged.push(cell.as_bytes());
            }
        }
        if self.next == self.description.files.iter().map(|file| file.records).sum::<usize>() {
            self.require_same()?;
        }
        let used = ragged.into_iter().zip(self.arrays.ragged).filter(|(_, place)| place.is_some());
        let (ends, bytes): (Vec<_>, Vec<_>) = used.map(|(own, _)| (own.ends, own.items)).unzip();
        let bytes_of = |numbers: &[i32]| bytemuck::cast_slice(numbers).to_vec();
        let label = self.arrays.label.map(|_| bytes_of(&labels));
        let answer = self.arrays.answer.map(|_| bytes_of(&answers));
        Ok(ends.into_iter().chain([lines]).chain(label).chain(answer).chain(bytes).collect())
    }

    /// Reads the next record with its label and answer.
    fn record(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(path) = self.files.get(self.file) else { return Ok(None) };
            if self.rows.is_none() {
                self.rows = Some(Rows::open(path, &self.description.columns)?);
            }
            let Some(rows) = &mut self.rows else { return Ok(None) };
            let Some(row) = rows.next(&self.seen)? else {
                self.require_same()?;
                continue;
            };
            let found = checked(&self.description.columns, &row);
            let Ok((found, answer)) = found else { continue };
            rows.keep(&row, &mut self.seen);
            let classes = found.iter().map(|label| self.classes.get(label.as_str()).copied());
            let classes = classes.collect::<Option<Vec<usize>>>();
            let classes = classes.ok_or_else(|| self.changed())?;
            let label = match &self.description.columns.multi_label {
                None => classes.into_iter().map(|class| class as i32).collect(),
                Some(_) => {
                    let count = self.description.labels.len();
                    (0..count).map(|class| i32::from(classes.contains(&class))).collect()
                }
            };
            return Ok(Some((row, label, answer)));
        }
    }

    /// Finishes a file. Errors: 65 when it has changed since the first pass.
    fn require_same(&mut self) -> Result<()> {
        let Some(rows) = &mut self.rows else { return Ok(()) };
        while rows.next(&self.seen)?.is_some() {}
        if rows.hash() != self.description.files[self.file].blake3 {
            return Err(self.changed());
        }
        self.rows = None;
        self.file += 1;
        Ok(())
    }

    fn changed(&self) -> Error {
        let path = self.files.get(self.file).or(self.files.last());
        let path = path.map_or(String::new(), |path| path.display().to_string());
        Error::data(format!("{path}: was changed while it was read; import it again"))
    }
}
