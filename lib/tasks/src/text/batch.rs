//! Batches of texts of different lengths.

use super::encoder::Tokens;
use learn::forward::Forward;
use learn::task::Batch;
use tensor::Tensor;
use unix::Result;

/// Sequences are padded to a multiple of this length, which kernels like.
const MULTIPLE: usize = 8;
/// Added to the states of padding before a maximum.
const HIDDEN: f32 = -1e30;

/// A batch of texts, given as token ids and segments, padded with `padding` to a multiple of 8 of the longest. `first` is
/// the position of the first token. Its tensors: ids, types and positions, i32 [B, T]; lengths, i32 [B]; mean [B, 1, T], the
/// weights of a mean over the tokens of each text; hidden [B, T, 1], 0 at tokens and -1e30 at padding. Its weight is the
/// number of texts.
pub fn padded(texts: &[(&[i32], &[u8])], padding: i32, first: usize) -> Batch {
    let longest = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let (count, width) = (texts.len(), longest.max(1).next_multiple_of(MULTIPLE));
    let mut ids = vec![padding; count * width];
    let mut types = vec![0; count * width];
    let mut mean = vec![0.0_f32; count * width];
    let mut hidden = vec![HIDDEN; count * width];
    let mut positions = vec![first as i32; count * width];
    for (row, (of_text, segments)) in texts.iter().enumerate() {
        let own = row * width..row * width + of_text.len();
        ids[own.clone()].copy_from_slice(of_text);
        for (found, segment) in types[own.clone()].iter_mut().zip(*segments) {
            *found = i32::from(*segment);
        }
        mean[own.clone()].fill(1.0 / of_text.len() as f32);
        hidden[own.clone()].fill(0.0);
        for (at, position) in positions[own].iter_mut().enumerate() {
            *position = (first + at) as i32;
        }
    }
    let lengths: Vec<i32> = texts.iter().map(|(ids, _)| ids.len() as i32).collect();
    Batch::new(count as f64)
        .with("ids", Tensor::from_slice(&ids, &[count, width]))
        .with("types", Tensor::from_slice(&types, &[count, width]))
        .with("positions", Tensor::from_slice(&positions, &[count, width]))
        .with("lengths", Tensor::from_slice(&lengths, &[count]))
        .with("mean", Tensor::from_slice(&mean, &[count, 1, width]))
        .with("hidden", Tensor::from_slice(&hidden, &[count, width, 1]))
}

impl Tokens {
    /// Those of a batch that [`padded`] made.
    pub fn of(batch: &Batch, forward: &Forward) -> Result<Self> {
        let [ids, types, positions, lengths] =
            ["ids", "types", "positions", "lengths"].map(|name| batch.input(forward, name));
        Ok(Self { ids: ids?, types: types?, positions: positions?, lengths: lengths? })
    }
}
