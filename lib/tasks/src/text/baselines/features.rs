//! Texts as sparse TF-IDF vectors of hashed unigrams and bigrams.
//!
//! Equivalent to scikit-learn's `HashingVectorizer(n_features=2**18, ngram_range=(1, 2), alternate_sign=False,
//! norm=None)`, followed by its `TfidfTransformer()`.

use rayon::prelude::*;

/// Number of hashed features.
const FEATURES: u32 = 1 << 18;
/// Marks a feature that no training text has.
const UNSEEN: u32 = u32::MAX;

/// A sparse matrix, row by row.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// Number of columns.
    pub width: usize,
    /// First entry of each row, and the number of entries.
    starts: Vec<usize>,
    entries: Vec<(u32, f32)>,
}

/// Features of the training texts with their weights.
#[derive(Clone, Debug)]
pub struct Features {
    /// By hashed feature, its column; `UNSEEN` if no training text has it.
    columns: Vec<u32>,
    /// Inverse document frequency of each hashed feature.
    idf: Vec<f64>,
    /// Number of columns.
    width: usize,
}

impl Rows {
    /// A matrix of these rows, whose entries are sorted by column.
    pub fn of(width: usize, rows: Vec<Vec<(u32, f32)>>) -> Self {
        let mut starts = vec![0];
        starts.extend(rows.iter().scan(0, |end, row| {
            *end += row.len();
            Some(*end)
        }));
        Self { width, starts, entries: rows.concat() }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Column and value of each nonzero entry of a row.
    pub fn row(&self, at: usize) -> &[(u32, f32)] {
        &self.entries[self.starts[at]..self.starts[at + 1]]
    }

    /// The transpose of the matrix.
    pub fn transposed(&self) -> Self {
        let mut rows = vec![Vec::new(); self.width];
        for at in 0..self.len() {
            for (column, value) in self.row(at) {
                rows[*column as usize].push((at as u32, *value));
            }
        }
        Self::of(self.len(), rows)
    }
}

impl Features {
    /// The features of the training texts, and their vectors.
    pub fn fit<T: AsRef<str> + Sync>(texts: &[T]) -> (Self, Rows) {
        let counts: Vec<Vec<(u32, u32)>> =
            texts.par_iter().map(|text| count(text.as_ref())).collect();
        let mut texts_with = vec![0_u32; FEATURES as usize];
        counts.iter().flatten().for_each(|(feature, _)| texts_with[*feature as usize] += 1);
        let mut width = 0;
        let column = |n: &u32| match n {
            0 => UNSEEN,
            _ => {
                width += 1;
                width - 1
            }
        };
        let columns: Vec<u32> = texts_with.iter().map(column).collect();
        let all = 1.0 + texts.len() as f64;
        let inverse = |n: &u32| (all / (1.0 + f64::from(*n))).ln() + 1.0;
        let idf = texts_with.iter().map(inverse).collect();
        let features = Self { columns, idf, width: width as usize };
        let rows = counts.par_iter().map(|counts| features.weigh(counts)).collect();
        let rows = Rows::of(features.width, rows);
        (features, rows)
    }

    /// The vectors of other texts.
    pub fn of<T: AsRef<str> + Sync>(&self, texts: &[T]) -> Rows {
        let row = |text: &T| self.weigh(&count(text.as_ref()));
        Rows::of(self.width, texts.par_iter().map(row).collect())
    }

    /// TF-IDF, L2-normalised. Features that no training text has contribute to the norm only.
    fn weigh(&self, counts: &[(u32, u32)]) -> Vec<(u32, f32)> {
        let weight = |(feature, n): &(u32, u32)| f64::from(*n) * self.idf[*feature as usize];
        let norm = counts.iter().map(|own| weight(own).powi(2)).sum::<f64>().sqrt();
        let seen = counts.iter().filter(|(feature, _)| self.columns[*feature as usize] != UNSEEN);
        seen.map(|own| (self.columns[own.0 as usize], (weight(own) / norm) as f32)).collect()
    }
}

/// How often each hashed feature occurs in a text, in the order of features.
pub(super) fn count(text: &str) -> Vec<(u32, u32)> {
    let text = text.to_lowercase();
    let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
    let words = text.split(|c| !is_in_word(c)).filter(|word| word.chars().nth(1).is_some());
    let words: Vec<&str> = words.collect();
    let pairs = words.windows(2).map(|pair| feature(pair.join(" ").as_bytes()));
    let mut found: Vec<u32> =
        words.iter().map(|word| feature(word.as_bytes())).chain(pairs).collect();
    found.sort_unstable();
    found.chunk_by(|a, b| a == b).map(|equal| (equal[0], equal.len() as u32)).collect()
}

/// The hashed feature of a word or pair of words.
fn feature(bytes: &[u8]) -> u32 {
    murmur3(bytes).cast_signed().unsigned_abs() % FEATURES
}

/// MurmurHash3_x86_32 (Appleby) with seed 0.
pub(crate) fn murmur3(bytes: &[u8]) -> u32 {
    let mix = |k: u32| k.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let (blocks, tail) = bytes.as_chunks::<4>();
    let mut hash = 0;
    for block in blocks {
        hash ^= mix(u32::from_le_bytes(*block));
        hash = u32::rotate_left(hash, 13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let mut last = [0; 4];
    last[..tail.len()].copy_from_slice(tail);
    hash ^= mix(u32::from_le_bytes(last));
    hash ^= bytes.len() as u32;
    hash = (hash ^ hash >> 16).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ hash >> 13).wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}
