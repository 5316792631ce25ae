//! The entries of a zip archive as PyTorch writes it: stored, never compressed.
//!
//! PKWARE's APPNOTE.TXT 6.3.10, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to
//! 4.3.16 (its end, ZIP64). Compressed, encrypted and split archives are refused: what is stored cannot
//! be larger than the file.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// An entry: bytes of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub name: String,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// CRC-32 of the bytes.
    pub crc: u32,
}

/// The longest comment of an archive and the record before it.
const MAX_END: u64 = 65_535 + 22;
/// Largest central directory, in bytes.
const MAX_DIRECTORY: u64 = 64 << 20;
/// In the 32-bit fields: the value is in the ZIP64 record.
const ELSEWHERE: u64 = 0xffff_ffff;

/// The entries of an archive of `bytes` bytes. The error says what is wrong with it.
pub(super) fn entries(file: &File, bytes: u64) -> Result<Vec<Entry>, String> {
    let tail_start = bytes.saturating_sub(MAX_END);
    let tail = read(file, tail_start, bytes - tail_start)?;
    let end =
        tail.windows(4).rposition(|w| w == b"PK\x05\x06").ok_or("cut short: no end of archive")?;
    let record = Record(&tail[end..]);
    let (mut size, mut start) = (record.u32(12)?, record.u32(16)?);
    if start == ELSEWHERE || size == ELSEWHERE || record.u16(10)? == 0xffff {
        let locator = end.checked_sub(20).map(|at| Record(&tail[at..end]));
        let locator = locator.filter(|l| l.0.starts_with(b"PK\x06\x07"));
        let at = locator.ok_or("no ZIP64 locator")?.u64(8)?;
        let text = read(file, at, 56)?;
        let zip64 = Record(&text);
        if !text.starts_with(b"PK\x06\x06") {
            return Err("no ZIP64 record where it should be".into());
        }
        (size, start) = (zip64.u64(40)?, zip64.u64(48)?);
    }
    if size > MAX_DIRECTORY {
        return Err(format!("its directory claims {size} bytes"));
    }
    let directory = read(file, start, size)?;
    let mut found = Vec::new();
    let mut rest = directory.as_slice();
    while rest.starts_with(b"PK\x01\x02") {
        let (entry, length) = central(file, rest)?;
        if entry.start.checked_add(entry.size).is_none_or(|end| end > bytes) {
            return Err(format!("{} lies beyond the end of the file", entry.name));
        }
        found.push(entry);
        rest = rest.get(length..).ok_or("its directory is cut short")?;
    }
    if rest.is_empty() { Ok(found) } else { Err("its directory is damaged".into()) }
}

/// Reads an entry whole and compares it with its checksum.
pub(super) fn contents(file: &File, entry: &Entry) -> Result<Vec<u8>, String> {
    let bytes = read(file, entry.start, entry.size)?;
    match crc32fast::hash(&bytes) == entry.crc {
        true => Ok(bytes),
        false => Err(format!("{} was changed after it was written", entry.name)),
    }
}

/// An entry of the central directory, and the length of its record.
fn central(file: &File, text: &[u8]) -> Result<(Entry, usize), String> {
    let record = Record(text);
    let [name_length, extra_length, comment] =
        [28, 30, 32].map(|at| record.u16(at).unwrap_or(u64::MAX >> 2) as usize);
    let name =
        text.get(46..46usize.saturating_add(name_length)).ok_or("its directory is cut short")?;
    let name = std::str::from_utf8(name).map_err(|_| "a name that is no UTF-8")?.to_string();
    let (flags, method) = (record.u16(8)?, record.u16(10)?);
    if method != 0 || flags & 1 != 0 {
        return Err(format!("{name} is compressed or encrypted, which PyTorch never does"));
    }
    let (mut size, mut header) = (record.u32(24)?, record.u32(42)?);
    let extra = text.get(46 + name_length..46 + name_length + extra_length);
    let mut wide = Record(zip64_extra(extra.ok_or("its directory is cut short")?));
    // In this order, and only those that do not fit: size, stored size, place of the local header.
    for (value, used) in [(&mut size, true), (&mut record.u32(20)?, false), (&mut header, true)] {
        if *value == ELSEWHERE {
            let found = wide.u64(0)?;
            wide = Record(&wide.0[8..]);
            if used {
                *value = found;
            }
        }
    }
    let local = read(file, header, 30)?;
    if !local.starts_with(b"PK\x03\x04") {
        return Err(format!("{name}: no header where it should be"));
    }
    let local = Record(&local);
    let start = header.checked_add(30 + local.u16(26)? + local.u16(28)?);
    let start = start.ok_or_else(|| format!("{name}: no such place"))?;
    let crc = record.u32(16)? as u32;
    Ok((Entry { name, start, size, crc }, 46 + name_length + extra_length + comment))
}

/// The ZIP64 field (1) among the extra fields; empty when there is none.
fn zip64_extra(mut extra: &[u8]) -> &[u8] {
    while let [a, b, c, d, rest @ ..] = extra {
        let length = usize::from(u16::from_le_bytes([*c, *d])).min(rest.len());
        if u16::from_le_bytes([*a, *b]) == 1 {
            return &rest[..length];
        }
        extra = &rest[length..];
    }
    &[]
}

fn read(file: &File, start: u64, length: u64) -> Result<Vec<u8>, String> {
    let size = file.metadata().map_err(|cause| cause.to_string())?.len();
    if start.checked_add(length).is_none_or(|end| end > size) {
        return Err(format!("{length} bytes from {start} are beyond the end of the file"));
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, start).map_err(|cause| cause.to_string())?;
    Ok(bytes)
}

/// Little-endian numbers at places of a record.
struct Record<'a>(&'a [u8]);

impl Record<'_> {
    fn number(&self, at: usize, length: usize) -> Result<u64, String> {
        let bytes = self.0.get(at..at + length).ok_or("a record is cut short")?;
        Ok(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }
    fn u16(&self, at: usize) -> Result<u64, String> {
        self.number(at, 2)
    }
    fn u32(&self, at: usize) -> Result<u64, String> {
        self.number(at, 4)
    }
    fn u64(&self, at: usize) -> Result<u64, String> {
        self.number(at, 8)
    }
}
