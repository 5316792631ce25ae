//! A copy of the state that training may go on without.

use rayon::iter::{IntoParallelIterator, ParallelIterator};
use tensor::{Dtype, Tensor};

use super::bytes::{self, PIECE};
use super::{State, Tensors};

/// Fewer bytes are copied by one thread; waking the others costs more.
const PARALLEL: u64 = 4 * PIECE as u64;

/// Names, shapes and element types of the tensors of each file.
pub(super) type Form = Vec<(String, Vec<(String, Vec<usize>, Dtype)>)>;

/// The form of a state, which keeps none of its memory.
pub(super) fn form(state: &State) -> Form {
    let of =
        |(name, tensor): &(String, Tensor)| (name.clone(), tensor.shape().to_vec(), tensor.dtype());
    let file =
        |(stem, tensors): (&String, &Vec<_>)| (stem.clone(), tensors.iter().map(of).collect());
    state.tensors.iter().map(file).collect()
}

/// Makes the tensors of `state` its own: copies, in the memory of `spare` where that fits. Memory that
/// is used again costs no page faults, which take longer than the copying.
pub(super) fn take(mut state: State, spare: Tensors) -> State {
    let mut own = reserve(form(&state), spare);
    let pairs = state.tensors.values().flatten().zip(own.values_mut().flatten());
    let pieces: Vec<(&[u8], &mut [u8])> = pairs
        .flat_map(|((_, from), (_, to))| {
            bytes::of(from).chunks(PIECE).zip(bytes::of_mut(to).chunks_mut(PIECE))
        })
        .collect();
    if bytes::total(&state) < PARALLEL {
        pieces.into_iter().for_each(|(from, to)| to.copy_from_slice(from));
    } else {
        pieces.into_par_iter().for_each(|(from, to)| to.copy_from_slice(from));
    }
    state.tensors = own;
    state
}

/// Memory for a snapshot, all of it touched: tensors of that form with any content.
pub(super) fn reserve(form: Form, mut spare: Tensors) -> Tensors {
    let mut own = Tensors::new();
    for (stem, wanted) in form {
        let mut old = spare.remove(&stem).unwrap_or_default().into_iter();
        let fit = |(name, shape, dtype): (String, Vec<usize>, Dtype)| {
            let fits =
                |old: &Tensor| old.shape() == shape && old.dtype() == dtype && old.is_unique();
            let reused = old.next().map(|(_, old)| old).filter(fits);
            (name, reused.unwrap_or_else(|| Tensor::arbitrary(&shape, dtype)))
        };
        own.insert(stem, wanted.into_iter().map(fit).collect());
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(value: f32, n: usize) -> State {
        let tensors = vec![
            ("a".to_string(), Tensor::of(&vec![value; n], &[n])),
            ("b".to_string(), Tensor::of(&[f64::from(value); 3], &[3, 1])),
        ];
        State { tensors: [("model".to_string(), tensors)].into(), ..State::default() }
    }

    fn first(state: &State) -> *const u8 {
        bytes::of(&state.tensors["model"][0].1).as_ptr()
    }

    #[test]
    fn a_snapshot_is_apart_and_its_memory_is_used_again() {
        for n in [3, 2_000_003] {
            let source = state(1.5, n);
            let one = take(source.clone(), Tensors::new());
            assert_ne!(first(&source), first(&one));
            assert!(one.tensors["model"][0].1.read::<f32>().iter().all(|x| *x == 1.5));
            let place = first(&one);
            let two = take(state(2.5, n), one.tensors);
            assert_eq!(first(&two), place);
            assert!(two.tensors["model"][0].1.read::<f32>().iter().all(|x| *x == 2.5));
            let three = take(state(3.5, n + 1), two.tensors);
            assert_eq!(three.tensors["model"][0].1.len(), n + 1);
            assert_eq!(three.tensors["model"][1].1.to_f64(), [3.5; 3]);
        }
    }
}
