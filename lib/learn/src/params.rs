//! The parameters of a model: named tensors in a fixed order. A model holds [`ParamId`]s and is plain
//! data; the numbers come in with each [`Pass`](crate::pass::Pass), so that trained weights, their
//! average and a copy in f64 run through the same code.

use tensor::random::{Philox, Purpose};
use tensor::{Device, Dtype, Tensor};
use unix::space::human_bytes;
use unix::{Error, Result};

/// Position of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamId(pub(crate) usize);

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
        self.tensors().map(Tensor::bytes).sum()
    }

    /// The same parameters in another element type.
    pub fn to_dtype(&self, dtype: Dtype) -> Params {
        Params {
            entries: self.entries.iter().map(|(n, t)| (n.clone(), t.to_dtype(dtype))).collect(),
        }
    }

    /// Where they are.
    pub fn device(&self) -> Device {
        self.tensors().next().map_or(Device::Cpu, Tensor::device)
    }

    /// The same parameters on `device`.
    pub fn to_device(&self, device: Device) -> Result<Params> {
        Ok(Params { entries: moved(&self.entries, device)? })
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
            *tensor = value.to_dtype(tensor.dtype()).to_device(tensor.device())?;
        }
        match values.iter().find(|(n, _)| !self.entries.iter().any(|(m, _)| m == n)) {
            Some((name, _)) => {
                Err(Error::data(format!("the model has no parameter {name} of the checkpoint")))
            }
            None => Ok(()),
        }
    }
}

/// Named tensors on `device`.
pub fn moved(tensors: &[(String, Tensor)], device: Device) -> Result<Vec<(String, Tensor)>> {
    tensors.iter().map(|(name, t)| Ok((name.clone(), t.to_device(device)?))).collect()
}

/// Registers the parameters of a model while it is built.
pub struct Builder {
    random: Philox,
    prefix: String,
    params: Params,
    /// Elements of all parameters, and how many fit into memory.
    elements: u64,
    most: u64,
}

impl Builder {
    /// A builder whose random values follow from `seed` and the position of each parameter.
    pub fn new(seed: u64) -> Self {
        let random = Philox::new(seed, Purpose::Weights);
        let most = unix::memory::available().map_or(u64::MAX, |bytes| bytes / 4);
        Self { random, prefix: String::new(), params: Params::default(), elements: 0, most }
    }

    /// Errors (78): the parameters do not fit into memory; those too many were left empty.
    pub fn check(&self) -> Result<()> {
        if self.elements <= self.most {
            return Ok(());
        }
        let bytes = |elements: u64| human_bytes(elements.saturating_mul(4));
        Err(Error::config(format!(
            "model: its parameters need {} of memory and {} is available: lower its hidden, depth, mlp_ratio or \
             filter",
            bytes(self.elements),
            bytes(self.most)
        )))
    }

    /// A parameter of the given shape.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        let id = self.params.entries.len();
        let elements = shape.iter().fold(1, |all: u64, n| all.saturating_mul(*n as u64));
        self.elements = self.elements.saturating_add(elements);
        let shape = if self.elements <= self.most { shape } else { &[0] };
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
