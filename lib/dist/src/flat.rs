//! Tensors on the host as one vector of f32, a part at a time.

use tensor::{Device, Dtype, Tensor};
use unix::{Error, Result};

/// Elements of all together. Errors: one is not f32 on the host.
pub fn len(tensors: &[Tensor]) -> Result<usize> {
    if let Some(other) =
        tensors.iter().find(|t| (t.dtype(), t.device()) != (Dtype::F32, Device::Cpu))
    {
        return Err(Error::bug(format!(
            "{other:?} is summed over ranks, which is for f32 on the host"
        )));
    }
    Ok(tensors.iter().map(Tensor::len).sum())
}

/// Copies the elements from number `start` on.
pub fn read(tensors: &[Tensor], mut start: usize, mut to: &mut [f32]) {
    for tensor in tensors {
        if start >= tensor.len() {
            start -= tensor.len();
            continue;
        }
        let from = &tensor.read::<f32>()[start..];
        let count = from.len().min(to.len());
        let (now, later) = to.split_at_mut(count);
        now.copy_from_slice(&from[..count]);
        (start, to) = (0, later);
        if to.is_empty() {
            return;
        }
    }
}

/// Overwrites the elements from number `start` on.
pub fn write(tensors: &mut [Tensor], mut start: usize, mut from: &[f32]) {
    for tensor in tensors {
        if from.is_empty() {
            return;
        }
        if start >= tensor.len() {
            start -= tensor.len();
            continue;
        }
        let to = &mut tensor.write::<f32>()[start..];
        let count = to.len().min(from.len());
        let (now, later) = from.split_at(count);
        to[..count].copy_from_slice(now);
        (start, from) = (0, later);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_those_of_the_whole() {
        let lengths = [3, 0, 5, 1];
        let mut tensors: Vec<Tensor> =
            lengths.iter().map(|&n| Tensor::zeros(&[n], Dtype::F32)).collect();
        let whole: Vec<f32> = (0..9_u8).map(f32::from).collect();
        assert_eq!(len(&tensors).unwrap(), 9);
        for (start, end) in [(0, 2), (2, 2), (2, 7), (7, 9)] {
            write(&mut tensors, start, &whole[start..end]);
        }
        for start in 0..9 {
            for end in start..=9 {
                let mut part = vec![-1.0; end - start];
                read(&tensors, start, &mut part);
                assert_eq!(part, whole[start..end]);
            }
        }
        tensors.push(Tensor::zeros(&[1], Dtype::F64));
        assert!(len(&tensors).unwrap_err().to_string().contains("f64"));
    }
}
