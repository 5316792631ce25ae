//! The machine's rates, measured or from a file, and the duration of calls.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use serde_json::{Map, Value, json};
use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::activation::Activation;
use tensor::ops::linear::Linear;
use tensor::product::{View, product};
use tensor::{Device, Dtype, Tape, Tensor, constant, kernel, parallel};
use unix::{Error, Result};

/// Rates per second.
pub struct Machine {
    /// Bytes per second read and written by a copy between buffers larger than the caches.
    pub copy: f64,
    /// Operations per second of a large matrix product.
    pub product: f64,
    /// The device under test.
    pub device: Device,
    /// The dtype of the computation.
    pub element: Dtype,
}

impl Machine {
    /// Measures both rates, on the threads that the ops use or on a device.
    pub fn measure(device: Device, element: Dtype) -> Result<Self> {
        match device {
            Device::Cpu => Ok(Self::of_threads()),
            _ => Self::of(device, element),
        }
    }

    /// Both rates from a JSON file, in which that of products is named after the dtype. Errors: the file cannot be read, or
    /// has no such rate.
    pub fn from_file(path: &Path, device: Device, (element, name): (Dtype, &str)) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|cause| Error::open(path, cause))?;
        let rates: Value = serde_json::from_str(&text)
            .map_err(|cause| Error::data(format!("{}: {cause}", path.display())))?;
        let rate = |key: String| match rates[&key].as_f64().filter(|rate| *rate > 0.0) {
            Some(rate) => Ok(1e9 * rate),
            None => Err(Error::data(format!("{}: {key} is not a positive number", path.display()))),
        };
        let (copy, product) = (rate("copy_gb_s".into())?, rate(format!("{name}_gflop_s"))?);
        Ok(Self { copy, product, device, element })
    }

    fn of(device: Device, element: Dtype) -> Result<Self> {
        // The emulator's rates are meaningless, so small sizes suffice.
        let (elements, side) =
            if device == Device::Emu { (1 << 16, 64) } else { (256 << 20, 8192) };
        let mut machine = Self { copy: 0.0, product: 0.0, device, element };
        let from = Tensor::zeros_on(device, &[elements], Dtype::F32);
        let copy = machine.median(|| machine.timed(|| from.copied()));
        machine.copy = 2.0 * bytes([&from]) / copy;
        // Random numbers, because a GPU is faster with zeros; they may repeat.
        let random = |i| {
            let few = draw(&[side * side.min(64)], &Draw::Normal, 1, i).to_f64();
            let all: Vec<f32> = few.iter().map(|x| *x as f32).cycle().take(side * side).collect();
            Tensor::from_slice(&all, &[side, side]).to_dtype(element).to_device(device)
        };
        let (a, b) = (constant(random(0)?), constant(random(1)?));
        let op = Linear { bias: false, activation: Activation::Identity };
        let product =
            machine.median(|| machine.timed(|| Tape::without_gradients().apply(op, &[&a, &b])));
        machine.product = 2.0 * (side as f64).powi(3) / product;
        kernel::finish(device)?;
        Ok(machine)
    }

    /// The median of enough calls; on the emulator, where time means little, a single call.
    pub fn median(&self, mut once: impl FnMut() -> Duration) -> f64 {
        if self.device == Device::Emu { once().as_secs_f64() } else { median(once) }
    }

    /// Elements of the parameter used to time updates.
    pub fn update_elements(&self) -> usize {
        if self.device == Device::Emu { 10_000 } else { 10_000_000 }
    }

    /// How many calls are measured together: on a device enough to make launching the first and waiting for the last
    /// negligible.
    pub fn calls(&self) -> usize {
        match self.device {
            Device::Cpu | Device::Emu => 1,
            Device::Cuda(_) => 20,
        }
    }

    /// Duration of a call, including freeing its result.
    pub fn timed<R>(&self, mut work: impl FnMut() -> R) -> Duration {
        let start = Instant::now();
        for _ in 0..self.calls() {
            drop(black_box(work()));
        }
        if self.device != Device::Cpu {
            // Errors are reported when the row is complete.
            let ended = kernel::finish(self.device);
            ended.unwrap_or_else(|error| kernel::fail(self.device, error));
        }
        start.elapsed() / self.calls() as u32
    }

    fn of_threads() -> Self {
        // 400 MB each: larger than the last-level cache.
        let from = Tensor::full(&[100 << 20], 1.0, Dtype::F32);
        let mut to = Tensor::zeros(from.shape(), Dtype::F32);
        let part = from.len().div_ceil(parallel::threads());
        let copy = median(|| {
            let parts = to.write::<f32>().par_chunks_mut(part);
            let parts = parts.zip(from.read::<f32>().par_chunks(part));
            timed(|| parts.for_each(|(to, from)| to.copy_from_slice(from)))
        });
        // The best block height depends on the caches.
        let products = [64, 128, 256, 512].map(product_in_blocks);
        Self {
            device: Device::Cpu,
            element: Dtype::F32,
            copy: 2.0 * bytes([&from]) / copy,
            product: products.into_iter().fold(0.0, f64::max),
        }
    }

    /// Fields of a row: time, rates, and fraction of the bound.
    pub fn fields(&self, pass: &str, time: f64, bytes: f64, operations: f64) -> Map<String, Value> {
        let bound = (bytes / self.copy).max(operations / self.product);
        let rate = (operations > 0.0).then(|| rounded(operations / time / 1e9));
        let fields = [
            ("us", Some(rounded(time * 1e6))),
            ("gb_s", Some(rounded(bytes / time / 1e9))),
            ("gflop_s", rate),
            ("of_bound", Some(rounded(bound / time))),
        ];
        fields.into_iter().map(|(key, value)| (format!("{pass}_{key}"), json!(value))).collect()
    }
}

/// Operations per second of a matrix product, where each task computes some rows.
fn product_in_blocks(rows: usize) -> f64 {
    const SIDE: usize = 1024;
    let [a, b] = [0, 1].map(|i| draw(&[SIDE, SIDE], &Draw::Normal, 1, i).to_dtype(Dtype::F32));
    let mut c = Tensor::zeros(&[SIDE, SIDE], Dtype::F32);
    let time = median(|| {
        let blocks = c.write::<f32>().par_chunks_mut(rows * SIDE);
        let blocks = blocks.zip(a.read::<f32>().par_chunks(rows * SIDE));
        timed(|| {
            blocks.for_each(|(c, a)| {
                let (a, b) =
                    (View::new(a, rows, SIDE, SIDE), View::new(b.read(), SIDE, SIDE, SIDE));
                product(c, SIDE, false, 1.0, a, b);
            });
        })
    });
    2.0 * (SIDE * SIDE * SIDE) as f64 / time
}

/// Total size of the tensors in bytes.
pub fn bytes<'a>(tensors: impl IntoIterator<Item = &'a Tensor>) -> f64 {
    tensors.into_iter().map(|x| x.bytes() as f64).sum()
}

/// Duration of the work, including freeing its result.
fn timed<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    drop(black_box(work()));
    start.elapsed()
}

/// Median duration in seconds of enough calls; the first two warm the caches.
fn median(mut once: impl FnMut() -> Duration) -> f64 {
    const ENOUGH: Duration = Duration::from_millis(200);
    const CALLS: std::ops::Range<usize> = 5..1000;
    once();
    once();
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.len() < CALLS.start || (times.len() < CALLS.end && start.elapsed() < ENOUGH) {
        times.push(once());
    }
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64()
}

/// Rounds to four significant digits.
pub fn rounded(x: f64) -> f64 {
    format!("{x:.3e}").parse().unwrap_or(x)
}
