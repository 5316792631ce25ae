//! Vectors beside texts: one for each record, from arrays of any supported file format.

use super::TextSet;
use super::store::TextStore;
use crate::fields::field::{Array, Axes, Axis, open_array};
use crate::fields::import::content_hash;
use crate::records::file_and_name;
use crate::split::Source;
use crate::split::check::{CheckReport, ProblemKind, shared};
use crate::store::{RecordStore, SourceFile};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use unix::{Error, Exit, Result, small};

/// Maximum number of problems reported at once.
const REPORTED: usize = 20;
/// Maximum size of the file of ids in bytes.
const MAX_IDS: u64 = 4 << 30;
/// Maximum length of a vector.
const MAX_LENGTH: usize = 1 << 20;

/// What happens to texts and vectors without a partner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Unpaired {
    /// They are an error.
    #[default]
    Refuse,
    /// They are left out and counted.
    Drop,
}

/// The vectors of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct VectorOptions {
    /// With --columns: vectors of the texts, arrays [N, D] in .npy, .npz, .safetensors or HDF5 files, one row for each
    /// record in order; FILE:NAME names an array of a file with several. Without FILES: vectors alone
    #[arg(id = "vectors", long = "vectors", value_delimiter = ',', value_name = "FILE[:NAME]")]
    pub files: Vec<PathBuf>,
    /// Text file with the id of each row of the vectors, one on each line; each text gets the vector with its id
    #[arg(id = "vector-ids", long = "vector-ids", value_name = "FILE", requires = "vectors")]
    pub ids: Option<PathBuf>,
    /// What happens to texts and vectors without a partner
    #[arg(long, value_name = "CHOICE", default_value = "refuse")]
    pub unpaired: Unpaired,
}

/// The opened vectors of an import.
#[derive(Debug)]
pub(super) struct Vectors {
    arrays: Vec<(PathBuf, Array, usize)>,
    length: usize,
    /// The row of each id.
    ids: Option<HashMap<String, usize>>,
    unpaired: Unpaired,
    /// The files with their hashes, the file of ids last.
    pub sources: Vec<SourceFile>,
}

/// The meaning of the dimensions of vectors: [D], [N, D] or [N, 1, D].
pub(super) fn axes(shape: &[usize]) -> std::result::Result<Axes, String> {
    match shape {
        [_] => Ok(Axes::ordered(false, false, 0, true)),
        [_, _] => Ok(Axes::ordered(true, false, 0, true)),
        [_, 1, _] => Ok(Axes::ordered(true, false, 1, true)),
        _ => Err(format!("has shape {shape:?}; vectors are [N, D], [N, 1, D] or [D]")),
    }
}

impl Vectors {
    /// Opens the files of an import; None without vectors. Reads all values, to check that they are finite.
    ///
    /// Errors: 66, 65, naming the rows; 2 for a file with several arrays.
    pub fn open(options: &VectorOptions) -> Result<Option<Self>> {
        if options.files.is_empty() {
            return Ok(None);
        }
        let (mut arrays, mut sources) = (Vec::new(), Vec::new());
        for text in &options.files {
            let (file, name) = file_and_name(text);
            let array = open_array(&file, name.as_deref(), false, axes)?;
            let rows = array.size(Axis::Sample).unwrap_or(1);
            sources.push(SourceFile {
                path: text.clone(),
                blake3: content_hash(&file)?,
                records: rows,
            });
            arrays.push((text.clone(), array, rows));
        }
        let length_of = |array: &Array| array.size(Axis::Channel).unwrap_or(0);
        let length = length_of(&arrays[0].1);
        if let Some((file, array, _)) =
            arrays.iter().find(|(_, array, _)| length_of(array) != length)
        {
            return Err(Error::data(format!(
                "{}: vectors of {} numbers, but those of {} have {length}",
                file.display(),
                length_of(array),
                arrays[0].0.display()
            )));
        }
        if length > MAX_LENGTH {
            let file = arrays[0].0.display();
            return Err(Error::data(format!(
                "{file}: vectors of {length} numbers; at most {MAX_LENGTH} are supported"
            )));
        }
        let mut found = Self { arrays, length, ids: None, unpaired: options.unpaired, sources };
        if let Some(path) = &options.ids {
            found.ids = Some(found.read_ids(path)?);
            found.sources.push(SourceFile {
                path: path.clone(),
                blake3: content_hash(path)?,
                records: 0,
            });
        }
        found.require_finite()?;
        Ok(Some(found))
    }

    /// Number of dimensions.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Number of vectors.
    pub fn rows(&self) -> usize {
        self.arrays.iter().map(|(_, _, rows)| rows).sum()
    }

    /// Whether vectors are found by the ids of texts.
    pub fn has_ids(&self) -> bool {
        self.ids.is_some()
    }

    /// Whether texts without a vector are left out.
    pub fn drops(&self) -> bool {
        self.unpaired == Unpaired::Drop
    }

    /// Returns the row with this id; None without ids, or if there is no such row.
    pub fn row_of(&self, id: &str) -> Option<usize> {
        self.ids.as_ref()?.get(id).copied()
    }

    /// Reads a row into `out`, [D].
    pub fn read(&self, mut row: usize, out: &mut [f32]) -> Result<()> {
        for (_, array, rows) in &self.arrays {
            if row < *rows {
                return array.read(row, 0..1, out);
            }
            row -= rows;
        }
        Err(Error::bug(format!("no vector {row}")))
    }

    fn read_ids(&self, path: &Path) -> Result<HashMap<String, usize>> {
        let text = String::from_utf8(small::read(path, MAX_IDS)?)
            .map_err(|_| Error::data(format!("{}: not valid UTF-8", path.display())))?;
        let mut ids = HashMap::new();
        let lines = text.strip_prefix('\u{feff}').unwrap_or(&text).lines();
        for (row, line) in lines.enumerate() {
            if let Some(first) = ids.insert(line.to_string(), row) {
                let (first, row, id) = (first + 1, row + 1, unix::text::quote(line));
                return Err(Error::data(format!(
                    "{}: lines {first} and {row} have the same id, {id}",
                    path.display()
                )));
            }
        }
        match ids.len() == self.rows() {
            true => Ok(ids),
            false => Err(Error::data(format!(
                "{}: {} ids, but there are {} vectors; each needs its own line",
                path.display(),
                ids.len(),
                self.rows()
            ))),
        }
    }

    fn require_finite(&self) -> Result<()> {
        let mut wrong = Vec::new();
        let mut values = vec![0.0; self.length];
        for (file, array, rows) in &self.arrays {
            for row in 0..*rows {
                array.read(row, 0..1, &mut values)?;
                if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                    let value = values[at];
                    wrong.push(format!(
                        "{}: record {row}: its vector is {value} at {at}",
                        file.display()
                    ));
                }
                if wrong.len() == REPORTED {
                    break;
                }
            }
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => {
                let first = "vectors cannot be used; replace the values, or remove the records:";
                Err(Error::list(Exit::Data, first, &wrong))
            }
        }
    }

    /// Checks that all ids have been used, given the number of texts per row, and that all texts had a vector, given
    /// the descriptions of those that had none. Returns the numbers of texts and vectors that are left out.
    pub fn require_paired(&self, used: &[bool], lonely: &[String]) -> Result<[usize; 2]> {
        let ids = self.ids.iter().flatten();
        let mut unused: Vec<(usize, &String)> =
            ids.filter(|(_, row)| !used[**row]).map(|(id, row)| (*row, id)).collect();
        unused.sort_unstable();
        let counts = [lonely.len(), unused.len()];
        if self.drops() || counts == [0, 0] {
            return Ok(counts);
        }
        let mut lines: Vec<String> = lonely.iter().take(REPORTED).cloned().collect();
        let of_vector = |(_, id): &(usize, &String)| {
            format!("no text has the id {} of a vector", unix::text::quote(id))
        };
        lines.extend(unused.iter().take(REPORTED).map(of_vector));
        let first = format!(
            "{} texts have no vector, and {} vectors no text; complete the files, or leave them out with --unpaired drop:",
            counts[0], counts[1]
        );
        Err(Error::list(Exit::Data, first, &lines))
    }
}

/// Reports vectors that are not finite, and remarks on dimensions with equal values in all records.
pub(super) fn check(store: &TextStore, report: &mut CheckReport) {
    for i in 0..store.len() {
        let Some(vector) = store.vector(i) else { return };
        if let Some(at) = vector.iter().position(|value| !value.is_finite()) {
            let (file, record) = store.origin(i);
            let what = format!("its vector is {} at {at}; import it again", vector[at]);
            report.add_record(ProblemKind::NotFinite, file, Some(record), what);
        }
    }
    let all = (0..store.len()).filter_map(|i| store.vector(i));
    if let Some(remark) = constant(all) {
        unix::note!("{}: {remark}", store.path().display());
    }
}

/// Describes the dimensions in which all vectors are equal, if there are any.
pub(super) fn constant<'a>(mut vectors: impl Iterator<Item = &'a [f32]>) -> Option<String> {
    let first = vectors.next()?;
    let mut equal: Vec<usize> = (0..first.len()).collect();
    let mut count = 1;
    for vector in vectors {
        equal.retain(|d| vector[*d] == first[*d]);
        count += 1;
    }
    if equal.is_empty() || count == 1 {
        return None;
    }
    let named: Vec<String> = equal.iter().take(5).map(usize::to_string).collect();
    let more = if equal.len() > 5 { ", …" } else { "" };
    Some(format!(
        "{} of {} dimensions of the vectors are constant ({}{more})",
        equal.len(),
        first.len(),
        named.join(", ")
    ))
}

/// Reports vectors that records of two splits share. Vectors without texts are reported as equal inputs instead.
pub fn equal_vectors(sets: &[TextSet], report: &mut CheckReport) {
    let samples = sets.iter().flat_map(|set| (0..set.len()).map(move |i| (set, i)));
    let keyed = samples.filter_map(|(set, i)| {
        let (store, record) = set.locate(i);
        let vector = store.vector(record).filter(|_| !store.kind().vectors_only)?;
        let key = blake3::hash(bytemuck::cast_slice(vector));
        Some((set.name(), (set, i), std::iter::once(key)))
    });
    shared(keyed, |_, (name, (set, i)), (other_name, (other, first))| {
        let ((file, record), (other_file, other_record)) = (set.origin(i), other.origin(first));
        let what = format!(
            "has the same vector as record {other_record} of {}, in splits {name} and {other_name}; split again, or remove one",
            other_file.display()
        );
        report.add_record(ProblemKind::SameVector, file, Some(record), what);
    });
}
