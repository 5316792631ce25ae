//! The second pass of an import, which copies the rows.

use super::chat::Messages;
use super::columns::cell;
use super::import::{Checked, as_stored, checked};
use super::record_images::RecordImages;
use super::rows::{Row, Rows, Seen};
use super::store::{Arrays, Description, NO_ANSWER, RAGGED};
use super::vectors::Vectors;
use crate::store::Ragged;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use unix::{Error, Result};

/// A record as it is stored.
struct Record {
    line: u64,
    /// The texts, see [`RAGGED`].
    row: Option<Row>,
    messages: Messages,
    label: Vec<i32>,
    answer: [i32; 2],
    /// The row of its vector.
    vector: usize,
}

/// The second pass over the files, which copies the rows.
pub(super) struct Copy<'a> {
    pub description: &'a Description,
    files: &'a [PathBuf],
    vectors: Option<&'a Vectors>,
    pub images: &'a RecordImages,
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
    pub fn new(
        description: &'a Description,
        files: &'a [PathBuf],
        vectors: Option<&'a Vectors>,
        images: &'a RecordImages,
    ) -> Self {
        let classes = description.labels.iter().map(String::as_str);
        let classes = classes.enumerate().map(|(class, label)| (label, class)).collect();
        let arrays = Arrays::new(description);
        Self {
            description,
            files,
            vectors,
            images,
            classes,
            arrays,
            file: 0,
            rows: None,
            next: 0,
            seen: Seen::new(),
        }
    }

    /// Reads a range of records and returns the bytes of their arrays. Earlier records are skipped.
    pub fn read(
        &mut self,
        range: Range<usize>,
        done: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Vec<u8>>> {
        let (mut lines, mut labels, mut answers) = (Vec::new(), Vec::<i32>::new(), Vec::new());
        let mut vectors = Vec::new();
        let mut vector = vec![0.0; self.description.vector];
        let mut ragged: [Ragged; RAGGED.len()] = Default::default();
        let mut of_images: [Ragged; 2] = Default::default();
        while self.next < range.end {
            let Some(mut record) = self.record()? else { return Err(self.changed()) };
            self.next += 1;
            done(1)?;
            if self.next <= range.start {
                continue;
            }
            self.add_images(&mut record, &mut of_images)?;
            lines.extend(record.line.to_le_bytes());
            labels.extend(record.label);
            answers.extend(record.answer);
            if let Some(all) = self.vectors {
                all.read(record.vector, &mut vector)?;
                vectors.extend_from_slice(bytemuck::cast_slice::<f32, u8>(&vector));
            }
            for (ragged, cell) in ragged.iter_mut().zip(record.row.iter().flat_map(|r| &r.cells)) {
                ragged.push(cell.as_bytes());
            }
        }
        let records = self.description.files.iter().map(|file| file.records).sum::<usize>();
        if self.next == records && !self.files.is_empty() {
            self.require_same()?;
        }
        let used = ragged.into_iter().zip(self.arrays.ragged).filter(|(_, place)| place.is_some());
        let (mut ends, mut bytes): (Vec<_>, Vec<_>) =
            used.map(|(own, _)| (own.ends, own.items)).unzip();
        let [places, names] = of_images;
        let places = self.arrays.images.map(|_| {
            ends.extend([places.ends, names.ends]);
            bytes.push(names.items);
            places.items
        });
        let bytes_of = |numbers: &[i32]| bytemuck::cast_slice(numbers).to_vec();
        let label = self.arrays.label.map(|_| bytes_of(&labels));
        let answer = self.arrays.answer.map(|_| bytes_of(&answers));
        let vector = self.arrays.vector.map(|_| vectors);
        let numbers = [lines].into_iter().chain(places).chain(label).chain(answer).chain(vector);
        Ok(ends.into_iter().chain(numbers).chain(bytes).collect())
    }

    /// Appends the images of a record and what they are called, and takes them out of its messages.
    fn add_images(&self, record: &mut Record, [places, names]: &mut [Ragged; 2]) -> Result<()> {
        let Some(row) = record.row.as_mut().filter(|_| self.arrays.images.is_some()) else {
            return Ok(());
        };
        let found = self.images.of(&record.messages, row, &self.files[self.file])?;
        let words: Vec<u64> = found.iter().flat_map(|named| named.own.to_words()).collect();
        places.push_items(&words, found.len());
        let called: Vec<String> = found.into_iter().map(|named| named.name).collect();
        names.push(called.join("\n").as_bytes());
        row.cells[0] = as_stored(&record.messages);
        Ok(())
    }

    /// Reads the next record.
    fn record(&mut self) -> Result<Option<Record>> {
        if self.files.is_empty() {
            let vector = self.next;
            let (row, label, answer) = (None, Vec::new(), NO_ANSWER);
            let messages = Messages::new();
            let line = vector as u64 + 1;
            return Ok(Some(Record { line, row, messages, label, answer, vector }));
        }
        loop {
            let Some(path) = self.files.get(self.file) else { return Ok(None) };
            if self.rows.is_none() {
                self.rows =
                    Some(Rows::open(path, &self.description.columns, self.description.chunks)?);
            }
            let Some(rows) = &mut self.rows else { return Ok(None) };
            let Some(row) = rows.next(&self.seen)? else {
                self.require_same()?;
                continue;
            };
            let found = checked(&self.description.columns, &row);
            let Ok(Checked { labels: found, answer, messages }) = found else { continue };
            if !self.images.keeps(&row, path) {
                continue;
            }
            let by_id = self.vectors.filter(|vectors| vectors.has_ids());
            let vector = by_id.map_or(Some(self.next), |all| all.row_of(&row.cells[cell::ID]));
            let Some(vector) = vector else { continue };
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
            let (line, row) = (row.line, Some(row));
            return Ok(Some(Record { line, row, messages, label, answer, vector }));
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

/// The pass over the files that copies the images.
pub(super) struct ImageCopy<'a> {
    rows: Copy<'a>,
    /// Number of images that were read, and those of the last row that were not needed yet.
    read: usize,
    pending: VecDeque<Vec<u8>>,
}

impl<'a> ImageCopy<'a> {
    pub fn new(rows: Copy<'a>) -> Self {
        Self { rows, read: 0, pending: VecDeque::new() }
    }

    /// Reads a range of images and returns the bytes of their arrays. Earlier images are skipped.
    pub fn read(
        &mut self,
        range: Range<usize>,
        done: &mut impl FnMut(usize) -> Result<()>,
    ) -> Result<Vec<Vec<u8>>> {
        let mut images = Ragged::default();
        while self.read < range.end {
            if let Some(bytes) = self.pending.pop_front() {
                if range.contains(&self.read) {
                    images.push(&bytes);
                }
                self.read += 1;
                continue;
            }
            let rows = &mut self.rows;
            let Some(record) = rows.record()? else { return Err(rows.changed()) };
            done(1)?;
            let Some(row) = &record.row else { continue };
            let found =
                rows.images.bytes_from(self.read, &record.messages, row, &rows.files[rows.file])?;
            for (image, bytes) in found {
                // A record may have an image twice.
                if image == self.read + self.pending.len() {
                    self.pending.push_back(bytes);
                }
            }
        }
        Ok(vec![images.ends, images.items])
    }
}
