//! Sharing, lending and viewing memory.

use super::*;

#[test]
fn writing_to_shared_memory_copies() {
    let a = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3]);
    let mut b = a.clone();
    assert!(!b.is_unique());
    b.write::<f32>()[0] = 9.0;
    assert_eq!(a.read::<f32>(), [1.0, 2.0, 3.0]);
    assert_eq!(b.read::<f32>(), [9.0, 2.0, 3.0]);
    assert!(b.is_unique());
}

#[test]
fn lent_memory_is_written_where_it_may_be_and_kept_while_it_is_used() {
    let mut numbers = vec![1.0_f32, 2.0, 3.0, 4.0, 5.0];
    let owner: Arc<dyn Send + Sync> = Arc::new(());
    let start = numbers.as_mut_ptr();
    let over = |from: usize, shape: &[usize], access| {
        // SAFETY: `numbers` is not accessed while these tensors live, and they do not overlap.
        unsafe { Tensor::from_raw_parts(start.wrapping_add(from), shape, access, owner.clone()) }
    };
    // Aligned to 4 bytes and no more.
    let mut written = over(1, &[1, 2], Access::Write);
    let mut read = over(3, &[2], Access::Read);
    let (clone, place) = (written.clone(), written.as_bytes().as_ptr());
    written.write::<f32>()[0] = -1.0;
    assert_eq!((clone.to_f64(), written.to_f64()), (vec![2.0, 3.0], vec![-1.0, 3.0]));
    drop(clone);
    let mut clone = over(1, &[2], Access::Write);
    drop(written);
    clone.write::<f32>()[1] = -2.0;
    assert_eq!(clone.as_bytes().as_ptr(), place, "in place");
    assert_eq!(Arc::strong_count(&owner), 3);
    let zero = read.clone();
    read.write::<f32>()[0] = -3.0;
    drop(zero);
    assert_eq!(Arc::strong_count(&owner), 2, "no longer borrowed");
    let mut zero = over(3, &[2], Access::Read);
    zero.zero();
    assert_eq!((read.to_f64(), zero.to_f64()), (vec![-3.0, 5.0], vec![0.0, 0.0]));
    drop((clone, zero));
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(numbers, [1.0, 2.0, -2.0, 4.0, 5.0]);
}

#[test]
fn shapes_and_types_are_values() {
    let a = Tensor::from_slice(&[1.5_f64; 12], &[3, 4]);
    assert_eq!((a.rows(), a.width(), a.len(), a.dtype()), (3, 4, 12, Dtype::F64));
    let b = a.to_dtype(Dtype::F32).reshape(&[2, 6]);
    assert_eq!(b.read::<f32>(), [1.5; 12]);
}
