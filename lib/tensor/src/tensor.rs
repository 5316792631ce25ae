//! Tensors: contiguous, row-major, cheap to clone.

use crate::device::Device;
use crate::dtype::{Dtype, Element};
use crate::kernel;
use crate::kernel::memory::DeviceBuffer;
use crate::storage::{Access, Borrowed, Storage};
use crate::with_element;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use unix::Result;

/// Lengths of the axes, stored inline for up to 4 axes so that cloning rarely allocates.
pub(crate) type Shape = SmallVec<[usize; 4]>;

/// A dense array on a device. Clones share memory; writing is copy-on-write.
#[derive(Clone)]
pub struct Tensor {
    storage: Arc<Storage>,
    dtype: Dtype,
    shape: Shape,
}

impl Tensor {
    /// Creates an uninitialized tensor on the host (arbitrary values), for outputs that are written entirely.
    pub fn empty(shape: &[usize], dtype: Dtype) -> Self {
        Self::empty_on(Device::Cpu, shape, dtype)
    }

    /// Like [`Tensor::empty`], on any device. Running out of device memory does not fail here: the error is recorded
    /// and reported when a value is read ([`crate::kernel`]).
    pub fn empty_on(device: Device, shape: &[usize], dtype: Dtype) -> Self {
        let len: usize = shape.iter().product();
        let storage = Arc::new(Storage::take(device, len * dtype.bytes()));
        Self { storage, dtype, shape: Shape::from_slice(shape) }
    }

    /// Wraps externally owned host memory as an f32 tensor; `owner` is kept alive until the last clone is dropped.
    ///
    /// # Safety
    /// `start` must point to as many f32 as the shape has elements, aligned and initialized, valid until `owner` is
    /// dropped. Until then no other code may write to them or, with [`Access::Write`], read them.
    pub unsafe fn from_raw_parts(
        start: *mut f32,
        shape: &[usize],
        access: Access,
        owner: Arc<dyn Send + Sync>,
    ) -> Self {
        let storage = Arc::new(Storage::Borrowed(Borrowed::new(start.cast(), access, owner)));
        Self { storage, dtype: Dtype::F32, shape: Shape::from_slice(shape) }
    }

    /// Like [`Tensor::from_raw_parts`], for device memory that may be read and written.
    ///
    /// # Safety
    /// `address` must point to as many values of `dtype` as the shape has elements, aligned to 256 bytes and valid until
    /// `owner` is dropped. Until then no other code may access them, except in stream order.
    pub(crate) unsafe fn from_device_parts(
        device: Device,
        address: u64,
        (shape, dtype): (&[usize], Dtype),
        owner: Arc<dyn Send + Sync>,
    ) -> Self {
        let storage = Arc::new(Storage::Device(DeviceBuffer::borrowed(device, address, owner)));
        Self { storage, dtype, shape: Shape::from_slice(shape) }
    }

    /// Creates a tensor of zeros on the host.
    pub fn zeros(shape: &[usize], dtype: Dtype) -> Self {
        Self::zeros_on(Device::Cpu, shape, dtype)
    }

    /// Creates a tensor of zeros on `device`.
    pub fn zeros_on(device: Device, shape: &[usize], dtype: Dtype) -> Self {
        if device == Device::Cpu {
            let len: usize = shape.iter().product();
            let storage = Arc::new(Storage::zeroed(len * dtype.bytes()));
            return Self { storage, dtype, shape: Shape::from_slice(shape) };
        }
        let mut tensor = Self::empty_on(device, shape, dtype);
        tensor.zero();
        tensor
    }

    /// Creates a tensor of zeros on the host that takes no memory before it is written, if it is large.
    pub fn untouched(shape: &[usize], dtype: Dtype) -> Self {
        let len: usize = shape.iter().product();
        let storage = Arc::new(Storage::untouched(len * dtype.bytes()));
        Self { storage, dtype, shape: Shape::from_slice(shape) }
    }

    /// Sets every element to zero. If the memory is shared, the tensor gets new memory instead.
    pub fn zero(&mut self) {
        if !self.is_own() {
            *self = Self::empty_on(self.device(), &self.shape, self.dtype);
        }
        match &*self.storage {
            Storage::Host(_) | Storage::Borrowed(_) => self.as_bytes_mut().fill(0),
            Storage::Device(piece) => kernel::run(piece.device(), || {
                kernel::zero(piece.device(), piece.address(), self.bytes())
            }),
        }
    }

    /// Creates a tensor filled with `value` on the host.
    pub fn full(shape: &[usize], value: f64, dtype: Dtype) -> Self {
        let mut tensor = Self::empty(shape, dtype);
        with_element!(dtype, T => tensor.write::<T>().fill(<T as Element>::of(value)));
        tensor
    }

    /// Copies `values` to a new tensor with the given shape on the host.
    ///
    /// # Panics
    /// If the number of values is not the product of the shape.
    pub fn from_slice<T: Element>(values: &[T], shape: &[usize]) -> Self {
        let mut tensor = Self::empty(shape, T::DTYPE);
        tensor.write::<T>().copy_from_slice(values);
        tensor
    }

    /// Creates a tensor with one element on the host.
    pub fn scalar<T: Element>(value: T) -> Self {
        Self::from_slice(&[value], &[1])
    }

    /// Length of every axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size of all elements in bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.bytes()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Length of the last axis.
    pub fn width(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Number of rows, i.e. of vectors along the last axis.
    pub fn rows(&self) -> usize {
        if self.width() == 0 { 0 } else { self.len() / self.width() }
    }

    /// Element type.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// The device that holds the elements.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// Returns the same elements with a different shape; shares memory.
    ///
    /// # Panics
    /// If the number of elements differs.
    pub fn reshape(&self, shape: &[usize]) -> Self {
        let len: usize = shape.iter().product();
        assert_eq!(len, self.len(), "reshape of {:?} to {shape:?}", self.shape);
        Self { storage: self.storage.clone(), dtype: self.dtype, shape: Shape::from_slice(shape) }
    }

    /// Returns the rows `rows` of a tensor on a device, along its first axis, to write to its memory, which is copied
    /// first if it is shared, also with an earlier part. The first row must start at a multiple of 256 bytes.
    ///
    /// # Panics
    /// If there are fewer rows, they are not aligned, or the tensor is on the host.
    pub(crate) fn part_of_rows_mut(&mut self, rows: Range<usize>) -> Self {
        self.make_unique();
        self.part_of_rows(rows)
    }

    /// The same for reading.
    pub(crate) fn part_of_rows(&self, rows: Range<usize>) -> Self {
        let (all, rest) = (self.shape[0], &self.shape[1..]);
        let bytes = rest.iter().product::<usize>() * self.dtype.bytes();
        assert!(rows.start <= rows.end && rows.end <= all, "rows {rows:?} of {:?}", self.shape);
        let offset = rows.start * bytes;
        assert!(offset.is_multiple_of(256), "rows {rows:?} of {:?} are not aligned", self.shape);
        let (address, owner) = (self.address() + offset as u64, self.storage.clone());
        let shape = [&[rows.len()], rest].concat();
        // SAFETY: these elements lie in the memory of `owner`, and a device accesses them in stream order.
        unsafe { Self::from_device_parts(self.device(), address, (&shape, self.dtype), owner) }
    }

    /// Returns the bytes of a tensor on the host for writing; shared memory is copied first.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        self.make_unique();
        // SAFETY: the memory is initialized (see `memory` and `from_raw_parts`) and not shared.
        unsafe { std::slice::from_raw_parts_mut(self.storage.host(), self.bytes()) }
    }

    /// The elements of a tensor on the host.
    ///
    /// # Panics
    /// If `T` is not the element type, or the tensor is not on the host.
    pub fn read<T: Element>(&self) -> &[T] {
        assert_eq!(self.dtype, T::DTYPE, "element type of a tensor");
        // SAFETY: the memory holds `len` aligned, initialized elements (see `memory` and `from_raw_parts`); every bit
        // pattern is a valid element, and only an exclusive owner writes.
        unsafe { std::slice::from_raw_parts(self.storage.host().cast(), self.len()) }
    }

    /// Returns the elements of a tensor on the host for writing; shared memory is copied first.
    ///
    /// # Panics
    /// If `T` is not the element type, or the tensor is not on the host.
    pub fn write<T: Element>(&mut self) -> &mut [T] {
        assert_eq!(self.dtype, T::DTYPE, "element type of a tensor");
        self.make_unique();
        // SAFETY: as in `read`; the memory is not shared.
        unsafe { std::slice::from_raw_parts_mut(self.storage.host().cast(), self.len()) }
    }

    /// Returns a deep copy.
    pub fn copied(&self) -> Self {
        let mut copy = self.clone();
        copy.make_unique();
        copy
    }

    /// Whether the tensor may write to its memory: it is neither shared with another tensor nor borrowed read-only.
    fn is_own(&mut self) -> bool {
        match Arc::get_mut(&mut self.storage) {
            Some(Storage::Borrowed(borrowed)) => borrowed.is_writable(),
            own => own.is_some(),
        }
    }

    /// Copies the memory if the tensor may not write to it.
    fn make_unique(&mut self) {
        if self.is_own() {
            return;
        }
        let bytes = self.bytes();
        let copy = Storage::take(self.device(), bytes);
        match (&copy, &*self.storage) {
            (Storage::Device(to), Storage::Device(from)) => kernel::run(to.device(), || {
                kernel::copy(to.device(), to.address(), from.address(), bytes)
            }),
            // SAFETY: both hold `bytes` bytes, and the new block does not overlap the old one.
            (Storage::Host(to), _) => unsafe {
                std::ptr::copy_nonoverlapping(self.storage.host().cast_const(), to.start(), bytes);
            },
            _ => unreachable!("both are on the same device"),
        }
        self.storage = Arc::new(copy);
    }

    /// Copies the values of `from` into this tensor; on a device, in stream order.
    ///
    /// # Panics
    /// If shape, dtype or device differ.
    pub fn assign(&mut self, from: &Tensor) {
        assert!(self.is_like(from), "assigning {from:?} to {self:?}");
        match self.device() {
            Device::Cpu => self.as_bytes_mut().copy_from_slice(from.as_bytes()),
            device => {
                let (to, bytes) = (self.address_mut(), self.bytes());
                kernel::run(device, || kernel::copy(device, to, from.address(), bytes));
            }
        }
    }

    /// Address of the elements in device memory, for kernels and device libraries.
    ///
    /// # Panics
    /// If the tensor is on the host.
    pub fn address(&self) -> u64 {
        match &*self.storage {
            Storage::Device(piece) => piece.address(),
            Storage::Host(_) | Storage::Borrowed(_) => {
                unreachable!("a tensor on the host cannot be passed to a kernel")
            }
        }
    }

    /// [`Tensor::address`] for writing; shared memory is copied first.
    pub fn address_mut(&mut self) -> u64 {
        self.make_unique();
        self.address()
    }

    /// Identifies the memory: equal for tensors that share it, different for all other live tensors.
    pub fn storage_id(&self) -> usize {
        Arc::as_ptr(&self.storage).addr()
    }

    /// Whether the memory is unshared, so that writing does not copy.
    pub fn is_unique(&self) -> bool {
        Arc::strong_count(&self.storage) == 1
    }

    /// Returns the same values on the host. Errors: the first failure on the device since its errors were last read.
    pub fn to_host(&self) -> Result<Self> {
        self.to_device(Device::Cpu)
    }

    /// Returns the same values on `device`: a copy, or shared memory if the tensor is already on it. Errors: failures
    /// on either device.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        let from = self.device();
        if from == device {
            return Ok(self.clone());
        }
        if from != Device::Cpu && device != Device::Cpu {
            return self.to_host()?.to_device(device);
        }
        let mut to = Self::empty_on(device, &self.shape, self.dtype);
        if device == Device::Cpu {
            let address = self.address();
            let bytes = to.as_bytes_mut();
            kernel::run(from, || kernel::copy_out(from, bytes, address));
            kernel::finish(from)?;
        } else {
            let address = to.address();
            kernel::run(device, || kernel::copy_in(device, address, self.as_bytes()));
        }
        Ok(to)
    }

    /// Whether shape, dtype and device are the same.
    pub(crate) fn is_like(&self, other: &Tensor) -> bool {
        (self.shape(), self.dtype, self.device()) == (other.shape(), other.dtype, other.device())
    }

    /// The bytes of a tensor on the host.
    ///
    /// # Panics
    /// If the tensor is not on the host.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: as in `read`.
        unsafe { std::slice::from_raw_parts(self.storage.host(), self.bytes()) }
    }

    /// Returns the values converted to `dtype`, rounded to nearest.
    ///
    /// # Panics
    /// If the tensor is not on the host; on devices, use the op `cast`.
    pub fn to_dtype(&self, dtype: Dtype) -> Self {
        if dtype == self.dtype {
            return self.clone();
        }
        let mut out = Self::empty(&self.shape, dtype);
        with_element!(self.dtype, S => with_element!(dtype, T => {
            for (y, x) in out.write::<T>().iter_mut().zip(self.read::<S>()) {
                *y = <T as Element>::of(<S as Element>::f64(*x));
            }
        }));
        out
    }

    /// Returns all elements of a tensor on the host as f64, for checks and reports.
    pub fn to_f64(&self) -> Vec<f64> {
        with_element!(self.dtype, T => self.read::<T>().iter().map(|x| Element::f64(*x)).collect())
    }

    /// Returns the only element of a scalar on the host as f64.
    ///
    /// # Panics
    /// If there is not exactly one element.
    pub fn item(&self) -> f64 {
        assert_eq!(self.len(), 1, "item of a tensor of shape {:?}", self.shape);
        self.to_f64()[0]
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tensor({} {:?} on {})", self.dtype, self.shape, self.device())
    }
}

#[cfg(test)]
mod tests;
