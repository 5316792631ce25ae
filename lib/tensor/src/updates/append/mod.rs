//! Appends rows to a cache, such as the keys and values of tokens that a decoder reads:
//! cache[b, start[b] + t, :] ← x[b, t, :] for all t < count[b].
//!
//! x [B, T, C], start and count [B] (I32), cache [B, S, C] in the dtype of x. The other rows of the cache keep their
//! values. Rows that would lie outside of the cache, because start[b] + t is not in 0..S, are not written. Moves 2
//! elements per element of the rows that are written.

use crate::args;
use crate::device::Device;
use crate::dtype::Dtype;
use crate::kernel::{ALL_DTYPES, Source, source, units};
use crate::tensor::Tensor;
use unix::{Error, Result};

/// Source of the kernel.
pub(crate) static SOURCE: Source = source!("append", ALL_DTYPES);

/// Writes rows `x` to `cache`; see the module. Memory that the cache shares with another tensor is copied first. Errors:
/// a bug if shapes, dtypes or devices do not fit.
pub fn append(x: &Tensor, start: &Tensor, count: &Tensor, cache: &mut Tensor) -> Result<()> {
    let ([batch, tokens, width], [samples, capacity, columns]) = (x.shape(), cache.shape()) else {
        return Err(misuse(x, start, count, cache));
    };
    let (tokens, width, capacity) = (*tokens, *width, *capacity);
    let is_index =
        |t: &Tensor| (t.shape(), t.dtype(), t.device()) == (&[*batch], Dtype::I32, x.device());
    let is_alike = (x.dtype(), x.device()) == (cache.dtype(), cache.device());
    if batch != samples || width != *columns || !is_index(start) || !is_index(count) || !is_alike {
        return Err(misuse(x, start, count, cache));
    }
    if x.is_empty() || cache.is_empty() {
        return Ok(());
    }
    match x.device() {
        Device::Cpu => on_cpu(x, start.read(), count.read(), cache),
        _ => {
            let (element, rows) = (x.dtype(), x.rows());
            let args = args![x, start, count, cache, rows, tokens, width, capacity];
            SOURCE.launch(element, "append_rows", units::grid(element, rows, width), args);
        }
    }
    Ok(())
}

fn misuse(x: &Tensor, start: &Tensor, count: &Tensor, cache: &Tensor) -> Error {
    Error::bug(format!(
        "append of {x:?} at {start:?}, {count:?} rows, to {cache:?}: takes x [B, T, C], start [B] and count [B] (i32) and \
         a cache [B, S, C] in the dtype of x, all on one device"
    ))
}

fn on_cpu(x: &Tensor, start: &[i32], count: &[i32], cache: &mut Tensor) {
    let (tokens, capacity) = (x.shape()[1] as i64, cache.shape()[1] as i64);
    let bytes = x.width() * x.dtype().bytes();
    let from = x.as_bytes().chunks_exact(tokens as usize * bytes);
    let to = cache.as_bytes_mut().chunks_exact_mut(capacity as usize * bytes);
    for (((from, to), start), count) in from.zip(to).zip(start).zip(count) {
        // The first and the end of the rows that lie in the cache.
        let start = i64::from(*start);
        let first = (-start).clamp(0, tokens);
        let end = i64::from(*count).min(tokens).min(capacity - start);
        if first < end {
            let range = |from: i64, end: i64| from as usize * bytes..end as usize * bytes;
            to[range(start + first, start + end)].copy_from_slice(&from[range(first, end)]);
        }
    }
}

/// Returns the sizes [B, T, S, C] of test cases: one element, one token, odd and even widths, more tokens than fit.
pub fn cases() -> Vec<[usize; 4]> {
    vec![[1, 1, 1, 1], [3, 1, 7, 24], [2, 5, 9, 7], [5, 3, 2, 40], [4, 33, 70, 264]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_written_at_their_start_and_nowhere_else() {
        let x: Vec<f32> = (1..=12).map(|i| i as f32).collect();
        let x = Tensor::from_slice(&x, &[3, 2, 2]);
        let of = |values: [i32; 3]| Tensor::from_slice(&values, &[3]);
        let run = |start: [i32; 3], count: [i32; 3]| {
            let mut cache = Tensor::zeros(&[3, 3, 2], Dtype::F32);
            let shared = cache.clone();
            append(&x, &of(start), &of(count), &mut cache).unwrap();
            assert!(shared.to_f64().iter().all(|x| *x == 0.0));
            cache.to_f64()
        };
        let written = run([0, 1, 2], [2, 1, 2]);
        let expected = [
            [1.0, 2.0, 3.0, 4.0, 0.0, 0.0],
            [0.0, 0.0, 5.0, 6.0, 0.0, 0.0],
            [0.0, 0.0, 0.0, 0.0, 9.0, 10.0],
        ];
        assert_eq!(written, expected.concat());
        let outside = run([-1, 3, i32::MIN], [9, i32::MAX, 2]);
        let expected = [[3.0, 4.0, 0.0, 0.0, 0.0, 0.0], [0.0; 6], [0.0; 6]];
        assert_eq!(outside, expected.concat());
    }

    #[test]
    fn what_does_not_fit_is_a_bug() {
        let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype);
        let (x, index) = (zeros(&[2, 3, 4], Dtype::F32), zeros(&[2], Dtype::I32));
        for (x, start, cache) in [
            (&x, &index, zeros(&[2, 9, 5], Dtype::F32)),
            (&x, &index, zeros(&[1, 9, 4], Dtype::F32)),
            (&x, &index, zeros(&[2, 9, 4], Dtype::F64)),
            (&x, &zeros(&[3], Dtype::I32), zeros(&[2, 9, 4], Dtype::F32)),
            (&x.reshape(&[6, 4]), &index, zeros(&[2, 9, 4], Dtype::F32)),
        ] {
            assert!(append(x, start, &index, &mut cache.clone()).is_err());
        }
    }
}
