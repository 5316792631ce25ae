//! Fields as tables (`.csv`): one row per point, with named columns.
//!
//! Columns `n` (or sample, trajectory), `t` (or time), `x`, `y`, `z` are the coordinates of a row; a constant column
//! with the name of a parameter is that parameter; all other columns are channels, in order. Rows may come in any
//! order, and every point must occur exactly once. A table is read into memory as a whole, so convert large ones with
//! `ds-prep import`.

use super::axes::{Axes, Axis};
use super::mapped::MappedFile;
use super::packing::Packing;
use super::source::{ArrayStorage, MAX_SMALL, Source};
use crate::fields::parameter::is_known;
use csv::{ByteRecord, Reader, StringRecord};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::FileDtype;
use unix::text::quote;
use unix::{Error, Result, small};

/// Memory in bytes needed per byte of a table, in which a value takes at least two bytes.
const PARSED: u64 = 6;
/// Maximum row length in bytes.
const MAX_ROW: usize = 1 << 20;

/// Column separators that are not supported.
const SEPARATORS: [(char, &str); 4] =
    [(';', "semicolons"), ('\t', "tabs"), ('|', "vertical bars"), (' ', "spaces")];

/// A table in memory.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    file: Arc<MappedFile>,
    /// Axes of the table, with the values along each, ascending.
    axes: Vec<(Axis, Vec<f64>)>,
    channels: Vec<String>,
    parameters: Vec<(String, f64)>,
}

impl Table {
    /// Errors: 66 when it cannot be opened, 65 with the line when it is not a valid table.
    pub fn open(path: &Path) -> Result<Self> {
        small::require_file(path)?;
        let data_error = |what: String| Error::data(format!("{}: {what}", path.display()));
        let mut reader = reader(path)?;
        let named = reader.headers().map_err(|cause| data_error(cause.to_string()))?;
        let names: Vec<String> = named.iter().map(|name| name.trim().to_string()).collect();
        let meanings: Vec<Option<Axis>> = names.iter().map(|name| Axis::of_name(name)).collect();
        if !meanings.contains(&Some(Axis::X)) {
            let all = names.join(",");
            return Err(data_error(
                match SEPARATORS.iter().find(|(separator, _)| all.contains(*separator)) {
                    Some((_, name)) => format!(
                        "its columns are separated by {name}; only commas are supported: convert it, with a point as \
                     decimal separator"
                    ),
                    None => format!("no column `x` among {}", quote(&all)),
                },
            ));
        }
        let numbers = numbers(path, reader)?;
        let column = |i: usize| numbers.iter().skip(i).step_by(names.len()).copied();
        let mut axes: Vec<(Axis, Vec<f64>)> = Vec::new();
        let mut places = Vec::new();
        for axis in Axis::ALL {
            let Some(at) = meanings.iter().position(|other| *other == Some(axis)) else { continue };
            let mut values: Vec<f64> = column(at).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.dedup_by_key(|value| value.to_bits());
            if values.len() > MAX_SMALL {
                let what = format!("column `{}` has more than {MAX_SMALL} values", axis.letter());
                return Err(data_error(what));
            }
            axes.push((axis, values));
            places.push(at);
        }
        let rows = numbers.len() / names.len();
        let points = axes.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
        if points != Some(rows) || rows == 0 {
            let sizes: Vec<usize> = axes.iter().map(|(_, values)| values.len()).collect();
            return Err(data_error(format!(
                "{rows} rows for a grid of {sizes:?} points: rows are missing or duplicated"
            )));
        }
        let is_parameter = |i: &usize| {
            is_known(&names[*i]) && column(*i).all(|value| value.to_bits() == numbers[*i].to_bits())
        };
        let others = (0..names.len()).filter(|i| meanings[*i].is_none());
        let (constant, channels): (Vec<usize>, Vec<usize>) = others.partition(is_parameter);
        if channels.is_empty() {
            let names = names.join(",");
            return Err(data_error(format!("no column of values beside {}", quote(&names))));
        }
        // Put every value at its index in [n, t, x…, c].
        let mut values = vec![0f32; rows * channels.len()];
        let mut seen = vec![false; rows];
        for row in numbers.chunks_exact(names.len()) {
            let place = axes.iter().zip(&places).fold(0, |place, ((_, values), &at)| {
                let found = values.binary_search_by(|other| other.total_cmp(&row[at]));
                place * values.len() + found.unwrap_or(0)
            });
            if std::mem::replace(&mut seen[place], true) {
                return Err(data_error(format!("row {row:?} repeats a point")));
            }
            let out = &mut values[place * channels.len()..][..channels.len()];
            out.iter_mut().zip(&channels).for_each(|(out, &column)| *out = row[column] as f32);
        }
        let temporary = std::env::temp_dir();
        let mut file = tempfile::tempfile().map_err(|cause| Error::create(&temporary, cause))?;
        file.write_all(bytemuck::cast_slice(&values))
            .map_err(|cause| Error::io(&temporary, cause))?;
        Ok(Self {
            path: path.to_path_buf(),
            file: Arc::new(MappedFile::of(path, file)?),
            axes,
            channels: channels.into_iter().map(|i| names[i].clone()).collect(),
            parameters: constant.into_iter().map(|i| (names[i].clone(), numbers[i])).collect(),
        })
    }

    fn dims(&self) -> Vec<usize> {
        let places = self.axes.iter().map(|(_, values)| values.len());
        places.chain((self.channels.len() > 1).then_some(self.channels.len())).collect()
    }

    fn values(&self, name: &str) -> Option<&[f64]> {
        let letter = name.strip_suffix("-coordinate")?;
        let found = self.axes.iter().find(|(axis, _)| letter.chars().eq([axis.letter()]));
        found.filter(|(axis, _)| *axis != Axis::Sample).map(|(_, values)| values.as_slice())
    }
}

impl Source for Table {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        vec!["tensor".into()]
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        match name {
            "tensor" => Some(self.dims()),
            _ => self.values(name).map(|values| vec![values.len()]),
        }
    }

    fn numbers(&self, name: &str) -> Result<Vec<f64>> {
        let values = self.values(name).map(<[f64]>::to_vec);
        values.ok_or_else(|| self.invalid(format!("no coordinates `{name}`")))
    }

    fn place(&self, _: &str) -> Result<(Vec<usize>, ArrayStorage)> {
        let (file, dtype, packing) = (self.file.clone(), FileDtype::F32, Packing::default());
        Ok((self.dims(), ArrayStorage::File { file, offset: 0, dtype, fortran: false, packing }))
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let mut all = Map::new();
        if place.is_none() {
            all.extend(self.parameters.iter().map(|(name, value)| (name.clone(), (*value).into())));
            all.insert("channels".into(), self.channels.join(",").into());
        }
        all
    }

    /// The columns define the dimensions.
    fn axes(&self) -> Option<Axes> {
        let channel = (self.channels.len() > 1).then_some(Axis::Channel);
        Some(Axes::from(self.axes.iter().map(|(axis, _)| *axis).chain(channel).collect::<Vec<_>>()))
    }
}

/// Reads all values, row by row.
fn numbers(path: &Path, mut reader: Reader<Rows>) -> Result<Vec<f64>> {
    let data_error = |cause: String| Error::data(format!("{}: {cause}", path.display()));
    let bytes = std::fs::metadata(path).map_err(|cause| Error::open(path, cause))?.len();
    unix::memory::ensure(
        &format_args!("{}: the table", path.display()),
        bytes.checked_mul(PARSED),
    )?;
    let (mut record, mut numbers) = (ByteRecord::new(), Vec::new());
    while reader.read_byte_record(&mut record).map_err(|cause| data_error(cause.to_string()))? {
        for (column, field) in record.iter().enumerate() {
            let number = std::str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
            numbers.push(number.ok_or_else(|| {
                let line = record.position().map_or(0, csv::Position::line);
                let text = StringRecord::from_byte_record_lossy(record.clone());
                let (number, text) = (column + 1, &text[column]);
                data_error(format!("line {line}, column {number}: `{text}` is not a number"))
            })?);
        }
    }
    Ok(numbers)
}

fn reader(path: &Path) -> Result<Reader<Rows>> {
    let file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let rows =
        Rows { file: BufReader::with_capacity(1 << 20, file), row: 1, length: 0, quoted: false };
    Ok(csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(rows))
}

/// Reads the bytes of a table. A row longer than [`MAX_ROW`] is an error, because the CSV reader would buffer all of
/// it.
struct Rows {
    file: BufReader<File>,
    /// Number of the row being read, from 1, and its bytes so far.
    row: u64,
    length: usize,
    quoted: bool,
}

impl Read for Rows {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(out)?;
        for byte in &out[..count] {
            self.length += 1;
            match byte {
                b'"' => self.quoted = !self.quoted,
                b'\n' if !self.quoted => (self.row, self.length) = (self.row + 1, 0),
                _ => {}
            }
            if self.length > MAX_ROW {
                let row = self.row;
                let text =
                    format!("row {row} is longer than {MAX_ROW} bytes, the longest supported");
                return Err(io::Error::other(text));
            }
        }
        Ok(count)
    }
}
