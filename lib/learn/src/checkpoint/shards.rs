//! The optimizer state in one or more files `optim-R-of-N`. Each file holds the complete state of some parameters, in
//! parameter order. Readers accept any distribution, so any number of ranks can resume from any number of files.

use std::path::Path;

use tensor::Tensor;
use unix::{Error, Result};

use super::load::{Loaded, load};
use super::{State, write};

/// Maximum number of optimizer files.
const MAX: usize = 1024;

/// Stem of optimizer file `index` (from 0) of `count`.
pub(crate) fn stem(index: usize, count: usize) -> String {
    format!("optim-{index}-of-{count}")
}

/// Parses the index of a file and the number of files from its stem.
pub(super) fn place(stem: &str) -> Option<(usize, usize)> {
    let (index, count) = stem.strip_prefix("optim-")?.split_once("-of-")?;
    let (index, count) = (index.parse().ok()?, count.parse().ok()?);
    (index < count && count <= MAX).then_some((index, count))
}

/// Divides items of the given lengths into `count` contiguous parts of about equal total length; returns the part index
/// of each item.
pub(crate) fn parts(lengths: &[usize], count: usize) -> Vec<usize> {
    let total = lengths.iter().map(|length| *length as u128).sum::<u128>().max(1);
    let mut before = 0;
    let part = |length: &usize| {
        // The part that contains the middle of the item; everything is doubled to avoid halves.
        let middle = 2 * before + *length as u128;
        before += *length as u128;
        let part = middle * count as u128 / (2 * total);
        (part as usize).min(count - 1)
    };
    lengths.iter().map(part).collect()
}

/// Distributes the optimizer tensors, named `PARAMETER.NAME`, over `count` files; tensors of one parameter stay
/// together.
pub(crate) fn split(
    tensors: Vec<(String, Tensor)>,
    count: usize,
) -> Vec<(String, Vec<(String, Tensor)>)> {
    let parameter = |name: &str| name.rsplit_once('.').map_or(name, |(p, _)| p).to_string();
    let mut lengths: Vec<(String, usize)> = Vec::new();
    for (name, tensor) in &tensors {
        match lengths.last_mut().filter(|(last, _)| *last == parameter(name)) {
            Some((_, length)) => *length += tensor.bytes(),
            None => lengths.push((parameter(name), tensor.bytes())),
        }
    }
    let parts = parts(&lengths.iter().map(|(_, length)| *length).collect::<Vec<_>>(), count);
    let mut files: Vec<_> = (0..count).map(|index| (stem(index, count), Vec::new())).collect();
    let mut group = 0;
    for (name, tensor) in tensors {
        if lengths[group].0 != parameter(&name) {
            group += 1;
        }
        files[parts[group]].1.push((name, tensor));
    }
    files
}

/// Writes the checkpoint `from` to `out` with the optimizer state in `count` files. Everything else is unchanged, and
/// training resumes bit-identically from either.
///
/// Errors: 2 when `count` is 0 or too large; 65 when `from` is damaged or has no optimizer state; 73 when `out` exists.
pub fn reshard(from: &Path, count: usize, out: &Path) -> Result<()> {
    if count == 0 || count > MAX {
        return Err(Error::usage(format!("{count} files: give a number from 1 to {MAX}")));
    }
    let loaded = load(from)?;
    let Some(optimizer) = loaded.optimizer() else {
        return Err(Error::data(format!("{} has no optimizer state", from.display())));
    };
    let manifest = &loaded.manifest;
    let mut state = State::like(manifest, manifest.update, manifest.progress.clone());
    state.metrics = manifest.metrics.clone();
    state.world = manifest.world;
    for file in manifest.files.iter().filter(|file| place(file.stem()).is_none()) {
        let tensors = loaded.tensors(file.stem()).unwrap_or_default();
        state.tensors.insert(file.stem().into(), tensors);
    }
    state.tensors.extend(split(optimizer, count));
    write::write_as(out, &state, manifest.attempt)
}

/// Merges all optimizer tensors, in order; None when there are none or a file is missing.
pub(super) fn union(loaded: &Loaded) -> Option<Vec<(String, Tensor)>> {
    let files = &loaded.manifest.files;
    let mut places: Vec<_> = files.iter().filter_map(|file| place(file.stem())).collect();
    places.sort_unstable();
    let count = places.first()?.1;
    let whole = places.iter().copied().eq((0..count).map(|index| (index, count)));
    let tensors = places.iter().map(|(index, count)| loaded.tensors(&stem(*index, *count)));
    whole.then(|| tensors.flatten().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_in_order() {
        assert_eq!(parts(&[4, 4, 4, 4], 2), [0, 0, 1, 1]);
        assert_eq!(parts(&[1, 1, 1, 9], 2), [0, 0, 0, 1]);
        assert_eq!(parts(&[9, 1, 1, 1], 3), [1, 2, 2, 2]);
        assert_eq!(parts(&[0, 0], 3), [0, 0]);
        assert_eq!(parts(&[5], 1), [0]);
        for count in 1..9 {
            let lengths: Vec<usize> = (0..100).map(|i| 1 + i * 37 % 11).collect();
            let parts = parts(&lengths, count);
            assert!(parts.is_sorted() && *parts.last().unwrap() == count - 1);
            let of =
                |part| lengths.iter().zip(&parts).filter(move |(_, p)| **p == part).map(|(l, _)| l);
            let sums: Vec<usize> = (0..count).map(|part| of(part).sum()).collect();
            let (least, most) = (sums.iter().min().unwrap(), sums.iter().max().unwrap());
            assert!(most - least <= 22, "{sums:?}");
        }
    }

    #[test]
    fn names_of_files() {
        assert_eq!(place(&stem(3, 12)), Some((3, 12)));
        for wrong in ["optim", "optim-1-of-1", "optim-x-of-2", "ema", "optim-0-of-9999"] {
            assert_eq!(place(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_kept_of_a_parameter_stays_together() {
        let t = |n: usize| Tensor::from_slice(&vec![1.0_f32; n], &[n]);
        let names = ["a.w.m", "a.w.v_absmax", "a.b.m", "a.b.v", "c.m", "c.v"];
        let tensors: Vec<_> =
            names.iter().zip([4, 4, 1, 1, 6, 6]).map(|(n, len)| (n.to_string(), t(len))).collect();
        let files = split(tensors, 2);
        let names = |at: usize| files[at].1.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>();
        assert_eq!(files[1].0, "optim-1-of-2");
        assert_eq!(names(0), ["a.w.m", "a.w.v_absmax", "a.b.m", "a.b.v"]);
        assert_eq!(names(1), ["c.m", "c.v"]);
    }
}
