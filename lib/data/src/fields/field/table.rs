//! Fields as tables (`.csv`): a row for each point, with named columns.
//!
//! Columns `n` (or sample, trajectory), `t` (or time), `x`, `y`, `z` say where a row belongs; a column
//! with the name of a parameter that never changes is one; all others are channels, in their order. Rows
//! may come in any order; each point must be there just once. The numbers go into a file without name,
//! so that memory holds little more than the coordinates.

use super::array::Place;
use super::axes::{Axes, Axis};
use super::mapped::MappedFile;
use super::source::{MAX_SMALL, Source, bad};
use crate::fields::parameter::is_known;
use csv::{ByteRecord, Reader, StringRecord};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tensor::FileDtype;
use unix::text::quote;
use unix::{Error, Result, small};

/// Longest row, in bytes.
const MAX_ROW: usize = 1 << 20;

/// What separates the columns of tables that are not read.
const SEPARATORS: [(char, &str); 4] =
    [(';', "semicolons"), ('\t', "tabs"), ('|', "vertical bars"), (' ', "spaces")];

/// A table that was read through.
#[derive(Debug)]
pub(super) struct Table {
    path: PathBuf,
    file: Arc<MappedFile>,
    /// The axes that are there, with the values along them, ascending.
    axes: Vec<(Axis, Vec<f64>)>,
    channels: Vec<String>,
    parameters: Vec<(String, f64)>,
}

/// What a column is.
#[derive(Clone, Copy, PartialEq)]
enum Column {
    Place(Axis),
    Channel,
}

impl Table {
    /// Errors: 66 when it cannot be opened, 65 when it is no such table: named by line.
    pub fn open(path: &Path) -> Result<Self> {
        small::require_file(path)?;
        let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
        let (names, mut columns) = header(path)?;
        let mut axes: Vec<(Axis, Vec<f64>)> = Axis::ALL
            .into_iter()
            .filter(|axis| columns.contains(&Column::Place(*axis)))
            .map(|axis| (axis, Vec::new()))
            .collect();
        if !axes.iter().any(|(axis, _)| *axis == Axis::X) {
            let all = names.join(",");
            return Err(bad(
                match SEPARATORS.iter().find(|(separator, _)| all.contains(*separator)) {
                    Some((_, name)) => format!(
                        "its columns are separated by {name}; only commas are read: convert it, with a point as \
                     decimal separator"
                    ),
                    None => format!("no column `x` among {}", quote(&all)),
                },
            ));
        }
        // First look: the values along the axes, and which columns never change.
        let mut same: Vec<Option<f64>> = Vec::new();
        let mut seen: Vec<BTreeSet<i64>> = vec![BTreeSet::new(); axes.len()];
        let mut rows = 0usize;
        for_each_row(path, &mut |row| {
            if rows == 0 {
                same = row.iter().map(|value| Some(*value)).collect();
            }
            rows += 1;
            for ((value, same), column) in row.iter().zip(&mut same).zip(&columns) {
                *same = same.filter(|first| first.to_bits() == value.to_bits());
                let Column::Place(axis) = column else { continue };
                let Some(at) = axes.iter().position(|(other, _)| other == axis) else { continue };
                seen[at].insert(ordered(*value));
                if seen[at].len() > MAX_SMALL {
                    let letter = axis.letter();
                    return Err(bad(format!("column `{letter}` has more than {MAX_SMALL} values")));
                }
            }
            Ok(())
        })?;
        for ((_, values), seen) in axes.iter_mut().zip(seen) {
            values.extend(seen.into_iter().map(|bits| f64::from_bits(in_order(bits) as u64)));
        }
        let points = axes.iter().try_fold(1usize, |n, (_, values)| n.checked_mul(values.len()));
        if points != Some(rows) || rows == 0 {
            let sizes: Vec<usize> = axes.iter().map(|(_, values)| values.len()).collect();
            return Err(bad(format!(
                "{rows} rows for a grid of {sizes:?} points: rows are missing, or twice there"
            )));
        }
        let is_parameter = |i: &usize| {
            columns[*i] == Column::Channel && same[*i].is_some() && is_known(&names[*i])
        };
        let constant: Vec<usize> = (0..names.len()).filter(is_parameter).collect();
        let parameters =
            constant.iter().filter_map(|&i| Some((names[i].clone(), same[i]?))).collect();
        let channels: Vec<usize> = (0..names.len())
            .filter(|i| columns[*i] == Column::Channel && !constant.contains(i))
            .collect();
        if channels.is_empty() {
            return Err(bad(format!("no column of numbers beside {}", quote(&names.join(",")))));
        }
        columns.truncate(names.len());
        let numbers = scatter(path, &columns, &axes, &channels, rows)?;
        let file = Arc::new(MappedFile::of(path, numbers)?);
        let channels = channels.into_iter().map(|i| names[i].clone()).collect();
        Ok(Self { path: path.to_path_buf(), file, axes, channels, parameters })
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
        values.ok_or_else(|| bad(self, format!("no coordinates `{name}`")))
    }

    fn place(&self, _: &str) -> Result<(Vec<usize>, Place)> {
        let (file, dtype) = (self.file.clone(), FileDtype::F32);
        Ok((self.dims(), Place::File { file, offset: 0, dtype, fortran: false }))
    }

    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let mut all = Map::new();
        if place.is_none() {
            all.extend(self.parameters.iter().map(|(name, value)| (name.clone(), (*value).into())));
            all.insert("channels".into(), self.channels.join(",").into());
        }
        all
    }

    /// The columns say what the dimensions are.
    fn axes(&self) -> Option<Axes> {
        let channel = (self.channels.len() > 1).then_some(Axis::Channel);
        Some(Axes::from(self.axes.iter().map(|(axis, _)| *axis).chain(channel).collect::<Vec<_>>()))
    }
}

/// A whole number that is ordered as the value is by `total_cmp`.
fn ordered(value: f64) -> i64 {
    in_order(value.to_bits() as i64)
}

/// The bits of a float as a whole number in the same order, and back.
fn in_order(bits: i64) -> i64 {
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// Names of the columns, and what they are.
fn header(path: &Path) -> Result<(Vec<String>, Vec<Column>)> {
    let mut reader = reader(path)?;
    let named =
        reader.headers().map_err(|cause| Error::data(format!("{}: {cause}", path.display())))?;
    let names: Vec<String> = named.iter().map(|name| name.trim().to_string()).collect();
    let column = |name: &String| match name.to_ascii_lowercase().as_str() {
        "n" | "sample" | "trajectory" => Column::Place(Axis::Sample),
        "t" | "time" => Column::Place(Axis::Time),
        "x" => Column::Place(Axis::X),
        "y" => Column::Place(Axis::Y),
        "z" => Column::Place(Axis::Z),
        _ => Column::Channel,
    };
    let columns = names.iter().map(column).collect();
    Ok((names, columns))
}

fn reader(path: &Path) -> Result<Reader<Rows>> {
    let file = File::open(path).map_err(|cause| Error::open(path, cause))?;
    let rows =
        Rows { file: BufReader::with_capacity(1 << 20, file), row: 1, length: 0, quoted: false };
    Ok(csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(rows))
}

/// The bytes of a table. A row longer than [`MAX_ROW`] is an error: the CSV reader would keep all of it.
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
                let text = format!(
                    "row {} is longer than {MAX_ROW} bytes, the most that is read",
                    self.row
                );
                return Err(io::Error::other(text));
            }
        }
        Ok(count)
    }
}

/// Calls `look` with the numbers of every row.
fn for_each_row(path: &Path, look: &mut dyn FnMut(&[f64]) -> Result<()>) -> Result<()> {
    let mut reader = reader(path)?;
    let mut record = ByteRecord::new();
    let mut row = Vec::new();
    let bad = |cause: String| Error::data(format!("{}: {cause}", path.display()));
    while reader.read_byte_record(&mut record).map_err(|cause| bad(cause.to_string()))? {
        row.clear();
        for (column, field) in record.iter().enumerate() {
            let number = std::str::from_utf8(field).ok().and_then(|text| text.parse::<f64>().ok());
            row.push(number.ok_or_else(|| {
                let line = record.position().map_or(0, csv::Position::line);
                let text = StringRecord::from_byte_record_lossy(record.clone());
                bad(format!("line {line}, column {}: `{}` is no number", column + 1, &text[column]))
            })?);
        }
        look(&row)?;
    }
    Ok(())
}

/// Second look: every number to its place in a file without name, [n, t, x…, c].
fn scatter(
    path: &Path,
    columns: &[Column],
    axes: &[(Axis, Vec<f64>)],
    channels: &[usize],
    rows: usize,
) -> Result<File> {
    let temporary = std::env::temp_dir();
    let file = tempfile::tempfile().map_err(|cause| Error::create(&temporary, cause))?;
    let io = |cause| Error::io(&temporary, cause);
    let mut seen = vec![false; rows];
    let mut out = BufWriter::with_capacity(1 << 20, At { file: &file, next: 0 });
    let (mut numbers, mut next) = (Vec::new(), 0);
    for_each_row(path, &mut |row| {
        let mut place = 0;
        for (axis, values) in axes {
            let column =
                columns.iter().position(|column| *column == Column::Place(*axis)).unwrap_or(0);
            let at = values.binary_search_by(|other| other.total_cmp(&row[column])).unwrap_or(0);
            place = place * values.len() + at;
        }
        if std::mem::replace(&mut seen[place], true) {
            return Err(Error::data(format!(
                "{}: the point of row {row:?} is there twice",
                path.display()
            )));
        }
        if place != next {
            out.flush().map_err(io)?;
            out.get_mut().next = 4 * (place * channels.len()) as u64;
        }
        next = place + 1;
        numbers.clear();
        numbers.extend(channels.iter().map(|&column| row[column] as f32));
        out.write_all(bytemuck::cast_slice(&numbers)).map_err(io)
    })?;
    out.flush().map_err(io)?;
    drop(out);
    Ok(file)
}

/// Writes from a position on.
struct At<'a> {
    file: &'a File,
    next: u64,
}

impl Write for At<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write_at(bytes, self.next)?;
        self.next += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
