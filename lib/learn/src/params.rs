//! The parameters of a model: named tensors in a fixed order. A model holds [`ParamId`]s and is plain
//! data; the numbers come in with each pass, so that trained weights, their average and a copy in
//! f64 run through the same code.

use tensor::op::Op;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tape, Tensor, Var, constant};
use unix::{Error, Result};

/// Position of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(usize);

/// How a parameter starts.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    /// Every element this value.
    Constant(f64),
    /// Uniform in ±bound.
    Uniform(f64),
}

/// Names and values, in the order of registration.
#[derive(Clone, Debug, Default)]
pub struct Params {
    entries: Vec<(String, Tensor)>,
}

impl Params {
    /// Names and values.
    pub fn entries(&self) -> &[(String, Tensor)] {
        &self.entries
    }

    /// Values alone.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.entries.iter().map(|(_, t)| t)
    }

    /// Values, to be changed.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.entries.iter_mut().map(|(_, t)| t)
    }

    /// Number of numbers.
    pub fn count(&self) -> usize {
        self.tensors().map(Tensor::len).sum()
    }

    /// Bytes of all values.
    pub fn bytes(&self) -> usize {
        self.tensors().map(|t| t.len() * t.dtype().bytes()).sum()
    }

    /// The same parameters in another element type.
    pub fn to_dtype(&self, dtype: Dtype) -> Params {
        Params {
            entries: self.entries.iter().map(|(n, t)| (n.clone(), t.to_dtype(dtype))).collect(),
        }
    }

    /// Takes over `values`, which must have the same names and shapes in any order.
    pub fn assign(&mut self, values: &[(String, Tensor)]) -> Result<()> {
        for (name, tensor) in &mut self.entries {
            let Some((_, value)) = values.iter().find(|(n, _)| n == name) else {
                return Err(Error::data(format!("the checkpoint has no parameter {name}")));
            };
            if value.shape() != tensor.shape() {
                return Err(Error::data(format!(
                    "parameter {name} is {:?} in the checkpoint and {:?} in the model: \
                     is this the configuration it was trained with?",
                    value.shape(),
                    tensor.shape()
                )));
            }
            *tensor = value.to_dtype(tensor.dtype());
        }
        match values.iter().find(|(n, _)| !self.entries.iter().any(|(m, _)| m == n)) {
            Some((name, _)) => {
                Err(Error::data(format!("the model has no parameter {name} of the checkpoint")))
            }
            None => Ok(()),
        }
    }
}

/// Registers the parameters of a model while it is built.
pub struct Builder {
    random: Philox,
    prefix: String,
    params: Params,
}

impl Builder {
    /// A builder whose random values follow from `seed` and the position of each parameter.
    pub fn new(seed: u64) -> Self {
        let random = Philox::new(seed, Purpose::Weights);
        Self { random, prefix: String::new(), params: Params::default() }
    }

    /// A parameter of the given shape.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        let id = self.params.entries.len();
        let tensor = match init {
            Init::Constant(value) => Tensor::full(shape, value, Dtype::F32),
            Init::Uniform(bound) => {
                let mut values = vec![0.0; shape.iter().product()];
                self.random.fill_uniform(id as u64, &mut values);
                let bound = bound as f32;
                values.iter_mut().for_each(|v| *v = bound * (2.0 * *v - 1.0));
                Tensor::of(&values, shape)
            }
        };
        self.params.entries.push((format!("{}{name}", self.prefix), tensor));
        ParamId(id)
    }

    /// A parameter with given values.
    pub fn value(&mut self, name: &str, tensor: Tensor) -> ParamId {
        self.params.entries.push((format!("{}{name}", self.prefix), tensor));
        ParamId(self.params.entries.len() - 1)
    }

    /// Builds a part whose names start with `name.`.
    pub fn scope<R>(
        &mut self,
        name: impl std::fmt::Display,
        build: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let outer = self.prefix.len();
        self.prefix += &format!("{name}.");
        let part = build(self);
        self.prefix.truncate(outer);
        part
    }

    /// All parameters registered.
    pub fn finish(self) -> Params {
        self.params
    }
}

/// One run through a model: the tape, and the parameters as its variables.
pub struct Pass<'a> {
    tape: &'a Tape,
    params: Vec<Var>,
}

impl<'a> Pass<'a> {
    /// A pass that differentiates the parameters.
    pub fn training(tape: &'a Tape, params: &Params) -> Self {
        Self { tape, params: params.tensors().map(|t| tape.leaf(t.clone())).collect() }
    }

    /// A pass with the parameters as constants.
    pub fn frozen(tape: &'a Tape, params: &Params) -> Self {
        Self { tape, params: params.tensors().map(|t| constant(t.clone())).collect() }
    }

    /// The variable of a parameter.
    pub fn get(&self, id: ParamId) -> &Var {
        &self.params[id.0]
    }

    /// Element type of the parameters.
    pub fn dtype(&self) -> Dtype {
        self.params.first().map_or(Dtype::F32, |v| v.value().dtype())
    }

    /// All variables, in the order of the parameters.
    pub fn variables(&self) -> &[Var] {
        &self.params
    }

    /// Runs an op.
    pub fn apply(&self, op: impl Op, inputs: &[&Var]) -> Result<Var> {
        self.tape.apply(op, inputs)
    }
}
