//! Kernel arguments.

use crate::device::Device;
use crate::tensor::Tensor;
use std::marker::PhantomData;

/// One argument of a launch; borrows the tensor that it refers to.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    value: Value,
    device: Option<Device>,
    /// Size of the tensor in bytes; 0 for a number.
    bytes: usize,
    tensor: PhantomData<&'a Tensor>,
}

/// The value of an argument, by the kernel's parameter type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value {
    /// Device address; 0 is null.
    Pointer(u64),
    /// `int`.
    I32(i32),
    /// `unsigned`.
    U32(u32),
    /// `long long`.
    I64(i64),
    /// `unsigned long long`.
    U64(u64),
    /// `float`.
    F32(f32),
    /// `double`.
    F64(f64),
    /// A tensor map for TMA copies.
    TensorMap(TensorMap),
    /// A size that does not fit into an `int`: the launch fails.
    TooLarge(usize),
}

/// A tensor map for TMA copies of boxes to shared memory: a four-dimensional view of a tensor whose first dimension is
/// contiguous. Kernels that use it require sm_90a.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TensorMap {
    /// Device address of the tensor.
    pub(crate) address: u64,
    /// Number of elements along each dimension.
    pub(crate) extents: [u64; 4],
    /// Strides of dimensions 1 to 3 in bytes, multiples of 16.
    pub(crate) strides: [u64; 3],
    /// Number of elements of a box along each dimension; 128 bytes along the first.
    pub(crate) boxes: [u32; 4],
    pub(crate) element_bytes: u32,
}

impl Value {
    /// Returns the bytes as read by the kernel, in the low end of a 64-bit word; for a tensor map, the tensor's
    /// address.
    pub(crate) fn bits(self) -> u64 {
        match self {
            Value::Pointer(x) | Value::U64(x) => x,
            Value::I64(x) => x as u64,
            Value::I32(x) => u64::from(x as u32),
            Value::U32(x) => u64::from(x),
            Value::F32(x) => u64::from(x.to_bits()),
            Value::F64(x) => x.to_bits(),
            Value::TooLarge(n) => n as u64,
            // Passed by address.
            Value::TensorMap(map) => map.address,
        }
    }

    /// The parameter type as a number, as the emulator expects it.
    #[cfg(feature = "emu")]
    pub(crate) fn kind(self) -> u8 {
        match self {
            Value::Pointer(_) => 0,
            Value::I32(_) | Value::TooLarge(_) => 1,
            Value::U32(_) => 2,
            Value::I64(_) => 3,
            Value::U64(_) => 4,
            Value::F32(_) => 5,
            Value::F64(_) => 6,
            Value::TensorMap(_) => 7,
        }
    }
}

impl Arg<'_> {
    /// The device of the tensor; `None` for a number.
    pub(crate) fn device(&self) -> Option<Device> {
        self.device
    }

    /// Size of the tensor in bytes; 0 for a number.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn value(&self) -> Value {
        self.value
    }
}

impl<'a> Arg<'a> {
    /// Creates a tensor map. `extents` and `boxes` are the numbers of elements of the tensor and of a box along each
    /// dimension; `strides` are the strides of dimensions 1 to 3 in elements. Dimension 0 is contiguous.
    pub fn tensor_map(
        tensor: &'a Tensor,
        extents: [usize; 4],
        strides: [usize; 3],
        boxes: [usize; 4],
    ) -> Self {
        let bytes = tensor.dtype().bytes();
        let value = Value::TensorMap(TensorMap {
            address: tensor.address(),
            extents: extents.map(|n| n as u64),
            strides: strides.map(|n| (n * bytes) as u64),
            boxes: boxes.map(|n| n as u32),
            element_bytes: bytes as u32,
        });
        Arg { value, ..Arg::from(tensor) }
    }
}

impl<'a> From<&'a Tensor> for Arg<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        let value = Value::Pointer(tensor.address());
        Arg { value, device: Some(tensor.device()), bytes: tensor.bytes(), tensor: PhantomData }
    }
}

impl<'a> From<&'a mut Tensor> for Arg<'a> {
    /// Copies shared memory first, because the kernel writes to it.
    fn from(tensor: &'a mut Tensor) -> Self {
        let value = Value::Pointer(tensor.address_mut());
        Arg { value, device: Some(tensor.device()), bytes: tensor.bytes(), tensor: PhantomData }
    }
}

impl<'a, T> From<Option<T>> for Arg<'a>
where
    Arg<'a>: From<T>,
{
    /// Passes `None` as a null pointer.
    fn from(tensor: Option<T>) -> Self {
        let null = Arg { value: Value::Pointer(0), device: None, bytes: 0, tensor: PhantomData };
        tensor.map_or(null, Arg::from)
    }
}

macro_rules! number {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for Arg<'_> {
            fn from(x: $type) -> Self {
                Arg { value: Value::$variant(x), device: None, bytes: 0, tensor: PhantomData }
            }
        }
    )*};
}

number!(i32 => I32, u32 => U32, i64 => I64, u64 => U64, f32 => F32, f64 => F64);

impl From<bool> for Arg<'_> {
    /// Passes the value as `int`, 0 or 1.
    fn from(x: bool) -> Self {
        Arg::from(i32::from(x))
    }
}

impl From<usize> for Arg<'_> {
    /// Passes the size as `int`. A size that does not fit makes the launch fail.
    fn from(x: usize) -> Self {
        match i32::try_from(x) {
            Ok(size) => Arg::from(size),
            Err(_) => {
                Arg { value: Value::TooLarge(x), device: None, bytes: 0, tensor: PhantomData }
            }
        }
    }
}
