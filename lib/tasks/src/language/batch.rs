//! Sequences of tokens and images as tensors.

use super::model::Sequences;
use super::record_patches::RecordPatches;
use super::rope::Rope;
use super::vision::{self, Images, VisionConfig};
use data::text::TokenSet;
use learn::forward::Forward;
use learn::task::Batch;
use tensor::{Dtype, Tensor};
use unix::{Error, Result};

/// Sequence lengths and numbers of labels are rounded up to a multiple of this, for which kernels are faster.
const MULTIPLE: usize = 8;
/// Targets with this value are ignored by the loss.
pub(super) const IGNORE: i32 = -100;

/// A sequence of tokens, its images, and the positions that a loss counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Labelled<'a> {
    /// Token ids.
    pub ids: &'a [i32],
    /// 1 for each token that the loss counts, otherwise 0; those that are missing are not counted.
    pub counted: &'a [u8],
    /// The images whose tokens are in `ids`.
    pub images: Images<'a>,
}

impl<'a> Labelled<'a> {
    /// Record `i` of a set of conversations, without its images. Errors: 65 for damaged tokens.
    pub fn of(set: &'a TokenSet, i: usize) -> Result<Self> {
        let (ids, counted) = (set.checked(i)?.ids, set.types(i));
        Ok(Self { ids, counted, images: Images::default() })
    }

    /// Adds its images.
    pub fn with(self, images: &'a RecordPatches) -> Self {
        Self { images: images.images(), ..self }
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

/// How sequences become tensors.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) rope: Rope,
    /// Id of the padding token.
    pub(super) padding: i32,
    /// The vision tower that the images are for.
    pub(super) vision: Option<VisionConfig>,
}

impl Layout {
    /// The batch of these sequences, see [`Language::batch`](super::Language::batch). Errors: those of [`Self::padded`].
    pub(super) fn batch(&self, sequences: &[Labelled], dtype: Dtype) -> Result<Batch> {
        let (batch, _) = self.padded(sequences, MULTIPLE, dtype)?;
        let width = width(sequences, MULTIPLE);
        let (mut rows, mut targets) = (Vec::new(), Vec::new());
        for (b, own) in sequences.iter().enumerate() {
            let (own_rows, own_targets) = own.labelled_rows(b * width);
            rows.extend(own_rows);
            targets.extend(own_targets);
        }
        let labels = rows.len();
        let all = labels.max(1).next_multiple_of(MULTIPLE);
        rows.resize(all, 0);
        targets.resize(all, IGNORE);
        Ok(batch
            .weighing(labels as f64)
            .with("rows", Tensor::from_slice(&rows, &[all]))
            .with("targets", Tensor::from_slice(&targets, &[all])))
    }

    /// Sequences padded to the length of the longest one, rounded up to a multiple of `multiple`, as a batch without labels; and
    /// the position of the token that follows each sequence.
    ///
    /// Errors: 65 when the image tokens of a sequence are not those of its images, or it has images and the model no tower.
    pub(super) fn padded(
        &self,
        sequences: &[Labelled],
        multiple: usize,
        dtype: Dtype,
    ) -> Result<(Batch, Vec<i32>)> {
        let (count, width) = (sequences.len(), width(sequences, multiple));
        let mut ids = vec![self.padding; count * width];
        for (b, own) in sequences.iter().enumerate() {
            ids[b * width..][..own.ids.len()].copy_from_slice(own.ids);
        }
        let lengths: Vec<i32> = sequences.iter().map(|own| own.ids.len() as i32).collect();
        let placed = self.vision.as_ref().map(|own| vision::placed(own, sequences)).transpose()?;
        let has_images = sequences.iter().any(|own| !own.images.grids.is_empty());
        let batch = Batch::new(0.0)
            .with("ids", Tensor::from_slice(&ids, &[count, width]))
            .with("lengths", Tensor::from_slice(&lengths, &[count]));
        let (Some(config), Some(placed), true) = (&self.vision, placed, has_images) else {
            if has_images {
                let what = "a sequence has images, but the model has no vision tower: model.vision is null";
                return Err(Error::data(what));
            }
            let positions: Vec<i32> = (0..width as i32).collect();
            return Ok((batch.with("angles", self.rope.table(&positions, dtype)), lengths));
        };
        let mut positions = Vec::with_capacity(count * width);
        for (b, own) in placed.iter().enumerate() {
            positions.extend(&own.positions);
            positions.resize((b + 1) * width, [0; 3]);
        }
        let angles = self.rope.table_of_axes(&positions, config.mrope_section, dtype);
        let angles = angles.reshape(&[count, width, angles.width()]);
        let images = vision::tensors(config, sequences, width, dtype);
        // The tower has blocks of its own, which may be recomputed.
        let batch = images
            .into_iter()
            .fold(batch.with("angles", angles), |batch, (name, own)| batch.with(name, own))
            .with_variant(1);
        Ok((batch, placed.iter().map(|own| own.next).collect()))
    }
}

/// The number of tokens that sequences are padded to.
fn width(sequences: &[Labelled], multiple: usize) -> usize {
    let longest = sequences.iter().map(|own| own.ids.len()).max().unwrap_or(0);
    longest.max(1).next_multiple_of(multiple)
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
    /// The tokens of a batch of [`Language::batch`](super::Language::batch).
    pub fn of(batch: &Batch, forward: &Forward) -> Result<Self> {
        let [ids, angles, lengths] =
            ["ids", "angles", "lengths"].map(|name| batch.input(forward, name));
        Ok(Self { ids: ids?, angles: angles?, lengths: lengths? })
    }
}
