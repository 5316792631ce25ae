//! Copies the training state, so that training can continue while the copy is written.

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use unix::Result;

use super::image::{Image, ImagePlan};
use super::{PIECE, Tensors};

/// Copies below this size in bytes use a single thread; waking the others would cost more.
const PARALLEL: u64 = 4 * PIECE as u64;

/// Lays out the files of `tensors`; the plans do not keep the tensors alive. Errors: 70 when a name cannot be stored.
pub(super) fn plans(tensors: &Tensors) -> Result<Vec<ImagePlan>> {
    tensors.iter().map(|(stem, tensors)| ImagePlan::new(stem, tensors)).collect()
}

/// Copies `tensors`, reusing the memory of `spare` where the layout fits. Reused memory causes no page faults, which
/// take longer than the copy.
pub(super) fn take(tensors: &Tensors, mut spare: Vec<Image>) -> Result<Vec<Image>> {
    let own = tensors.iter().map(|(stem, tensors)| {
        let old = spare.iter().position(|image| image.fits(stem, tensors));
        old.map_or_else(
            || Image::new(ImagePlan::new(stem, tensors)?),
            |at| Ok(spare.swap_remove(at)),
        )
    });
    let mut own: Vec<Image> = own.collect::<Result<_>>()?;
    let pairs = own.iter_mut().zip(tensors.values()).flat_map(|(image, from)| image.pairs(from));
    let pieces: Vec<(&[u8], &mut [u8])> =
        pairs.flat_map(|(from, to)| from.chunks(PIECE).zip(to.chunks_mut(PIECE))).collect();
    if pieces.iter().map(|(from, _)| from.len() as u64).sum::<u64>() < PARALLEL {
        pieces.into_iter().for_each(|(from, to)| to.copy_from_slice(from));
    } else {
        pieces.into_par_iter().for_each(|(from, to)| to.copy_from_slice(from));
    }
    Ok(own)
}

#[cfg(test)]
mod tests {
    use tensor::Tensor;

    use super::*;

    fn tensors(value: f32, n: usize) -> Tensors {
        let tensors = vec![
            ("a".to_string(), Tensor::from_slice(&vec![value; n], &[n])),
            ("b".to_string(), Tensor::from_slice(&[f64::from(value); 3], &[3, 1])),
        ];
        [("model".to_string(), tensors)].into()
    }

    /// Returns the tensor values after the header; the wider dtype comes first.
    fn values(image: &Image) -> (Vec<f64>, Vec<f32>) {
        let content = &image.bytes()[image.bytes().len() - image.content() as usize..];
        let (b, a) = content.split_at(24);
        let b = b.chunks_exact(8).map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap()));
        let a = a.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        (b.collect(), a.collect())
    }

    #[test]
    fn a_snapshot_is_apart_and_its_memory_is_used_again() {
        for n in [3, 2_000_003] {
            let one = take(&tensors(1.5, n), Vec::new()).unwrap();
            assert_eq!(values(&one[0]), (vec![1.5; 3], vec![1.5; n]));
            let place = one[0].bytes().as_ptr();
            let two = take(&tensors(2.5, n), one).unwrap();
            assert_eq!(two[0].bytes().as_ptr(), place);
            assert_eq!(values(&two[0]), (vec![2.5; 3], vec![2.5; n]));
            let three = take(&tensors(3.5, n + 1), two).unwrap();
            assert_eq!(values(&three[0]), (vec![3.5; 3], vec![3.5; n + 1]));
        }
    }
}
