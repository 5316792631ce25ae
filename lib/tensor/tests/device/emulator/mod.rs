//! The emulator: each primitive of `kernel/include` compared with plain arithmetic, and for each check a kernel that
//! violates its rule. The kernels are in `kernels/`.

mod faults;
mod hopper;
mod hopper_faults;
mod primitives;

use tensor::kernel::SOURCES;
use tensor::{Device, Dtype, Tensor};

/// Orders of lanes and blocks: forward, backward, and two permutations.
const ORDERS: [u64; 4] = [0, 1, 2, 77];

fn device(x: &Tensor) -> Tensor {
    x.to_device(Device::Emu).unwrap()
}

fn floats(values: &[f32]) -> Tensor {
    device(&Tensor::from_slice(values, &[values.len()]))
}

/// An uninitialized vector.
fn empty(n: usize, dtype: Dtype) -> Tensor {
    Tensor::empty_on(Device::Emu, &[n], dtype)
}

fn host(x: &Tensor) -> Vec<f64> {
    x.to_host().unwrap().to_f64()
}

/// The emulator's build reads the dtypes from the source, the launch code from the table; both must agree.
#[test]
fn sources_declare_their_dtypes() {
    for source in SOURCES {
        let elements: Vec<String> = source.dtypes.iter().map(Dtype::to_string).collect();
        let expected = format!("// dtypes: {}", elements.join(" "));
        assert_eq!(source.text.lines().next(), Some(&*expected), "{}.cu", source.name);
    }
}
