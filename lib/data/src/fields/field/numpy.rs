//! NumPy files: one array (`.npy`), or several in a zip archive (`.npz`), compressed or not.

use super::element::from_numpy;
use super::mapped::MappedFile;
use super::packing::Packing;
use super::source::{ArrayStorage, Source};
use crate::fields::parameter::is_known;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use unix::text::quote;
use unix::{Context, Error, Result};
use zip::{CompressionMethod, ZipArchive};

/// Maximum header size in bytes.
const MAX_HEADER: u64 = 1 << 20;
/// Upper bound on the compression ratio: Deflate produces at most 1032 bytes from one.
const MAX_PACKED: u64 = 1100;
/// Maximum number of members in an archive.
const MAX_MEMBERS: usize = 10_000;

/// An open file, of which only the headers have been read.
#[derive(Debug)]
pub(super) struct NumpyFile {
    path: PathBuf,
    file: Arc<MappedFile>,
    members: Vec<Member>,
}

#[derive(Debug)]
struct Member {
    name: String,
    shape: Vec<usize>,
    /// Dtype as NumPy writes it, e.g. `<f4`; a list of fields for a structured dtype.
    descr: String,
    fortran: bool,
    /// Offset of the first value: in the file, or within the member if it is compressed.
    offset: u64,
    /// Index of the member in the archive, if the member is compressed.
    packed: Option<usize>,
}

impl NumpyFile {
    /// Errors: 66 when it cannot be opened, 65 when it is not a NumPy file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = MappedFile::open(path)?;
        let stem = path.file_stem().map_or("tensor".into(), |stem| stem.to_string_lossy());
        let npz = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"));
        let members = if npz {
            members(file.file())
        } else {
            header(BufReader::new(file.file()), &stem, 0, None).map(|member| vec![member])
        };
        let members = members.map_err(|cause| {
            Error::data(format!("{}: not a complete NumPy file: {cause}", path.display()))
        })?;
        Ok(Self { path: path.to_path_buf(), file: Arc::new(file), members })
    }

    fn member(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Locates the values of a member; a compressed member is unpacked into an unnamed temporary file.
    fn place_of(&self, member: &Member) -> Result<ArrayStorage> {
        let Member { fortran, offset, .. } = *member;
        let packing = Packing::default();
        let Some(dtype) = from_numpy(&member.descr) else {
            let (name, descr) = (&member.name, quote(&member.descr));
            return Err(self.invalid(format!(
                "`{name}` has dtype {descr}, which is not read; save it as real numbers, e.g. with \
                 .astype('float32')"
            )));
        };
        let Some(index) = member.packed else {
            return Ok(ArrayStorage::File {
                file: self.file.clone(),
                offset,
                dtype,
                fortran,
                packing,
            });
        };
        // Unpack no more bytes than the header states; if there are fewer, the array is later reported as truncated.
        let sizes = member.shape.iter().try_fold(dtype.bytes(), |n, dim| n.checked_mul(*dim));
        let most = sizes.and_then(|size| offset.checked_add(size as u64)).unwrap_or(offset);
        let temporary = std::env::temp_dir().join(&member.name);
        unix::space::ensure_space(&temporary, most).context(|| self.path.display())?;
        let unpack = || -> io::Result<File> {
            let mut archive = ZipArchive::new(BufReader::new(self.file.file()))?;
            let mut unpacked = tempfile::tempfile()?;
            let packed = archive.by_index(index)?;
            let size = packed.compressed_size();
            if most / MAX_PACKED > size {
                let what =
                    format!("an entry of {size} compressed bytes cannot expand to {most} bytes");
                return Err(io::Error::other(what));
            }
            io::copy(&mut packed.take(most), &mut unpacked)?;
            Ok(unpacked)
        };
        let file = unpack().map_err(|cause| {
            let what = format!(
                "`{}` cannot be unpacked into {}: {cause}",
                member.name,
                std::env::temp_dir().display()
            );
            self.invalid(what)
        })?;
        let file = Arc::new(MappedFile::of(&self.path, file)?);
        Ok(ArrayStorage::File { file, offset, dtype, fortran, packing })
    }
}

impl Source for NumpyFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.name.clone()).collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        Some(self.member(name)?.shape.clone())
    }

    fn place(&self, name: &str) -> Result<(Vec<usize>, ArrayStorage)> {
        let member = self.member(name).ok_or_else(|| self.invalid(format!("no `{name}`")))?;
        Ok((member.shape.clone(), self.place_of(member)?))
    }

    /// Returns the arrays with a single value and the name of a parameter.
    fn attributes(&self, place: Option<&str>) -> Map<String, Value> {
        let is_one = |m: &&Member| m.shape.iter().all(|n| *n == 1) && is_known(&m.name);
        let value =
            |m: &Member| Some((m.name.clone(), (*self.numbers(&m.name).ok()?.first()?).into()));
        let all = self.members.iter().filter(is_one).filter_map(value);
        if place.is_none() { all.collect() } else { Map::new() }
    }

    fn only_array(&self) -> Option<String> {
        match self.members.as_slice() {
            [member] => Some(member.name.clone()),
            _ => None,
        }
    }
}

/// Reads the headers of all members of an archive.
fn members(file: &File) -> io::Result<Vec<Member>> {
    let mut archive = ZipArchive::new(BufReader::new(file))?;
    if archive.len() > MAX_MEMBERS {
        return Err(io::Error::other(format!("more than {MAX_MEMBERS} members")));
    }
    let mut found = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index(index)?;
        let name = entry.name().to_string();
        let Some(name) = name.strip_suffix(".npy") else { continue };
        let packed = (entry.compression() != CompressionMethod::Stored).then_some(index);
        let begin = match packed {
            Some(_) => 0,
            None => entry.data_start().ok_or_else(|| io::Error::other("no offset of its data"))?,
        };
        found.push(header(entry, name, begin, packed)?);
    }
    Ok(found)
}

/// Reads the header of an array that starts at `begin`: a magic number, a version, a length, and a Python literal with
/// the keys descr, fortran_order and shape (NumPy formats 1.0 to 3.0).
fn header(
    mut from: impl Read,
    name: &str,
    begin: u64,
    packed: Option<usize>,
) -> io::Result<Member> {
    let mut fixed = [0; 8];
    from.read_exact(&mut fixed)?;
    let wide = fixed[6] > 1;
    let mut length = [0; 4];
    from.read_exact(&mut length[..if wide { 4 } else { 2 }])?;
    let length = u64::from(u32::from_le_bytes(length));
    if fixed[..6] != *b"\x93NUMPY" || length > MAX_HEADER {
        return Err(io::Error::other("no NumPy header"));
    }
    let mut text = String::new();
    from.take(length).read_to_string(&mut text)?;
    let unread = || io::Error::other(format!("an unsupported header: {}", text.trim_end()));
    let after = |key: &str| Some(text.split_once(&format!("'{key}':"))?.1.trim_start());
    let descr = after("descr").ok_or_else(unread)?;
    // A list denotes a structured dtype, which is not supported.
    let simple = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next());
    let fields = descr.split_once(']').map_or(descr, |(fields, _)| fields);
    let descr = simple.map_or_else(|| format!("{fields}]"), String::from);
    let fortran = after("fortran_order").ok_or_else(unread)?.starts_with("True");
    let shape = after("shape").and_then(|rest| rest.strip_prefix('(')?.split(')').next());
    let shape = shape.ok_or_else(unread)?.split(',').map(str::trim).filter(|n| !n.is_empty());
    let shape: Option<Vec<usize>> = shape.map(|n| n.parse().ok()).collect();
    Ok(Member {
        name: name.into(),
        shape: shape.ok_or_else(unread)?,
        descr,
        fortran,
        offset: begin + if wide { 12 } else { 10 } + length,
        packed,
    })
}
