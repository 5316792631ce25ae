use crate::adapt::Adapter;
use crate::forward::{Forward, Weight};
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::frozen_linear::{FrozenLinear, Storage};
use tensor::ops::linear;
use unix::Result;

/// A linear layer with optional bias and activation, y = f(x Wᵀ + b), which can be adapted with LoRA
/// ([`crate::adapt`]).
#[derive(Clone, Debug)]
pub struct Linear {
    weight: ParamId,
    bias: Option<ParamId>,
    activation: Activation,
    adapter: Option<Adapter>,
}

impl Linear {
    /// Creates a layer with bias. Weights and bias are initialised uniformly in ±1/√inputs (PyTorch's default).
    pub fn new(b: &mut Builder, name: &str, inputs: usize, outputs: usize) -> Self {
        let init = Init::Uniform(1.0 / (inputs as f64).sqrt());
        Self::with_init(b, name, inputs, outputs, init, init)
    }

    /// Creates a layer with bias, both initialised to zero, for a residual branch that initially outputs zero.
    pub fn zeroed(b: &mut Builder, name: &str, inputs: usize, outputs: usize) -> Self {
        Self::with_init(b, name, inputs, outputs, Init::Constant(0.0), Init::Constant(0.0))
    }

    /// Creates a layer with bias and explicit initialisers.
    pub fn with_init(
        b: &mut Builder,
        name: &str,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Init,
    ) -> Self {
        b.scope(name, |b| Self {
            weight: b.linear_weight([outputs, inputs], weight),
            bias: Some(b.param("bias", &[outputs], bias)),
            activation: Activation::Identity,
            adapter: b.adapter(inputs, outputs),
        })
    }

    /// Creates a layer without bias.
    pub fn without_bias(
        b: &mut Builder,
        name: &str,
        inputs: usize,
        outputs: usize,
        weight: Init,
    ) -> Self {
        b.scope(name, |b| Self {
            weight: b.linear_weight([outputs, inputs], weight),
            bias: None,
            activation: Activation::Identity,
            adapter: b.adapter(inputs, outputs),
        })
    }

    /// Creates a layer without bias from the given weights [outputs, inputs].
    pub fn from_weight(b: &mut Builder, name: &str, weight: tensor::Tensor) -> Self {
        b.scope(name, |b| {
            let [outputs, inputs] = [0, 1].map(|axis| weight.shape()[axis]);
            Self {
                weight: b.value("weight", weight),
                bias: None,
                activation: Activation::Identity,
                adapter: b.adapter(inputs, outputs),
            }
        })
    }

    /// Creates a layer without bias whose weight is a parameter [outputs, inputs] that was registered before, such as a
    /// table of token embeddings. LoRA does not adapt it, and it is not quantised.
    pub fn sharing(weight: ParamId) -> Self {
        Self { weight, bias: None, activation: Activation::Identity, adapter: None }
    }

    /// Applies an activation after the layer.
    pub fn then(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Maps x [.., inputs] to [.., outputs].
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        // With an adapter, the activation is applied after the low-rank update.
        let activation = match self.adapter {
            None => self.activation,
            Some(_) => Activation::Identity,
        };
        let bias = self.bias.map(|bias| forward.get(bias));
        let update = self.adapter.as_ref().and_then(|adapter| adapter.merged(forward, x));
        let weight = match (forward.weight(self.weight), &update) {
            (Weight::Dense(weight), Some(_)) => {
                let dtype = weight.value().dtype();
                Weight::Stored(Storage::Dense(dtype), std::slice::from_ref(weight))
            }
            (weight, _) => weight,
        };
        let y = match weight {
            Weight::Dense(weight) => {
                let inputs = [x, weight].into_iter().chain(bias);
                let op = linear::Linear { bias: bias.is_some(), activation };
                forward.apply(op, &inputs.collect::<Vec<_>>())
            }
            Weight::Stored(weight, pieces) => {
                let rest = pieces[1..].iter().chain(update.iter().flat_map(|(_, factors)| factors));
                let inputs = [x, &pieces[0]].into_iter().chain(bias).chain(rest);
                let merged = update.as_ref().map(|(scale, _)| *scale);
                let op = FrozenLinear { weight, bias: bias.is_some(), activation, merged };
                forward.apply(op, &inputs.collect::<Vec<_>>())
            }
        }?;
        let Some(adapter) = &self.adapter else { return Ok(y) };
        let y = adapter.add(forward, x, y, update.is_some())?;
        match self.activation {
            Activation::Identity => Ok(y),
            activation => forward.apply(activation, &[&y]),
        }
    }
}
