//! Retrieval of vectors by cosine, computed in f64.
//!
//! A record's own target counts as found only if its cosine is the largest by more than [`TIE`]: ties, and cosines that
//! are not numbers, count against the model. The cosine with a vector of zeros is 0.

use rayon::prelude::*;
use tensor::product::{View, product};

/// Cosines that differ by less are equal: products of D ≤ 1024 terms have rounding errors of about 1e-15.
const TIE: f64 = 1e-12;
/// Number of rows of the matrix of cosines that are computed at once.
const ROWS: usize = 64;

/// The cosine of each vector with the one in the same place, [rows].
pub fn paired_cosines(vectors: &[f32], targets: &[f32], dim: usize) -> Vec<f64> {
    let pairs = vectors.par_chunks_exact(dim).zip(targets.par_chunks_exact(dim));
    pairs.map(|(a, b)| cosine(a, b)).collect()
}

/// The rank of each record's own vector, from 1, in a pool: one plus the number of others in the pool that are at least
/// as close to the prediction. Vectors are [records, dim]; the pool begins with the targets and may continue with
/// distractors.
///
/// # Panics
/// If the pool has fewer vectors than there are predictions.
pub fn ranks(predictions: &[f32], pool: &[f32], dim: usize) -> Vec<usize> {
    assert!(pool.len() >= predictions.len(), "the pool must contain each record's own vector");
    each_row(predictions, pool, dim, |row, cosines| {
        cosines.iter().filter(|other| !is_closer(cosines[row], **other)).count()
    })
}

/// Recall at k: the share of ranks that are at most `k`; NaN without ranks.
pub fn recall(ranks: &[usize], k: usize) -> f64 {
    ranks.iter().filter(|rank| **rank <= k).count() as f64 / ranks.len() as f64
}

/// For each record, whether its own vector is the closest among those of its group, such as variants of one sentence.
/// `groups` are numbered from 0.
pub fn within_groups(
    predictions: &[f32],
    targets: &[f32],
    dim: usize,
    groups: &[usize],
) -> Vec<bool> {
    let mut members = vec![Vec::new(); groups.iter().max().map_or(0, |last| last + 1)];
    groups.iter().enumerate().for_each(|(record, group)| members[*group].push(record));
    let found = |record: usize| {
        let prediction = row(predictions, dim, record);
        let own = cosine(prediction, row(targets, dim, record));
        let others = members[groups[record]].iter().filter(|other| **other != record);
        others.copied().all(|other| is_closer(own, cosine(prediction, row(targets, dim, other))))
    };
    (0..groups.len()).into_par_iter().map(found).collect()
}

/// Two-alternative forced choice: for each pair of records, such as a sentence and a variant of it, and for each of the
/// two, whether its prediction is closer to its own vector than to that of the other.
pub fn pairwise(
    predictions: &[f32],
    targets: &[f32],
    dim: usize,
    pairs: &[[usize; 2]],
) -> Vec<[bool; 2]> {
    let found = |pair: &[usize; 2]| {
        [[0, 1], [1, 0]].map(|[own, other]| {
            let of = |at: usize| row(targets, dim, pair[at]);
            let prediction = row(predictions, dim, pair[own]);
            is_closer(cosine(prediction, of(own)), cosine(prediction, of(other)))
        })
    };
    pairs.par_iter().map(found).collect()
}

/// Calls `visit` with the index of each vector and its cosines with the pool, in parallel, and returns the results in
/// the order of the vectors. Holds [`ROWS`] rows of the matrix per thread.
pub(in crate::multimodal) fn each_row<T: Send>(
    vectors: &[f32],
    pool: &[f32],
    dim: usize,
    visit: impl Fn(usize, &[f64]) -> T + Sync,
) -> Vec<T> {
    let (vectors, pool) = (unit_rows(vectors, dim), unit_rows(pool, dim));
    let size = pool.len() / dim;
    let block = |(block, rows): (usize, &[f64])| -> Vec<T> {
        let count = rows.len() / dim;
        let mut cosines = vec![0.0; count * size];
        let pool = View::new(&pool, size, dim, dim).transposed();
        product(&mut cosines, size, false, 1.0, View::new(rows, count, dim, dim), pool);
        let rows = (0..count).map(|row| &cosines[row * size..][..size]);
        rows.zip(block * ROWS..).map(|(cosines, row)| visit(row, cosines)).collect()
    };
    vectors.par_chunks(ROWS * dim).enumerate().flat_map_iter(block).collect()
}

fn is_closer(own: f64, other: f64) -> bool {
    own - other > TIE
}

fn row(vectors: &[f32], dim: usize, at: usize) -> &[f32] {
    &vectors[at * dim..][..dim]
}

/// The vectors divided by their norms.
fn unit_rows(vectors: &[f32], dim: usize) -> Vec<f64> {
    let unit = |row: &[f32]| -> Vec<f64> {
        let norm = dot(row, row).sqrt();
        let scale = if norm == 0.0 { 0.0 } else { 1.0 / norm };
        row.iter().map(|x| f64::from(*x) * scale).collect()
    };
    vectors.par_chunks_exact(dim).flat_map_iter(unit).collect()
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let norms = (dot(a, a) * dot(b, b)).sqrt();
    if norms == 0.0 { 0.0 } else { dot(a, b) / norms }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}
