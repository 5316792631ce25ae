//! Texts from vectors: the text of the training record with the nearest vector.

use crate::multimodal::metrics::each_row;

/// The index of the training vector with the largest cosine to each vector; the first one on ties. Vectors are [..,
/// dim], and there is at least one training vector.
pub fn nearest(vectors: &[f32], train: &[f32], dim: usize) -> Vec<usize> {
    each_row(vectors, train, dim, |_, cosines| {
        (1..cosines.len()).fold(0, |best, at| if cosines[at] > cosines[best] { at } else { best })
    })
}
