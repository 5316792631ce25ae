//! Batches of sequences of tokens.

use super::model::Sequences;
use super::rope::Rope;
use data::text::TokenSet;
use learn::forward::Forward;
use learn::task::Batch;
use tensor::{Dtype, Tensor};
use unix::Result;

/// Sequence lengths and numbers of labels are rounded up to a multiple of this, for which kernels are faster.
const MULTIPLE: usize = 8;
/// Targets with this value are ignored by the loss.
pub(super) const IGNORE: i32 = -100;

/// A sequence of tokens, and the positions that a loss counts.
#[derive(Clone, Copy, Debug)]
pub struct Labelled<'a> {
    /// Token ids.
    pub ids: &'a [i32],
    /// 1 for each token that the loss counts, otherwise 0.
    pub counted: &'a [u8],
}

impl<'a> Labelled<'a> {
    /// Record `i` of a set of conversations. Errors: 65 for damaged tokens.
    pub fn of(set: &'a TokenSet, i: usize) -> Result<Self> {
        Ok(Self { ids: set.checked(i)?.ids, counted: set.types(i) })
    }

    /// The positions of the labels; the first token has nothing that it could be predicted from.
    fn positions(&self) -> impl Iterator<Item = usize> {
        (1..self.ids.len()).filter(|at| self.counted.get(*at) == Some(&1))
    }

    /// The positions before the labels, counted from `first`, and the labels.
    pub(super) fn labelled_rows(&self, first: usize) -> (Vec<i32>, Vec<i32>) {
        self.positions().map(|at| ((first + at - 1) as i32, self.ids[at])).unzip()
    }

    /// The labels.
    pub fn labels(&self) -> impl Iterator<Item = i32> {
        self.positions().map(|at| self.ids[at])
    }
}

/// A batch of sequences, each padded with token `padding` to the length of the longest one, rounded up to a multiple of 8.
///
/// Tensors: `ids`, i32 [B, T]; `lengths`, i32 [B]; `angles`, f32 [T, D], cosines and sines of the positions; `rows`, i32 [L],
/// the positions b·T + t whose next token is a label, in the order of the sequences, and `targets`, i32 [L], these labels. L is
/// rounded up in the same way, with targets that the loss ignores. The weight of the batch is the number of labels.
pub fn batch_of(sequences: &[Labelled], padding: i32, rope: &Rope) -> Batch {
    let longest = sequences.iter().map(|own| own.ids.len()).max().unwrap_or(0);
    let (count, width) = (sequences.len(), longest.max(1).next_multiple_of(MULTIPLE));
    let mut ids = vec![padding; count * width];
    let (mut rows, mut targets) = (Vec::new(), Vec::new());
    for (b, own) in sequences.iter().enumerate() {
        ids[b * width..][..own.ids.len()].copy_from_slice(own.ids);
        let (own_rows, own_targets) = own.labelled_rows(b * width);
        rows.extend(own_rows);
        targets.extend(own_targets);
    }
    let labels = rows.len();
    let all = labels.max(1).next_multiple_of(MULTIPLE);
    rows.resize(all, 0);
    targets.resize(all, IGNORE);
    let lengths: Vec<i32> = sequences.iter().map(|own| own.ids.len() as i32).collect();
    let positions: Vec<i32> = (0..width as i32).collect();
    Batch::new(labels as f64)
        .with("ids", Tensor::from_slice(&ids, &[count, width]))
        .with("lengths", Tensor::from_slice(&lengths, &[count]))
        .with("angles", rope.table(&positions, Dtype::F32))
        .with("rows", Tensor::from_slice(&rows, &[all]))
        .with("targets", Tensor::from_slice(&targets, &[all]))
}

/// Groups sequences with these lengths, by number, into batches of similar length with at most `tokens` tokens, padding
/// included, or one sequence. The result depends on nothing else.
pub(super) fn by_length(lengths: &[usize], tokens: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| lengths[*i]);
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for i in order {
        let width = lengths[i].next_multiple_of(MULTIPLE);
        match batches.last_mut() {
            Some(last) if (last.len() + 1) * width <= tokens => last.push(i),
            _ => batches.push(vec![i]),
        }
    }
    batches
}

impl Sequences {
    /// The sequences of a batch made by [`batch_of`].
    pub fn of(batch: &Batch, forward: &Forward) -> Result<Self> {
        let [ids, angles, lengths] =
            ["ids", "angles", "lengths"].map(|name| batch.input(forward, name));
        Ok(Self { ids: ids?, angles: angles?, lengths: lengths? })
    }
}
