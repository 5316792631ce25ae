//! Matrix products on devices: C (+)= op(A)·op(B), batched and summed over terms.
//!
//! Operands are bf16, f16 or f32; accumulators are f32. Tensor cores multiply 16-bit operands exactly; f32 is
//! multiplied in f32 or, if [`set_tf32`] allows it, by tensor cores after rounding to tf32. Any size is supported:
//! large operands whose lines are not aligned to 16 bytes, such as logit gradients with an odd vocabulary size, are
//! first copied to aligned lines; small ones are read element by element. With split-k, the sum within each part runs
//! in order, and the parts are added in order (`reduce_rows`); the number of parts depends only on sizes and on whether
//! wgmma is used (`plan`). A product takes 2·m·n·k operations.

mod matrix;
mod plan;
#[cfg(all(test, feature = "emu"))]
mod tests;

use super::backend::{has_warpgroups, multiprocessors};
use super::{Arg, Grid, Source, reduce_rows, source};
use crate::args;
use crate::dtype::Dtype;
use crate::op::{Derivative, GradBuffer, Grads};
use crate::ops::activation::Activation;
use crate::tensor::Tensor;
pub(crate) use matrix::Matrix;
pub use matrix::SOURCE_LINES;
pub(crate) use plan::MULTIPROCESSORS;
use plan::{ProductPlan, Sizes, Tile, Unit};
use std::sync::atomic::{AtomicBool, Ordering};

/// Kernels for 16-bit dtypes.
pub static SOURCE: Source = source!("product", &[Dtype::Bf16, Dtype::F16]);
/// Kernels for f32 in full precision.
pub static SOURCE_F32: Source = source!("product_f32", &[Dtype::F32]);
/// Kernels for f32 rounded to tf32.
pub static SOURCE_TF32: Source = source!("product_tf32", &[Dtype::F32]);
/// wgmma kernels for 16-bit dtypes in which warpgroups share each output tile.
pub static SOURCE_WGMMA: Source =
    source!("product_wgmma", &[Dtype::Bf16, Dtype::F16], Some("sm_90a"));
/// wgmma kernels for 16-bit dtypes in which warpgroups take output tiles in turns (ping-pong).
pub static SOURCE_PINGPONG: Source =
    source!("product_pingpong", &[Dtype::Bf16, Dtype::F16], Some("sm_90a"));

static TF32: AtomicBool = AtomicBool::new(false);
static WGMMA: AtomicBool = AtomicBool::new(true);
static PINGPONG: AtomicBool = AtomicBool::new(true);

/// Sets whether f32 products may round their operands to tf32 (11 bits of precision): nominally about eight times
/// faster on a GPU with tensor cores, but less precise than f32. Exact ties are rounded to even on sm_90 and newer, and
/// away from zero on older GPUs, so results may differ between generations. Off by default.
pub fn set_tf32(allowed: bool) {
    TF32.store(allowed, Ordering::Relaxed);
}

/// Whether f32 products may round their operands to tf32 ([`set_tf32`]).
pub(crate) fn is_tf32() -> bool {
    TF32.load(Ordering::Relaxed)
}

/// Sets whether attention and large products of 16-bit matrices may use wgmma and TMA on Hopper (sm_90a), the only
/// instructions with which its tensor cores reach their full rate; no effect on other GPUs. On by default.
pub fn set_wgmma(allowed: bool) {
    WGMMA.store(allowed, Ordering::Relaxed);
}

/// Whether wgmma and TMA may be used ([`set_wgmma`]).
pub(crate) fn allows_wgmma() -> bool {
    WGMMA.load(Ordering::Relaxed)
}

/// Sets whether wgmma products may use the ping-pong schedule: two warpgroups alternate, one writing its results while
/// the other multiplies. On by default; for measurements.
pub fn set_pingpong(allowed: bool) {
    PINGPONG.store(allowed, Ordering::Relaxed);
}

/// Operations on z, a product plus `bias`, before it is written: out = f(z) (+ out), or out = z f'(at).
#[derive(Default)]
pub(crate) struct Epilogue<'a> {
    /// Bias [n].
    pub(crate) bias: Option<&'a Tensor>,
    /// The activation f, and the tensor to which z is written.
    pub(crate) activation: Option<(Activation, &'a mut Tensor)>,
    /// Whether to add to `out`.
    pub(crate) add: bool,
    /// The derivative f' and its argument `at`; excludes all other fields.
    pub(crate) derivative: Option<&'a Derivative>,
}

/// Σ_terms lhs·rhs for each product of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<'a> {
    lhs: Matrix<'a>,
    rhs: Matrix<'a>,
    batch: usize,
    terms: usize,
    tf32: bool,
    plan: Option<ProductPlan>,
    /// Whether the epilogue has an activation or a derivative.
    activates: bool,
}

/// Destination of a product: its elements, or the f32 partial sums of each split-k part.
enum Target<'a> {
    Elements(&'a mut Tensor, Epilogue<'a>),
    Sums(&'a mut Tensor),
}

impl<'a> Product<'a> {
    /// Creates the product lhs·rhs.
    ///
    /// # Panics
    /// If inner dimensions or dtypes differ.
    pub(crate) fn new(lhs: Matrix<'a>, rhs: Matrix<'a>) -> Self {
        assert_eq!(lhs.columns, rhs.rows, "inner sizes of a matrix product");
        assert_eq!(lhs.tensor.dtype(), rhs.tensor.dtype(), "element types of a matrix product");
        let tf32 = TF32.load(Ordering::Relaxed);
        Self { lhs, rhs, batch: 1, terms: 1, tf32, plan: None, activates: false }
    }

    /// Sets the number of products in a batch, whose results are stored one after another.
    pub(crate) fn batch(self, batch: usize) -> Self {
        Self { batch, ..self }
    }

    /// Sets the number of products that are summed.
    pub(crate) fn terms(self, terms: usize) -> Self {
        Self { terms, ..self }
    }

    /// Sets whether f32 operands are rounded to tf32, regardless of [`set_tf32`].
    #[cfg(all(test, feature = "emu"))]
    pub(crate) fn tf32(self, tf32: bool) -> Self {
        Self { tf32, ..self }
    }

    /// Uses `plan` instead of choosing a plan.
    #[cfg(all(test, feature = "emu"))]
    pub(crate) fn plan(self, plan: ProductPlan) -> Self {
        Self { plan: Some(plan), ..self }
    }

    /// Writes a gradient, in the dtype of the operands or in f32: sets the whole buffer or adds to it. May use split-k.
    pub(crate) fn put(self, buffer: &mut GradBuffer) {
        let plan = self.choose(true);
        let is_f32 = buffer.tensor.dtype() == Dtype::F32;
        if plan.splits == 1 && is_f32 && !buffer.accumulate && self.lhs.tensor.dtype() != Dtype::F32
        {
            self.launch(plan, Target::Sums(&mut buffer.tensor));
        } else if plan.splits == 1 && buffer.tensor.dtype() == self.lhs.tensor.dtype() {
            let epilogue = Epilogue { add: buffer.accumulate, ..Epilogue::default() };
            self.launch(plan, Target::Elements(&mut buffer.tensor, epilogue));
        } else {
            let shape = [plan.splits, buffer.tensor.len()];
            let mut sums = Tensor::empty_on(buffer.tensor.device(), &shape, Dtype::F32);
            self.launch(plan, Target::Sums(&mut sums));
            reduce_rows::sum_to(&sums, buffer);
        }
    }

    /// Writes the gradient of an op's input, if it needs one. Without split-k, also multiplies it by the pending
    /// derivative ([`Grads::take_derivative`]).
    pub(crate) fn put_input(self, grads: &mut Grads, input: usize) {
        let plan = Self { activates: grads.has_derivative(input), ..self }.choose(true);
        let derivative = if plan.splits == 1 { grads.take_derivative(input) } else { None };
        let Some(buffer) = grads.buffer(input) else { return };
        match derivative {
            None => Self { plan: Some(plan), ..self }.put(buffer),
            Some(derivative) => {
                assert!(!buffer.accumulate, "a gradient with several summands is multiplied");
                let epilogue = Epilogue { derivative: Some(&derivative), ..Epilogue::default() };
                self.launch(plan, Target::Elements(&mut buffer.tensor, epilogue));
            }
        }
    }

    /// Writes all of `out` [batch, m, n].
    pub(crate) fn write(self, out: &mut Tensor, epilogue: Epilogue<'_>) {
        let activates = epilogue.activation.is_some() || epilogue.derivative.is_some();
        let plan = Self { activates, ..self }.choose(false);
        self.launch(plan, Target::Elements(out, epilogue));
    }

    fn unit(&self) -> Unit {
        match self.lhs.tensor.dtype() {
            Dtype::F32 if self.tf32 => Unit::Tf32,
            Dtype::F32 => Unit::Float,
            _ => Unit::Half,
        }
    }

    fn choose(&self, may_split: bool) -> ProductPlan {
        let sizes = Sizes { may_split, ..self.sizes() };
        self.plan.unwrap_or_else(|| plan::choose(&sizes, self.unit()))
    }

    fn sizes(&self) -> Sizes {
        let unaligned = [self.lhs, self.rhs].into_iter().map(|operand| {
            if operand.is_aligned(self.batch, self.terms) {
                0
            } else {
                operand.stored(self.batch, self.terms).iter().product()
            }
        });
        Sizes {
            m: self.lhs.rows,
            n: self.rhs.columns,
            k: self.lhs.columns,
            batch: self.batch,
            terms: self.terms,
            unaligned: unaligned.sum(),
            both_transposed: self.lhs.is_transposed && self.rhs.is_transposed,
            may_split: false,
            warpgroups: allows_wgmma()
                && ![self.lhs.rows, self.rhs.columns, self.lhs.columns].contains(&0)
                && has_warpgroups(self.lhs.tensor.device()),
            in_turns: PINGPONG.load(Ordering::Relaxed),
            activates: self.activates,
        }
    }

    fn launch(self, plan: ProductPlan, target: Target<'_>) {
        let Self { lhs, rhs, batch, terms, .. } = self;
        lhs.check(batch, terms);
        rhs.check(batch, terms);
        let copies = [lhs, rhs].map(|operand| {
            let is_needed = plan.copied && !operand.is_aligned(batch, terms);
            is_needed.then(|| operand.copied(batch, terms))
        });
        let lhs = copies[0].as_ref().map_or(lhs, |copy| lhs.within(copy));
        let rhs = copies[1].as_ref().map_or(rhs, |copy| rhs.within(copy));
        let sizes = self.sizes();
        let Sizes { m, n, k, .. } = sizes;
        let null = || Arg::from(None::<&Tensor>);
        let (mut out, mut sums, mut bias, mut addend, mut z) =
            (null(), null(), null(), null(), null());
        let (mut activation, mut is_gradient) = (Activation::Identity, false);
        let is_whole = |tensor: &Tensor, parts: usize| {
            assert_eq!(tensor.len(), parts * batch * m * n, "elements of a product's result");
        };
        match target {
            Target::Elements(tensor, epilogue) => {
                is_whole(tensor, 1);
                assert_eq!(tensor.dtype(), lhs.tensor.dtype(), "element type of a product");
                out = Arg::from(tensor);
                addend = if epilogue.add { out } else { null() };
                bias = epilogue.bias.into();
                if let Some(Derivative { activation: f, at }) = epilogue.derivative {
                    is_whole(at, 1);
                    assert_eq!(at.dtype(), lhs.tensor.dtype(), "element type of a factor");
                    (activation, addend, is_gradient) = (*f, Arg::from(at), true);
                }
                if let Some((f, tensor)) = epilogue.activation {
                    is_whole(tensor, 1);
                    (activation, z) = (f, Arg::from(tensor));
                }
            }
            Target::Sums(tensor) => {
                is_whole(tensor, plan.splits);
                assert_eq!(tensor.dtype(), Dtype::F32, "element type of sums");
                sums = Arg::from(tensor);
            }
        }
        let aligned = i32::from(lhs.is_aligned(batch, terms))
            + 2 * i32::from(rhs.is_aligned(batch, terms))
            + 4 * i32::from((n * lhs.tensor.dtype().bytes()).is_multiple_of(16))
            + 8 * i32::from(is_gradient);
        let unit = self.unit();
        let by_warpgroups = plan.tile.uses_wgmma();
        let (source, names) = match (unit, plan.tile) {
            (Unit::Half, Tile::Wgmma) => (&SOURCE_WGMMA, NAMES),
            (Unit::Half, Tile::PingPong) => (&SOURCE_PINGPONG, NAMES),
            (Unit::Half, _) => (&SOURCE, NAMES),
            (Unit::Tf32, _) => (&SOURCE_TF32, NAMES_TF32),
            (Unit::Float, _) => (&SOURCE_F32, NAMES_F32),
        };
        let stored = 2 * usize::from(lhs.is_transposed) + usize::from(rhs.is_transposed);
        let tensors = [lhs.tensor.into(), rhs.tensor.into(), out, sums, bias, addend, z];
        let (blocks, operations) =
            (plan::blocks(&sizes, plan), 2 * plan::multiply_adds(&sizes, unit, plan));
        // wgmma kernels use persistent blocks: one per multiprocessor, each of which computes several tiles.
        let most = if by_warpgroups { multiprocessors(lhs.tensor.device()) } else { blocks };
        let parts = blocks.div_ceil(most.max(1));
        let grid = Grid::new(blocks.min(most), plan.tile.threads(unit))
            .flops(parts * operations)
            .shared(plan.tile.shared(unit));
        let maps = by_warpgroups.then(|| {
            let (rows, columns) = plan.tile.size();
            let lines = |transposed: bool, all: usize| if transposed { 64 } else { all };
            [
                lhs.tensor_map(batch, terms, lines(lhs.is_transposed, rows)),
                rhs.tensor_map(batch, terms, lines(!rhs.is_transposed, columns)),
            ]
        });
        let sizes = [m, n, k, terms, batch, plan.splits, lhs.step(), rhs.step(), n].map(Arg::from);
        let strides = [lhs.batch, rhs.batch, m * n, lhs.term, rhs.term];
        let strides = strides.map(|elements| Arg::from(elements as i64));
        source.launch(
            lhs.tensor.dtype(),
            names[plan.tile as usize][stored],
            grid,
            &[
                maps.as_ref().map_or(&[][..], |maps| maps),
                &tensors,
                &sizes,
                &strides,
                args![activation as i32, aligned],
            ]
            .concat(),
        );
    }
}

/// Kernel names by tile and by which operands are transposed: none, rhs, lhs, both.
type Names = [[&'static str; 4]; 5];

macro_rules! names {
    ($tile:literal) => {
        [concat!($tile, "_nn"), concat!($tile, "_nt"), concat!($tile, "_tn"), concat!($tile, "_tt")]
    };
}

const NAMES: Names = [
    names!("product_small"),
    names!("product_medium"),
    names!("product_large"),
    names!("product_wgmma"),
    names!("product_pingpong"),
];
const NAMES_F32: Names =
    [names!("product_f32_small"), names!("product_f32_medium"), [""; 4], [""; 4], [""; 4]];
const NAMES_TF32: Names =
    [names!("product_tf32_small"), names!("product_tf32_medium"), [""; 4], [""; 4], [""; 4]];
