use crate::dtype::Float;
use crate::for_rows;
use crate::tensor::Tensor;

/// Elements that are compared with the smallest result at a time.
const CHUNK: usize = 64;

/// Whether a comes before b if their indices do not decide.
#[inline(always)]
fn is_larger<T: Float>(a: T, b: T) -> bool {
    a > b || (a.f64().is_nan() && !b.f64().is_nan())
}

/// Writes the k largest elements of each row of x, and their indices.
pub(super) fn find<T: Float>(k: usize, x: &Tensor, values: &mut [T], index: &mut [i32]) {
    let (width, x) = (x.width(), x.read::<T>());
    for_rows!(((values, k), (index, k)), width, |row, (values, index)| {
        let x = &x[row * width..][..width];
        let mut count = 0;
        for (chunk, elements) in x.chunks(CHUNK).enumerate() {
            // Most chunks have no result; false for NaN.
            let least = values[k - 1];
            if count == k && elements.iter().fold(true, |all, x| all & (*x <= least)) {
                continue;
            }
            for (i, element) in (chunk * CHUNK..).zip(elements) {
                if count == k && !is_larger(*element, values[k - 1]) {
                    continue;
                }
                let before =
                    (0..count).rev().take_while(|n| is_larger(*element, values[*n])).count();
                let (at, end) = (count - before, count.min(k - 1));
                values.copy_within(at..end, at + 1);
                index.copy_within(at..end, at + 1);
                (values[at], index[at]) = (*element, i as i32);
                count = k.min(count + 1);
            }
        }
    });
}
