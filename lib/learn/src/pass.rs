//! One run through a model: the tape, and the parameters as its variables.

use crate::params::{ParamId, Params};
use crate::recompute::{self, Choice, Recompute};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use tensor::op::Op;
use tensor::ops::cast::Cast;
use tensor::{Device, Dtype, Tape, Tensor, Var, constant, kernel};
use unix::Result;

/// The parameters in both element types.
#[derive(Clone)]
struct Variables {
    full: Vec<Var>,
    /// In the type of computing, where that is another.
    narrow: Option<Vec<Var>>,
}

/// A parameter in one of its types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    Full(usize),
    Narrow(usize),
}

impl Variables {
    /// The variable of a use; where there is one type only it has two names.
    fn of(&mut self, which: Use) -> &mut Var {
        match (which, &mut self.narrow) {
            (Use::Narrow(i), Some(narrow)) => &mut narrow[i],
            (Use::Narrow(i) | Use::Full(i), _) => &mut self.full[i],
        }
    }

    /// The same values, each made a variable by `variable`.
    fn each(&self, variable: impl Fn(&Var) -> Var) -> Self {
        let all = |vars: &Vec<Var>| vars.iter().map(&variable).collect();
        Self { full: all(&self.full), narrow: self.narrow.as_ref().map(all) }
    }
}

/// One run through a model.
///
/// Inputs and outputs of a model have the element type of the parameters, the full one; inside, a model
/// computes in the type of the pass, which in mixed precision has fewer bits.
pub struct Pass<'a> {
    tape: &'a Tape,
    variables: Variables,
    dtype: Dtype,
    device: Device,
    /// Which blocks are computed again in the backward pass; none of them where there is no plan.
    recompute: Option<Rc<Recompute>>,
    /// Parameters that a block asked for, in its own pass: what it depends on.
    used: Option<RefCell<BTreeSet<Use>>>,
}

impl<'a> Pass<'a> {
    /// A pass that differentiates the parameters.
    pub fn training(tape: &'a Tape, params: &Params) -> Self {
        Self::of(tape, params, |t| tape.leaf(t.clone()))
    }

    /// A pass with the parameters as constants.
    pub fn frozen(tape: &'a Tape, params: &Params) -> Self {
        Self::of(tape, params, |t| constant(t.clone()))
    }

    fn of(tape: &'a Tape, params: &Params, variable: impl Fn(&Tensor) -> Var) -> Self {
        Self {
            tape,
            variables: Variables { full: params.tensors().map(variable).collect(), narrow: None },
            dtype: params.tensors().next().map_or(Dtype::F32, Tensor::dtype),
            device: params.device(),
            recompute: None,
            used: None,
        }
    }

    /// The same pass, computing in `dtype`: each parameter is cast once, and gradients come back in the
    /// full type.
    pub fn computing_in(mut self, dtype: Dtype) -> Result<Self> {
        if dtype != self.dtype {
            let cast = |v: &Var| self.tape.apply(Cast(dtype), &[v]);
            let narrow = self.variables.full.iter().map(cast).collect::<Result<_>>()?;
            self.variables.narrow = Some(narrow);
        }
        Ok(self)
    }

    /// The same pass, with some of its blocks computed again when gradients are found.
    pub fn recomputing(mut self, recompute: Rc<Recompute>) -> Self {
        self.recompute = Some(recompute);
        self
    }

    /// A parameter, in the type of computing.
    pub fn get(&self, id: ParamId) -> &Var {
        self.note(Use::Narrow(id.0));
        &self.variables.narrow.as_ref().unwrap_or(&self.variables.full)[id.0]
    }

    /// A parameter in the full type, for what is done outside a model's core.
    pub fn get_full(&self, id: ParamId) -> &Var {
        self.note(Use::Full(id.0));
        &self.variables.full[id.0]
    }

    fn note(&self, which: Use) {
        if let Some(used) = &self.used {
            used.borrow_mut().insert(which);
        }
    }

    /// Element type of the parameters, and of what goes into a model and comes out.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Where the parameters are.
    pub fn device(&self) -> Device {
        self.device
    }

    /// A tensor of the full type on the device of the pass, not differentiated. What changes from pass to
    /// pass is taken there before ([`Pass::data`]): constants stay.
    pub fn constant(&self, tensor: &Tensor) -> Result<Var> {
        let tensor = match tensor.device() {
            Device::Cpu => kernel::constant(&tensor.to_dtype(self.dtype), self.device)?,
            _ => tensor.clone(),
        };
        Ok(constant(tensor))
    }

    /// Data on the device of the pass, not differentiated.
    pub fn data(&self, tensor: &Tensor) -> Result<Var> {
        Ok(constant(tensor.to_device(self.device)?))
    }

    /// [`Pass::constant`] with every element `value`.
    pub fn full(&self, shape: &[usize], value: f64) -> Result<Var> {
        self.constant(&Tensor::full(shape, value, self.dtype))
    }

    /// From the full type to that of computing.
    pub fn narrow(&self, x: &Var) -> Result<Var> {
        let narrow = self.variables.narrow.as_ref().and_then(|v| v.first());
        self.cast(x, narrow.map_or(self.dtype, |v| v.value().dtype()))
    }

    /// From the type of computing to the full one.
    pub fn widen(&self, x: &Var) -> Result<Var> {
        self.cast(x, self.dtype)
    }

    fn cast(&self, x: &Var, dtype: Dtype) -> Result<Var> {
        if x.value().dtype() == dtype { Ok(x.clone()) } else { self.apply(Cast(dtype), &[x]) }
    }

    /// The variables of all parameters, in the full type and their order.
    pub fn variables(&self) -> &[Var] {
        &self.variables.full
    }

    /// Runs an op.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Result<Var> {
        self.tape.apply(op, inputs)
    }

    /// Runs a part of a model that may be computed again in the backward pass rather than keep what that
    /// needs: a function of its inputs and of the parameters it asks for, and of nothing else.
    pub fn block(
        &self,
        inputs: &[&Var],
        body: impl Fn(&Pass, &[Var]) -> Result<Var> + 'static,
    ) -> Result<Var> {
        let own = || inputs.iter().map(|v| (*v).clone()).collect::<Vec<_>>();
        let recompute = self.recompute.as_deref().filter(|_| self.tape.is_recording());
        let choice = recompute.map_or(Choice::Keep, Recompute::choose);
        if choice == Choice::Keep {
            return body(self, &own());
        }
        let measured = choice == Choice::Measure;
        let tape = if measured { Tape::new() } else { Tape::without_gradients() };
        let pass = self.on(&tape, self.variables.each(|v| tape.leaf(v.value().clone())));
        let leaves: Vec<Var> = inputs.iter().map(|v| tape.leaf(v.value().clone())).collect();
        let value = body(&pass, &leaves)?.value().clone();
        let used: Vec<Use> = pass.used.iter().flat_map(RefCell::take).collect();
        if let Some(recompute) = recompute.filter(|_| measured) {
            let all = &pass.variables;
            let params = all.full.iter().chain(all.narrow.iter().flatten());
            let known: Vec<&Tensor> = params.chain(&leaves).map(Var::value).collect();
            let (bytes, operations) = (tape.kept_bytes(&known), tape.operations());
            recompute.note(recompute::Block { bytes, operations });
        }
        let mut variables = self.variables.clone();
        let mut needed = own();
        needed.extend(used.iter().map(|which| variables.of(*which).clone()));
        let constants = self.variables.each(Var::detached);
        let (dtype, device, count) = (self.dtype, self.device, inputs.len());
        let again = move |tape: &Tape, vars: &[Var]| {
            let mut variables = constants.clone();
            for (which, var) in used.iter().zip(&vars[count..]) {
                *variables.of(*which) = var.clone();
            }
            let (recompute, used) = (None, None);
            body(&Pass { tape, variables, dtype, device, recompute, used }, &vars[..count])
        };
        self.tape.recomputed(value, &needed.iter().collect::<Vec<_>>(), Box::new(again))
    }

    /// The same kind of pass on another tape, nothing of it recomputed.
    fn on<'b>(&self, tape: &'b Tape, variables: Variables) -> Pass<'b> {
        let (dtype, device) = (self.dtype, self.device);
        Pass { tape, variables, dtype, device, recompute: None, used: Some(RefCell::default()) }
    }
}
