//! A line of the log: a JSON object whose last field is the checksum of the bytes before it.
//!
//! In `{"time":"…","update":3,"crc":"0f3a9c21"}`, the checksum is the CRC-32 of zlib and gzip over everything before
//! `,"crc"`, in hexadecimal.

use serde_json::{Map, Value};

const KEY: &[u8] = b",\"crc\":\"";
const END: &[u8] = b"\"}";
/// Length of the checksum field in bytes.
const TAIL: usize = KEY.len() + 8 + END.len();

/// Appends the checksum and the newline to a non-empty JSON object.
pub(super) fn seal(mut object: Vec<u8>) -> Vec<u8> {
    object.pop(); // the closing brace
    let crc = crc32fast::hash(&object);
    object.extend(KEY);
    object.extend(format!("{crc:08x}").into_bytes());
    object.extend(END);
    object.push(b'\n');
    object
}

/// Parses a line into its record, without the checksum; `None` if the line is damaged.
pub(super) fn open(line: &[u8]) -> Option<Map<String, Value>> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let (object, tail) = line.split_at_checked(line.len().checked_sub(TAIL)?)?;
    let crc = tail.strip_prefix(KEY)?.strip_suffix(END)?;
    if crc != format!("{:08x}", crc32fast::hash(object)).as_bytes() {
        return None;
    }
    let mut record: Map<String, Value> = serde_json::from_slice(line).ok()?;
    record.shift_remove("crc");
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_changed_bit_and_every_cut_is_found() {
        let line = seal(br#"{"kind":"update","update":3,"loss":0.25}"#.to_vec());
        assert_eq!(
            line,
            b"{\"kind\":\"update\",\"update\":3,\"loss\":0.25,\"crc\":\"063b81ba\"}\n"
        );
        let record = open(&line).unwrap();
        assert_eq!(record.len(), 3);
        let whole = line.len() - 1;
        for at in 0..whole {
            for bit in 0..8 {
                let mut changed = line.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(open(&changed), None, "bit {bit} of byte {at}");
            }
            assert_eq!(open(&line[..at]), None, "cut at {at}");
        }
        assert_eq!(open(&line[..whole]), Some(record), "only its newline is missing");
        assert_eq!(open(br#"{"kind":"update","update":3,"loss":0.25}"#), None, "no checksum");
    }
}
