//! Small mutations of valid files, of bytes and of structure, determined by a seed.

use serde_json::{Map, Value, json};
use tensor::random::{Philox, Purpose};

/// Numbers that commonly break arithmetic.
const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    0x7f,
    0xff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// The mutations of one case.
pub struct Mutator {
    random: Philox,
    case: u64,
    drawn: u64,
}

impl Mutator {
    pub fn new(seed: u64, case: u64) -> Self {
        Self { random: Philox::new(seed, Purpose::Test), case, drawn: 0 }
    }

    /// A random number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        self.drawn += 1;
        self.random.below(self.case, self.drawn, n.max(1) as u64) as usize
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    /// One to four mutations of bytes.
    pub fn bytes(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..1 + self.below(4) {
            let at = self.below(bytes.len());
            let end = (at + 1 + self.below(32)).min(bytes.len());
            match self.below(8) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 if at < bytes.len() => bytes[at] = self.below(256) as u8,
                2 => drop(bytes.drain(at.min(end)..end)),
                3 => {
                    let copied = bytes[at.min(end)..end].to_vec();
                    let times = 1 + self.below(40);
                    (0..times).for_each(|_| drop(bytes.splice(at..at, copied.iter().copied())));
                }
                4 => bytes.truncate(at),
                5 => {
                    let number = self.one(&NUMBERS).to_le_bytes();
                    let width = self.one(&[1, 2, 4, 8]).min(bytes.len() - at);
                    bytes[at..at + width].copy_from_slice(&number[..width]);
                }
                6 => {
                    let from = self.below(bytes.len());
                    let piece = bytes[from..(from + 64).min(bytes.len())].to_vec();
                    drop(bytes.splice(at..at, piece));
                }
                _ => {
                    let noise: Vec<u8> =
                        (0..self.below(9)).map(|_| self.below(256) as u8).collect();
                    drop(bytes.splice(at..at, noise));
                }
            }
        }
        bytes
    }

    /// Replaces one to three small integers of a pickle (BININT1: sizes, strides, counts) by large ones (LONG1).
    pub fn sizes(&mut self, mut pickle: Vec<u8>) -> Vec<u8> {
        for _ in 0..1 + self.below(3) {
            let places: Vec<usize> =
                (0..pickle.len().saturating_sub(1)).filter(|at| pickle[*at] == b'K').collect();
            if !places.is_empty() {
                let at = self.one(&places);
                let number = self.one(&NUMBERS).to_le_bytes();
                drop(pickle.splice(at..at + 2, [0x8a, 8].into_iter().chain(number)));
            }
        }
        pickle
    }

    /// Like [`bytes`](Self::bytes), or replaces a number in the text.
    pub fn text(&mut self, good: &str) -> Vec<u8> {
        let digits: Vec<usize> = good
            .bytes()
            .enumerate()
            .filter(|(_, b)| b.is_ascii_digit())
            .map(|(at, _)| at)
            .collect();
        if digits.is_empty() || self.below(2) == 0 {
            return self.bytes(good.as_bytes());
        }
        let start = self.one(&digits);
        let end =
            good[start..].find(|c: char| !c.is_ascii_digit()).map_or(good.len(), |n| start + n);
        let number = self.one(&NUMBERS);
        let new = self.one(&[
            number.to_string(),
            format!("-{number}"),
            "1e999".into(),
            "0x".into(),
            "9".repeat(400),
            String::new(),
        ]);
        format!("{}{new}{}", &good[..start], &good[end..]).into_bytes()
    }

    /// Changes, removes or repeats one to three values of a document.
    pub fn json(&mut self, good: &Value) -> Value {
        let mut value = good.clone();
        for _ in 0..1 + self.below(3) {
            self.change(&mut value);
        }
        value
    }

    fn change(&mut self, value: &mut Value) {
        let down = self.below(6) > 0;
        match value {
            Value::Object(map) if down && !map.is_empty() => {
                let key = map.keys().nth(self.below(map.len())).cloned().unwrap_or_default();
                match self.below(12) {
                    0 => drop(map.remove(&key)),
                    1 => {
                        let taken = map.remove(&key).unwrap_or_default();
                        map.insert(self.word(), taken);
                    }
                    _ => self.change(&mut map[&key]),
                }
            }
            Value::Array(list) if down && !list.is_empty() => {
                let at = self.below(list.len());
                match self.below(8) {
                    0 => drop(list.remove(at)),
                    1 => list.insert(at, list[at].clone()),
                    _ => self.change(&mut list[at]),
                }
            }
            value => *value = self.other(),
        }
    }

    fn word(&mut self) -> String {
        let long = "x".repeat(5000);
        let words = [
            "",
            "..",
            "../../../etc/passwd",
            "/dev/zero",
            "a\0b",
            "two\nlines",
            "__metadata__",
            "F32",
            "BF16",
            "train",
            "model.safetensors",
            &long,
        ];
        self.one(&words).to_string()
    }

    fn other(&mut self) -> Value {
        match self.below(8) {
            0 => Value::Null,
            1 => json!(true),
            2 => json!(-(self.one(&NUMBERS) as i64).max(1)),
            3 => json!(1e308),
            4 => json!(self.word()),
            5 => (0..200).fold(json!([]), |deep, _| json!([deep])),
            6 => Value::Object(Map::new()),
            _ => json!(self.one(&NUMBERS)),
        }
    }
}
