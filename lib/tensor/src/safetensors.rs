//! Reader and writer for the safetensors format.
//!
//! A file consists of the length of its header (u64), the header (JSON: dtype, shape and byte range of each tensor,
//! counted from the end of the header; strings under `__metadata__`) and the numbers, row-major and little-endian
//! (<https://github.com/huggingface/safetensors>). Writers may pad the header with spaces to align the numbers.
//!
//! The header is not trusted: tensors must be contiguous in the file without gaps or overlaps, each must have
//! the bytes that its shape and dtype require, and names must be unique. Errors are strings that say what is wrong;
//! the caller adds the file name.

use crate::FileDtype;
use memmap2::Mmap;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use unix::text::quote;

// Numbers are written and memory-mapped in native byte order.
const _: () = assert!(cfg!(target_endian = "little"));

/// Maximum header size in bytes, as in the `safetensors` library.
const MAX_HEADER: u64 = 100_000_000;
/// Estimated bytes of memory per header byte while parsing.
const PARSED: u64 = 16;
/// Maximum length of a tensor name, in bytes.
pub const MAX_NAME: usize = 4096;
/// Maximum number of axes of a tensor.
pub const MAX_RANK: usize = 16;
const METADATA: &str = "__metadata__";

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name of the tensor.
    pub name: String,
    /// Dtype of its numbers.
    pub dtype: FileDtype,
    /// Length of every axis.
    pub shape: Vec<usize>,
    /// Offset of its first byte in the file.
    pub start: u64,
    /// Offset just past its last byte.
    pub end: u64,
}

/// The header of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The bytes before the numbers: header length, JSON and padding.
    pub bytes: Vec<u8>,
    /// Metadata strings by name.
    pub metadata: BTreeMap<String, String>,
    /// The tensors, in file order.
    pub entries: Vec<Entry>,
}

impl Header {
    /// Lays out a file with tensors (name, dtype, shape) in the given order; the first starts at a multiple of `align`
    /// bytes. Metadata is sorted by name.
    ///
    /// Errors: two tensors have the same name, or a name or rank is not supported.
    pub fn plan<'a>(
        tensors: impl IntoIterator<Item = (&'a str, FileDtype, &'a [usize])>,
        metadata: BTreeMap<String, String>,
        align: usize,
    ) -> Result<Self, String> {
        let (mut names, mut entries, mut end) = (HashSet::new(), Vec::<Entry>::new(), 0);
        let mut fields = Vec::new();
        if !metadata.is_empty() {
            fields.push(format!("\"{METADATA}\":{}", serde_json::json!(metadata)));
        }
        for (name, dtype, shape) in tensors {
            check(name, shape.len())?;
            if !names.insert(name) {
                return Err(format!("two tensors are named {}", quote(name)));
            }
            let start = end;
            end += (shape.iter().product::<usize>() * dtype.bytes()) as u64;
            let (key, shape) = (serde_json::json!(name), shape.to_vec());
            fields.push(format!(
                "{key}:{{\"dtype\":\"{dtype}\",\"shape\":{},\"data_offsets\":[{start},{end}]}}",
                serde_json::json!(shape)
            ));
            entries.push(Entry { name: name.into(), dtype, shape, start, end });
        }
        let mut json = format!("{{{}}}", fields.join(",")).into_bytes();
        json.resize((8 + json.len()).next_multiple_of(align) - 8, b' ');
        let bytes = [&(json.len() as u64).to_le_bytes()[..], &json].concat();
        for entry in &mut entries {
            entry.start += bytes.len() as u64;
            entry.end += bytes.len() as u64;
        }
        Ok(Self { bytes, metadata, entries })
    }

    /// Reads only the header of a file.
    pub fn read(file: &File) -> Result<Self, String> {
        let io = |cause: std::io::Error| cause.to_string();
        let size = file.metadata().map_err(io)?.len();
        let mut length = [0; 8];
        if size < 8 {
            return Err(format!("truncated: {size} bytes"));
        }
        file.read_exact_at(&mut length, 0).map_err(io)?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || 8 + length > size {
            return Err(format!("the header length {length} is invalid in a file of {size} bytes"));
        }
        unix::memory::ensure(&"the header", length.checked_mul(PARSED))
            .map_err(|error| error.to_string())?;
        let mut bytes = vec![0; 8 + length as usize];
        file.read_exact_at(&mut bytes, 0).map_err(io)?;
        Self::parse(bytes, size)
    }

    /// Parses the header of a file of `size` bytes; `bytes` contains everything before the numbers.
    pub fn parse(bytes: Vec<u8>, size: u64) -> Result<Self, String> {
        let json = bytes.get(8..).unwrap_or_default();
        let Raw { metadata, tensors } = serde_json::from_slice(json)
            .map_err(|cause| format!("the header is damaged: {cause}"))?;
        let begin = bytes.len() as u64;
        let entry = |(name, raw): (String, RawTensor)| {
            check(&name, raw.shape.len())?;
            let named = |what: String| format!("tensor {}: {what}", quote(&name));
            let dtype = FileDtype::from_name(&raw.dtype)
                .ok_or_else(|| named(format!("dtype {} is not supported", quote(&raw.dtype))))?;
            let bytes = raw
                .shape
                .iter()
                .try_fold(dtype.bytes() as u64, |n, axis| n.checked_mul(*axis as u64));
            let [start, end] = raw.data_offsets;
            if bytes.is_none() || end.checked_sub(start) != bytes {
                let shape = &raw.shape;
                return Err(named(format!(
                    "{dtype} {shape:?} does not match its byte range {start} to {end}"
                )));
            }
            let beyond = || named(format!("truncated: it ends at byte {end} of {}", size - begin));
            let end = begin.checked_add(end).filter(|end| *end <= size).ok_or_else(beyond)?;
            Ok(Entry { dtype, shape: raw.shape, start: begin + start, end, name })
        };
        let mut entries = tensors.into_iter().map(entry).collect::<Result<Vec<Entry>, String>>()?;
        // An empty tensor starts where the next one does.
        entries.sort_by(|a, b| (a.start, a.end, &a.name).cmp(&(b.start, b.end, &b.name)));
        let mut at = begin;
        for entry in &entries {
            if entry.start != at {
                return Err(format!(
                    "tensor {}: a gap or an overlap before it",
                    quote(&entry.name)
                ));
            }
            at = entry.end;
        }
        match size.checked_sub(at) {
            Some(0) => Ok(Self { bytes, metadata, entries }),
            _ => Err(format!("it has {size} bytes, and its header describes {at}")),
        }
    }

    /// Returns the tensor with this name.
    pub fn get(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.entries.last().map_or(self.bytes.len() as u64, |entry| entry.end)
    }
}

/// Checks the name and rank of a tensor. Errors: either is not supported.
fn check(name: &str, rank: usize) -> Result<(), String> {
    let bad = name.is_empty() || name.len() > MAX_NAME || name.contains('\0');
    if bad || name == METADATA || rank > MAX_RANK {
        return Err(format!(
            "tensor \"{}\" of rank {rank}: the name or the rank is not supported",
            quote(name)
        ));
    }
    Ok(())
}

/// The header as parsed from JSON, before validation.
struct Raw {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, RawTensor)>,
}

#[derive(Deserialize)]
struct RawTensor {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let mut raw = Raw { metadata: BTreeMap::new(), tensors: Vec::new() };
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{} appears twice", quote(&name))));
                    }
                    match name.as_str() {
                        METADATA => raw.metadata = map.next_value()?,
                        _ => raw.tensors.push((name, map.next_value()?)),
                    }
                }
                Ok(raw)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A memory-mapped file. It can be shared between threads; reads do not copy.
#[derive(Debug)]
pub struct MappedTensors {
    map: Mmap,
    header: Header,
}

impl MappedTensors {
    /// Maps a file.
    ///
    /// # Safety
    /// No process may write to or truncate the file while it is mapped.
    pub unsafe fn open(file: &File) -> Result<Self, String> {
        let header = Header::read(file)?;
        // SAFETY: the map is read-only, and the caller guarantees that the file does not change.
        let map = unsafe { Mmap::map(file) }.map_err(|cause| cause.to_string())?;
        match map.len() as u64 == header.file_bytes() {
            true => Ok(Self { map, header }),
            false => Err("another process writes to it".into()),
        }
    }

    /// The header of the file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes of a tensor of this file.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.map[entry.start as usize..entry.end as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(names: &[&str]) -> Result<Header, String> {
        let tensors = names.iter().map(|name| (*name, FileDtype::F32, &[2usize][..]));
        Header::plan(tensors, BTreeMap::new(), 8)
    }

    #[test]
    fn what_is_planned_is_read_back() {
        let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let tensors: [(&str, FileDtype, &[usize]); 4] = [
            ("z", FileDtype::F64, &[2, 1, 3]),
            ("a", FileDtype::Bf16, &[]),
            ("b \"quoted\"", FileDtype::U8, &[3]),
            ("empty", FileDtype::F32, &[4, 0]),
        ];
        for align in [8, 64] {
            let header = Header::plan(tensors, metadata.clone(), align).unwrap();
            assert_eq!(header.file_bytes(), header.bytes.len() as u64 + 48 + 2 + 3);
            assert!(header.bytes.len().is_multiple_of(align));
            let size = header.file_bytes();
            assert_eq!(Header::parse(header.bytes.clone(), size).unwrap(), header);
            // The reference library reads the same.
            let file = [header.bytes.clone(), vec![0; 53]].concat();
            let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
            for (name, _, shape) in tensors {
                assert_eq!(theirs.tensor(name).unwrap().shape(), shape);
            }
            assert!(Header::parse(header.bytes.clone(), size + 1).is_err());
            assert!(Header::parse(header.bytes, size - 1).unwrap_err().contains("truncated"));
        }
        let empty = Header::plan([], BTreeMap::new(), 8).unwrap();
        assert_eq!(empty.bytes, b"\x08\0\0\0\0\0\0\0{}      ");
        assert_eq!(Header::parse(empty.bytes.clone(), 16).unwrap(), empty);
    }

    #[test]
    fn names_that_cannot_be_stored_are_refused() {
        for names in [&["a", "a"][..], &["__metadata__"], &[""], &["a\0"]] {
            assert!(plan(names).is_err(), "{names:?}");
        }
        assert!(plan(&["a", "b"]).is_ok());
    }

    #[test]
    fn headers_that_lie_are_refused_and_the_error_names_the_tensor() {
        let tensor = |shape: &str, from: u64, to: u64, dtype: &str| {
            format!(r#""a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
        };
        let good = tensor("[2]", 0, 8, "F32");
        let cases = [
            (format!("{{{good}}}"), 8, Ok(())),
            (format!("{{{good}}}"), 9, Err("describes")),
            (format!("{{{good},{good}}}"), 8, Err("a appears twice")),
            (format!("{{{good},{}}}", good.replace("\"a\"", "\"b\"")), 8, Err("overlap")),
            (
                format!("{{{}}}", tensor("[2]", 0, 4, "F32")),
                4,
                Err("tensor a: F32 [2] does not match"),
            ),
            (format!("{{{}}}", tensor("[2]", 4, 12, "F32")), 12, Err("a gap")),
            (format!("{{{}}}", tensor("[2]", 8, 0, "F32")), 8, Err("does not match")),
            (format!("{{{}}}", tensor("[4]", 0, 4, "F8_E5M2")), 4, Err("tensor a: dtype F8_E5M2")),
            (
                format!("{{{}}}", tensor("[4294967296,4294967296,4]", 0, 8, "F32")),
                8,
                Err("not match"),
            ),
            (
                format!("{{{}}}", tensor("[18446744073709551615,2]", 0, 8, "F32")),
                8,
                Err("not match"),
            ),
            (
                format!("{{{}}}", tensor(&format!("[{}1]", "1,".repeat(20)), 0, 4, "F32")),
                4,
                Err("rank"),
            ),
            (
                format!("{{{}}}", tensor("[4611686018427387900]", 8, u64::MAX - 7, "F32")),
                8,
                Err("truncated"),
            ),
            (format!("{{{}}}", tensor("[-1]", 0, 8, "F32")), 8, Err("damaged")),
            ("[".repeat(5000), 0, Err("damaged")),
            ("{".into(), 0, Err("damaged")),
            ("{}".into(), 0, Ok(())),
        ];
        for (json, data, expected) in cases {
            let bytes = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes()].concat();
            let size = bytes.len() as u64 + data;
            let found = Header::parse(bytes, size).map(drop);
            match (&found, expected) {
                (Ok(()), Ok(())) => {}
                (Err(error), Err(words)) => assert!(error.contains(words), "{json}: {error}"),
                _ => panic!("{json}: {found:?}"),
            }
        }
    }

    #[test]
    fn only_the_header_of_a_file_is_read_and_a_map_has_the_numbers() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        let write = |file: &mut File, bytes: &[u8]| {
            file.set_len(0).unwrap();
            std::io::Seek::rewind(file).unwrap();
            file.write_all(bytes).unwrap();
        };
        let header = plan(&["a", "b"]).unwrap();
        let numbers: Vec<u8> = (0..16).collect();
        write(&mut file, &[&header.bytes[..], &numbers].concat());
        assert_eq!(Header::read(&file).unwrap(), header);
        // SAFETY: no other code accesses the file.
        let mapped = unsafe { MappedTensors::open(&file) }.unwrap();
        assert_eq!(mapped.bytes(mapped.header().get("b").unwrap()), &numbers[8..]);
        drop(mapped);
        for bad in [&b"short"[..], &[255; 16], &9u64.to_le_bytes()] {
            write(&mut file, bad);
            assert!(Header::read(&file).is_err(), "{bad:?}");
        }
    }
}
