//! Context of one forward run of a model: the tape, the parameters as tape variables, and the dropout counter.

mod frozen;

pub use frozen::Weight;

use crate::params::{ParamId, ParamSet, Params};
use crate::recompute::{self, Choice, Recompute};
use frozen::Frozen;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use tensor::op::Op;
use tensor::ops::cast::Cast;
use tensor::ops::dropout::Dropout;
use tensor::ops::embedding::Embedding;
use tensor::{Device, Dtype, Tape, Tensor, Var, constant, kernel};
use unix::{Error, Result};

/// Parameters as variables, in their stored dtype and in the compute dtype.
#[derive(Clone)]
struct Typed {
    stored: Vec<Var>,
    /// None when both dtypes are the same.
    compute: Option<Vec<Var>>,
}

impl Typed {
    fn of(params: &Params, variable: impl Fn(&Tensor) -> Var) -> Self {
        Self { stored: params.tensors().map(variable).collect(), compute: None }
    }

    /// Adds casts of the variables whose floating-point dtype differs from `dtype`.
    fn computing_in(mut self, tape: &Tape, dtype: Dtype) -> Result<Self> {
        let is_cast = |v: &Var| v.value().dtype().is_float() && v.value().dtype() != dtype;
        let wanted: Vec<&Var> = self.stored.iter().filter(|v| is_cast(v)).collect();
        if !wanted.is_empty() {
            let mut cast = tape.cast_all(&wanted, dtype)?.into_iter();
            let of = |v: &Var| if is_cast(v) { cast.next() } else { None }.unwrap_or(v.clone());
            self.compute = Some(self.stored.iter().map(of).collect());
        }
        Ok(self)
    }

    /// Maps every value to a variable with `variable`.
    fn each(&self, variable: impl Fn(&Var) -> Var) -> Self {
        let all = |vars: &Vec<Var>| vars.iter().map(&variable).collect();
        Self { stored: all(&self.stored), compute: self.compute.as_ref().map(all) }
    }

    /// All variables, in both dtypes.
    fn variables(&self) -> impl Iterator<Item = &Var> {
        self.stored.iter().chain(self.compute.iter().flatten())
    }

    /// Returns the variable for one use; when both dtypes are the same, both uses share one variable.
    fn of_use(&self, which: Use) -> &Var {
        match (which, &self.compute) {
            (Use::Compute(i), Some(compute)) => &compute[i],
            (Use::Compute(i) | Use::Stored(i), _) => &self.stored[i],
        }
    }

    /// Returns mutable access to the variable for one use.
    fn of_use_mut(&mut self, which: Use) -> &mut Var {
        match (which, &mut self.compute) {
            (Use::Compute(i), Some(compute)) => &mut compute[i],
            (Use::Compute(i) | Use::Stored(i), _) => &mut self.stored[i],
        }
    }
}

/// Identifies a trained parameter in one of its two dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Stored(usize),
    Compute(usize),
}

/// Parameters and mode of a forward run, as needed to recompute a block.
#[derive(Clone)]
struct Context {
    trained: Typed,
    frozen: Frozen,
    /// The trained parameters of an evaluation, if some are stored in fewer bits than the others.
    compact: Option<Frozen>,
    dtype: Dtype,
    compute_dtype: Dtype,
    device: Device,
    /// The dropout counter, i32 [4] ([`crate::task::Batch::counter`]); None in evaluation mode, where dropout is off.
    counter: Option<Tensor>,
}

/// One forward run of a model.
///
/// Inputs and outputs of a model have the dtype of the trained parameters. Inside, the model computes in the compute
/// dtype, which is narrower in mixed precision.
pub struct Forward<'a> {
    tape: &'a Tape,
    context: Context,
    /// The moving average of the trained parameters, for losses that need it.
    average: Option<&'a Params>,
    /// Decides which blocks are recomputed in the backward pass; None: no block.
    recompute: Option<Rc<Recompute>>,
    /// Parameters that a recomputed block has requested, recorded while the block runs.
    used: Option<RefCell<BTreeSet<Use>>>,
    /// Number of dropout ops so far; each one has its own masks.
    dropouts: Cell<u32>,
}

impl<'a> Forward<'a> {
    /// Starts a forward run that is differentiated with respect to the trained parameters.
    pub fn training(tape: &'a Tape, params: &ParamSet) -> Self {
        Self::of(tape, params, |t| tape.leaf(t.clone()))
    }

    /// Starts a forward run in which all parameters are constants, which may be compact ([`ParamSet::compact`]).
    pub fn evaluation(tape: &'a Tape, params: &ParamSet) -> Self {
        let mut forward = Self::of(tape, params, |t| constant(t.clone()));
        let dtype = forward.dtype();
        if params.trained.tensors().any(|t| t.dtype() != dtype) {
            forward.context.compact = Some(Frozen::of(&params.trained));
        }
        forward
    }

    fn of(tape: &'a Tape, params: &ParamSet, variable: impl Fn(&Tensor) -> Var) -> Self {
        let dtypes = params.trained.tensors().map(Tensor::dtype);
        let dtype = dtypes.max_by_key(|dtype| dtype.bytes()).unwrap_or(Dtype::F32);
        let context = Context {
            trained: Typed::of(&params.trained, variable),
            frozen: Frozen::of(&params.frozen),
            compact: None,
            dtype,
            compute_dtype: dtype,
            device: params.trained.device(),
            counter: None,
        };
        Self::on(tape, context)
    }

    fn on(tape: &'a Tape, context: Context) -> Self {
        let (average, recompute, used) = (None, None, None);
        Self { tape, context, average, recompute, used, dropouts: Cell::new(0) }
    }

    /// Switches to training mode: dropout draws its masks from `counter` ([`crate::task::Batch::counter`]).
    pub fn with_counter(mut self, counter: &Tensor) -> Self {
        self.context.counter = Some(counter.clone());
        self
    }

    /// Makes a moving average of the parameters available to the loss.
    pub fn with_average(mut self, average: Option<&'a Params>) -> Self {
        self.average = average;
        self
    }

    /// Sets the compute dtype: each trained parameter is cast once, frozen ones when they are used, and gradients are
    /// returned in the parameter's dtype. Errors: a bug for compact parameters.
    pub fn computing_in(mut self, dtype: Dtype) -> Result<Self> {
        if self.context.compact.is_some() {
            return Err(Error::bug("compact parameters compute in their own dtype only"));
        }
        self.context.trained = self.context.trained.computing_in(self.tape, dtype)?;
        self.context.frozen = self.context.frozen.unused();
        self.context.compute_dtype = dtype;
        Ok(self)
    }

    /// Enables recomputation of the model's blocks in the backward pass, as `recompute` decides.
    pub fn recomputing(mut self, recompute: Rc<Recompute>) -> Self {
        self.recompute = Some(recompute);
        self
    }

    /// Returns the same model with the moving average of its parameters, as constants and in evaluation mode: the
    /// teacher of a self-distillation loss. Errors (78): `training.ema` is not set.
    pub fn averaged(&self) -> Result<Forward<'a>> {
        let average = self.average.ok_or_else(|| {
            Error::config(
                "training.ema: the loss reads a moving average of the parameters; set its decay",
            )
        })?;
        let trained = Typed::of(average, |t| constant(t.clone()));
        let trained = trained.computing_in(self.tape, self.context.compute_dtype)?;
        let context = Context { trained, compact: None, counter: None, ..self.context.clone() };
        Ok(Forward::on(self.tape, context))
    }

    /// Returns the same model with its parameters as constants and in evaluation mode: no gradient flows through what it
    /// computes.
    pub fn without_gradients(&self) -> Forward<'a> {
        let trained = self.context.trained.each(Var::detached);
        Forward::on(self.tape, Context { trained, counter: None, ..self.context.clone() })
    }

    /// Returns a parameter in the compute dtype.
    pub fn get(&self, id: ParamId) -> &Var {
        self.variable(id, Use::Compute)
    }

    /// Returns a parameter in its stored dtype, for computations outside the model's backbone.
    pub fn get_stored(&self, id: ParamId) -> &Var {
        self.variable(id, Use::Stored)
    }

    /// Returns the weight of a linear layer. A constant that is stored in another form than the compute dtype stays in
    /// it.
    pub fn weight(&self, id: ParamId) -> Weight<'_> {
        let Context { frozen, compact, compute_dtype, .. } = &self.context;
        let apart = match id {
            ParamId::Frozen(i) => frozen.apart(i, *compute_dtype),
            ParamId::Trained(i) => compact.as_ref().and_then(|own| own.apart(i, *compute_dtype)),
        };
        match apart {
            Some((storage, pieces)) => Weight::Stored(storage, pieces),
            None => Weight::Dense(self.get(id)),
        }
    }

    /// Returns the rows of a table [V, H] with these indices, i32 [..], in the compute dtype: [.., H].
    pub fn embedding(&self, table: ParamId, index: &Var) -> Result<Var> {
        match self.weight(table) {
            Weight::Dense(table) => self.apply(Embedding, &[table, index]),
            // Only the rows that are used are converted.
            Weight::Stored(_, pieces) => {
                self.to_compute_dtype(&self.apply(Embedding, &[&pieces[0], index])?)
            }
        }
    }

    fn variable(&self, id: ParamId, as_use: fn(usize) -> Use) -> &Var {
        let i = match (id, as_use(0)) {
            (ParamId::Frozen(i), Use::Stored(_)) => return self.context.frozen.stored(i),
            (ParamId::Frozen(i), Use::Compute(_)) => {
                return self.context.frozen.computing(i, self.context.compute_dtype);
            }
            (ParamId::Trained(i), _) => i,
        };
        if let Some(compact) = &self.context.compact {
            return compact.computing(i, self.dtype());
        }
        if let Some(used) = &self.used {
            used.borrow_mut().insert(as_use(i));
        }
        self.context.trained.of_use(as_use(i))
    }

    /// Whether this run is in training mode, where dropout is active.
    pub fn is_training(&self) -> bool {
        self.context.counter.is_some()
    }

    /// In training mode, zeroes elements of x [samples, ..] with probability `p` and divides the others by 1 - p; in
    /// evaluation mode, the identity. Masks are a function of (seed, micro-batch, sample, index of the dropout in the
    /// model): they do not depend on the number of ranks or on recomputation, and a resumed run draws the same masks.
    pub fn dropout(&self, x: &Var, p: f64) -> Result<Var> {
        match self.next_dropout(p, x.shape()[0]) {
            Some((op, counter)) => self.apply(op, &[x, &counter]),
            None => Ok(x.clone()),
        }
    }

    /// Returns parameters and counter of the next dropout over `samples` samples, for ops with built-in dropout; None
    /// where nothing is dropped.
    pub fn next_dropout(&self, p: f64, samples: usize) -> Option<(Dropout, Var)> {
        let site = self.dropouts.replace(self.dropouts.get() + 1);
        let counter = self.context.counter.as_ref().filter(|_| p > 0.0)?;
        Some((Dropout { p, site, samples }, constant(counter.clone())))
    }

    /// Dtype of the trained parameters and of the model's inputs and outputs.
    pub fn dtype(&self) -> Dtype {
        self.context.dtype
    }

    /// Device that holds the parameters.
    pub fn device(&self) -> Device {
        self.context.device
    }

    /// Converts a tensor to a constant on the device and, unless it holds integers, in the dtype of the parameters.
    /// Copies of host tensors are cached on the device, so use [`Forward::data`] for tensors that change with every
    /// batch.
    pub fn constant(&self, tensor: &Tensor) -> Result<Var> {
        let tensor = match (tensor.device(), tensor.dtype()) {
            (Device::Cpu, dtype) if !dtype.is_float() => kernel::constant(tensor, self.device())?,
            (Device::Cpu, _) => kernel::constant(&tensor.to_dtype(self.dtype()), self.device())?,
            _ => tensor.clone(),
        };
        Ok(constant(tensor))
    }

    /// Moves data to the device of the parameters, as a constant.
    pub fn data(&self, tensor: &Tensor) -> Result<Var> {
        Ok(constant(tensor.to_device(self.device())?))
    }

    /// Returns a [`Forward::constant`] filled with `value`.
    pub fn full(&self, shape: &[usize], value: f64) -> Result<Var> {
        self.constant(&Tensor::full(shape, value, self.dtype()))
    }

    /// Casts `x` to the compute dtype.
    pub fn to_compute_dtype(&self, x: &Var) -> Result<Var> {
        self.cast(x, self.context.compute_dtype)
    }

    /// Casts `x` to the dtype of the parameters.
    pub fn to_param_dtype(&self, x: &Var) -> Result<Var> {
        self.cast(x, self.dtype())
    }

    fn cast(&self, x: &Var, dtype: Dtype) -> Result<Var> {
        if x.value().dtype() == dtype { Ok(x.clone()) } else { self.apply(Cast(dtype), &[x]) }
    }

    /// Variables of the trained parameters, in order and in their stored dtype.
    pub fn variables(&self) -> &[Var] {
        &self.context.trained.stored
    }

    /// Applies an op to its inputs.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Result<Var> {
        self.tape.apply(op, inputs)
    }

    /// Applies an op that adds to its first input.
    pub fn apply_onto(&self, op: impl Op, first: Var, others: &[&Var]) -> Result<Var> {
        self.tape.apply_onto(op, first, others)
    }

    /// Whether [`Self::block`] may recompute blocks. Otherwise, a block with several outputs need not join them.
    pub fn recomputes(&self) -> bool {
        self.tape.is_recording() && self.recompute.as_ref().is_some_and(|own| own.is_on())
    }

    /// Runs a part of a model, whose share of activations estimates for absent GPUs name. Parts do not nest.
    pub fn part<R>(&self, name: &'static str, work: impl FnOnce() -> R) -> R {
        match &self.recompute {
            Some(recompute) if tensor::trace::is_on() => recompute.part(name, work),
            _ => work(),
        }
    }

    /// Runs a model block that may be recomputed in the backward pass instead of keeping its activations. It must be a
    /// pure function of its inputs and of the parameters that it requests.
    pub fn block(
        &self,
        inputs: &[&Var],
        body: impl Fn(&Forward, &[Var]) -> Result<Var> + 'static,
    ) -> Result<Var> {
        let inputs: Vec<Var> = inputs.iter().map(|v| (*v).clone()).collect();
        let recompute = self.recompute.as_deref().filter(|_| self.tape.is_recording());
        let choice = recompute.map_or(Choice::Keep, Recompute::choose);
        if choice == Choice::Keep {
            inputs.iter().for_each(|input| self.tape.mark_boundary(input));
            let output = body(self, &inputs)?;
            self.tape.mark_boundary(&output);
            return Ok(output);
        }
        let measured = choice == Choice::Measure;
        let tape = if measured { Tape::new() } else { Tape::without_gradients() };
        let leaf = |v: &Var| match v.has_gradient() {
            true => tape.leaf(v.value().clone()),
            false => v.detached(),
        };
        let trained = self.context.trained.each(leaf);
        let inner = Forward::on(&tape, Context { trained, ..self.context.clone() });
        let first = self.dropouts.get();
        let inner = Forward { used: Some(RefCell::default()), dropouts: Cell::new(first), ..inner };
        let leaves: Vec<Var> = inputs.iter().map(leaf).collect();
        let value = body(&inner, &leaves)?.value().clone();
        self.dropouts.set(inner.dropouts.get());
        let used: Vec<Use> = inner.used.iter().flat_map(RefCell::take).collect();
        if let Some(recompute) = recompute.filter(|_| measured) {
            let Context { trained, frozen, .. } = &inner.context;
            let known = trained.variables().chain(frozen.variables()).chain(&leaves);
            let known: Vec<&Tensor> = known.map(Var::value).collect();
            let (bytes, operations) = (tape.kept_bytes(&known), tape.flops());
            recompute.note(recompute::Block { bytes, operations });
        }
        let uses = used.iter().map(|which| self.context.trained.of_use(*which));
        let needed: Vec<&Var> = inputs.iter().chain(uses).collect();
        let constants = self.context.trained.each(Var::detached);
        let context = Context { trained: constants, ..self.context.clone() };
        let (count, in_block) = (inputs.len(), used.clone());
        let again = move |tape: &Tape, vars: &[Var]| {
            let mut context = context.clone();
            for (which, var) in in_block.iter().zip(&vars[count..]) {
                *context.trained.of_use_mut(*which) = var.clone();
            }
            let forward = Forward::on(tape, context);
            forward.dropouts.set(first);
            body(&forward, &vars[..count])
        };
        self.tape.recomputed(value, &needed, Box::new(again))
    }
}
