//! The files of tests/golden/layouts/ and the values that golden_layouts.py wrote into them.

use data::fields::field::Field;
use std::path::{Path, PathBuf};

pub const N: usize = 3;
pub const T: usize = 5;
pub const GRID: [usize; 3] = [7, 6, 4];

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/layouts").join(name)
}

/// The value at an index.
pub fn value(n: usize, t: usize, point: &[usize], c: usize) -> f32 {
    let space = point.iter().zip([256.0, 4096.0, 65536.0]).map(|(i, scale)| *i as f32 / scale);
    (c * 32 + n) as f32 + t as f32 / 16.0 + space.sum::<f32>()
}

/// Compares all values of a field, frame by frame and as whole trajectories; inputs do not depend on time.
pub fn assert_values(field: &Field, name: &str) {
    let shape = field.shape();
    let mut out = vec![0.0; shape.frame_len()];
    for n in 0..shape.trajectories {
        let mut all = vec![0.0; shape.trajectory_len()];
        field.read(n, &mut all).unwrap();
        for t in 0..shape.frames {
            field.read_frames(n, t..t + 1, &mut out).unwrap();
            for (at, found) in out.iter().enumerate() {
                let (mut rest, c) = (at / shape.channels, at % shape.channels);
                let mut point = vec![0; shape.grid.len()];
                for (place, size) in point.iter_mut().zip(&shape.grid).rev() {
                    (*place, rest) = (rest % size, rest / size);
                }
                let time = if c < field.inputs() { 0 } else { t };
                let expected = value(n, time, &point, c);
                assert_eq!(*found, expected, "{name}: {n}, frame {t}, {point:?}, channel {c}");
            }
            assert_eq!(all[t * out.len()..(t + 1) * out.len()], out, "{name}");
        }
    }
}
