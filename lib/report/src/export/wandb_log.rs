//! The container of `.wandb` files: LevelDB's log format (doc/log_format.md of LevelDB) with the header and checksum of
//! Weights & Biases.
//!
//! After a header of 7 bytes (`:W&B`, 0xBEE1, version 0) come blocks of 32 KiB; the header belongs to the first. A
//! record is split into chunks that do not cross block boundaries: CRC-32 (IEEE) of type and data, length (u16), type,
//! data. The end of a block is zero if it is too short for a chunk header.

const BLOCK: usize = 32 << 10;
const HEADER_BYTES: usize = 7;

/// A `.wandb` file in memory.
pub(super) struct WandbLog(Vec<u8>);

impl WandbLog {
    pub fn new() -> Self {
        Self(b":W&B\xe1\xbe\x00".to_vec())
    }

    /// Appends a record.
    pub fn add(&mut self, mut data: &[u8]) {
        let mut is_first = true;
        loop {
            let mut left = BLOCK - self.0.len() % BLOCK;
            if left < HEADER_BYTES {
                self.0.resize(self.0.len() + left, 0);
                left = BLOCK;
            }
            let (chunk, rest) = data.split_at(data.len().min(left - HEADER_BYTES));
            let kind: u8 = match (is_first, rest.is_empty()) {
                (true, true) => 1,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut crc = crc32fast::Hasher::new();
            crc.update(&[kind]);
            crc.update(chunk);
            self.0.extend(crc.finalize().to_le_bytes());
            self.0.extend((chunk.len() as u16).to_le_bytes());
            self.0.push(kind);
            self.0.extend(chunk);
            if rest.is_empty() {
                return;
            }
            (data, is_first) = (rest, false);
        }
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads kind and length of every chunk and checks the requirements of the format.
    fn chunks(file: &[u8]) -> Vec<(u8, usize)> {
        let (mut found, mut at) = (Vec::new(), HEADER_BYTES);
        while at < file.len() {
            let left = BLOCK - at % BLOCK;
            if left < HEADER_BYTES {
                assert!(file[at..at + left].iter().all(|byte| *byte == 0));
                at += left;
                continue;
            }
            let length = usize::from(file[at + 4]) + 256 * usize::from(file[at + 5]);
            assert!(HEADER_BYTES + length <= left, "a chunk crosses a block");
            let content = &file[at + 6..at + HEADER_BYTES + length];
            assert_eq!(file[at..at + 4], crc32fast::hash(content).to_le_bytes());
            found.push((content[0], length));
            at += HEADER_BYTES + length;
        }
        found
    }

    #[test]
    fn records_are_split_at_blocks() {
        let written = |lengths: &[usize]| {
            let mut log = WandbLog::new();
            lengths.iter().for_each(|length| log.add(&vec![1; *length]));
            chunks(&log.bytes())
        };
        let room = BLOCK - 2 * HEADER_BYTES;
        assert_eq!(written(&[0, 3]), [(1, 0), (1, 3)]);
        assert_eq!(written(&[room]), [(1, room)]);
        assert_eq!(written(&[room + 1]), [(2, room), (4, 1)]);
        assert_eq!(written(&[room - 6, 2]), [(1, room - 6), (1, 2)]);
        assert_eq!(written(&[room - 7, 2]), [(1, room - 7), (2, 0), (4, 2)]);
        let whole = BLOCK - HEADER_BYTES;
        assert_eq!(written(&[room + whole + 5]), [(2, room), (3, whole), (4, 5)]);
    }
}
