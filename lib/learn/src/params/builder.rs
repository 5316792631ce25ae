use super::{Init, ParamId, ParamSet, Params};
use crate::adapt::{Adapter, Lora, is_adapter};
use crate::config::Config;
use std::collections::BTreeMap;
use tensor::random::{Philox, Purpose};
use tensor::{Dtype, Tensor};
use unix::space::human_bytes;
use unix::status::Cause;
use unix::text::matches;
use unix::{Error, Result};

/// Registers the parameters of a model while the model is being built.
pub struct Builder {
    random: Philox,
    prefix: String,
    params: ParamSet,
    /// Name patterns of the parameters to freeze.
    frozen: Vec<String>,
    /// Name patterns of the parameters that keep their initial values when section `init` of the configuration replaces
    /// the others; None without that section.
    kept: Option<Vec<String>>,
    /// Depth of the parameters that are registered next.
    depth: u32,
    /// LoRA configuration of the part under construction.
    lora: Option<Lora>,
    /// LoRA targets, and whether each one names a layer of any part.
    targets: BTreeMap<String, bool>,
    /// Bytes of the parameters registered so far, and the maximum that fits into memory.
    bytes: u64,
    most: u64,
    /// Names and shapes of the parameters, if their values are not wanted ([`Builder::shapes`]).
    shapes: Option<Vec<(String, Vec<usize>)>>,
    /// Reason why the model cannot be built.
    problem: Option<String>,
}

impl Builder {
    /// Creates a builder whose random values depend only on `seed` and the position of each parameter.
    pub fn new(seed: u64) -> Self {
        // Parameters are allocated up to this limit, beyond which a control group kills the process.
        let most = unix::memory::available().map_or(u64::MAX, |bytes| bytes / 10 * 9);
        Self {
            random: Philox::new(seed, Purpose::Weights),
            prefix: String::new(),
            params: ParamSet {
                frozen: Params { keeps_dtype: true, ..Params::default() },
                ..ParamSet::default()
            },
            frozen: Vec::new(),
            kept: None,
            depth: 0,
            lora: None,
            targets: BTreeMap::new(),
            bytes: 0,
            most,
            shapes: None,
            problem: None,
        }
    }

    /// Names and shapes of the parameters that `build` registers, in that order, however large they are: they get no values.
    pub fn shapes<R>(build: impl FnOnce(&mut Self) -> R) -> Vec<(String, Vec<usize>)> {
        let mut builder = Self { shapes: Some(Vec::new()), ..Self::replaced(0, vec![]) };
        build(&mut builder);
        builder.shapes.unwrap_or_default()
    }

    /// Creates a builder for a configuration. Values that its section `init` replaces are not drawn and stay undefined
    /// until then.
    pub fn of<D, M, L>(config: &Config<D, M, L>) -> Self {
        match &config.init {
            Some(init) => Self::replaced(config.seed, init.names.keep.clone()),
            None => Self::new(config.seed),
        }
    }

    /// Creates a builder for a model whose values are all replaced, except those whose names match a pattern of `kept`: they
    /// stay undefined until then.
    pub fn replaced(seed: u64, kept: Vec<String>) -> Self {
        Self { kept: Some(kept), ..Self::new(seed) }
    }

    /// Freezes every parameter registered later whose name matches one of `patterns`, e.g. `encoder.*`.
    pub fn freeze(&mut self, patterns: &[String]) {
        self.frozen.extend_from_slice(patterns);
    }

    /// Builds a part with LoRA: its parameters are frozen, except those that `lora` adds to its linear layers. Without
    /// `lora`, all parameters are trained. [`Builder::check`] reports a target that names no linear layer.
    pub fn adapted<R>(&mut self, lora: Option<&Lora>, build: impl FnOnce(&mut Self) -> R) -> R {
        for target in lora.into_iter().flat_map(|lora| lora.targets.all()) {
            self.targets.entry(target.clone()).or_default();
        }
        let outer = std::mem::replace(&mut self.lora, lora.cloned());
        let part = build(self);
        self.lora = outer;
        part
    }

    /// Registers the LoRA parameters of the linear layer in the current scope, if the layer is a target.
    pub(crate) fn adapter(&mut self, inputs: usize, outputs: usize) -> Option<Adapter> {
        let name = self.prefix.strip_suffix('.')?;
        let lora = self.lora.as_ref()?;
        // Several targets may match the same layer.
        let targets = lora.targets_of(name);
        if targets.is_empty() {
            return None;
        }
        self.targets.extend(targets.into_iter().map(|target| (target, true)));
        // The adapter's own parameters are trained.
        let outer = self.lora.take();
        let adapter = outer.as_ref().map(|lora| Adapter::new(self, lora, inputs, outputs));
        self.lora = outer;
        adapter
    }

    /// Rejects the configuration of a part whose sizes do not fit together; [`Builder::check`] reports the first
    /// problem.
    pub fn refuse(&mut self, problem: impl Into<String>) {
        self.problem.get_or_insert_with(|| problem.into());
    }

    /// Checks the registered parts. Errors: 78 when a part was rejected or the parameters do not fit into memory; those
    /// beyond the limit were registered with no elements.
    pub fn check(&self) -> Result<()> {
        if let Some(problem) = &self.problem {
            return Err(Error::config(problem));
        }
        if let Some((target, _)) = self.targets.iter().find(|(_, used)| !**used) {
            return Err(Error::config(format!(
                "model.lora.targets: {target} matches no linear layer that can be adapted; `ckpt show` lists the parameters \
                 of a checkpoint"
            )));
        }
        if self.bytes <= self.most {
            return Ok(());
        }
        Err(Error::config(format!(
            "model: the parameters need {} of memory, but {} is available: choose smaller sizes",
            human_bytes(self.bytes),
            human_bytes(self.most)
        ))
        .caused_by(Cause::OutOfMemory))
    }

    /// Registers a parameter of the given shape.
    pub fn param(&mut self, name: &str, shape: &[usize], init: Init) -> ParamId {
        let id = self.params.trained.depths.len() + self.params.frozen.depths.len();
        let full = format!("{}{name}", self.prefix);
        let is_replaced = self.kept.as_ref().is_some_and(|kept| {
            !is_adapter(&full) && !kept.iter().any(|pattern| matches(pattern, &full))
        });
        let elements = shape.iter().fold(1, |all: u64, n| all.saturating_mul(*n as u64));
        // The value that replaces a frozen parameter may be stored in as few as 4 bits an element.
        let bytes = match is_replaced && self.freezes(&full) {
            true => elements / 2,
            false => elements.saturating_mul(4),
        };
        self.bytes = self.bytes.saturating_add(bytes);
        let is_listed = self.shapes.as_mut().map(|all| all.push((full, shape.to_vec()))).is_some();
        let shape = if self.bytes <= self.most && !is_listed { shape } else { &[0] };
        let values = match is_replaced {
            true => Tensor::untouched(shape, Dtype::F32),
            false => init.values(&self.random, id as u64, shape),
        };
        self.value(name, values)
    }

    /// Registers the weight of a linear layer, which may be quantised if it is frozen.
    pub(crate) fn linear_weight(&mut self, shape: [usize; 2], init: Init) -> ParamId {
        let id = self.param("weight", &shape, init);
        match id {
            ParamId::Frozen(i) => self.params.frozen.linear.insert(i),
            ParamId::Trained(i) => self.params.trained.linear.insert(i),
        };
        id
    }

    /// Whether a parameter with this name would be frozen.
    fn freezes(&self, name: &str) -> bool {
        self.lora.is_some() || self.frozen.iter().any(|pattern| matches(pattern, name))
    }

    /// Registers a parameter with the given values.
    pub fn value(&mut self, name: &str, tensor: Tensor) -> ParamId {
        let name = format!("{}{name}", self.prefix);
        let (params, id): (_, fn(usize) -> ParamId) = match self.freezes(&name) {
            false => (&mut self.params.trained, ParamId::Trained),
            true => (&mut self.params.frozen, ParamId::Frozen),
        };
        params.entries.push((name, tensor));
        params.depths.push(self.depth);
        id(params.entries.len() - 1)
    }

    /// Builds a submodule whose parameter names start with `name.`.
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

    /// Builds a part whose parameters are `depth` layers below the head, for `optimizer.layer_decay`. The default depth
    /// is 0.
    pub fn at_depth<R>(&mut self, depth: u32, build: impl FnOnce(&mut Self) -> R) -> R {
        let outer = std::mem::replace(&mut self.depth, depth);
        let part = build(self);
        self.depth = outer;
        part
    }

    /// Returns all registered parameters.
    pub fn finish(self) -> ParamSet {
        self.params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean and standard deviation of n samples have standard errors of σ/√n and σ/√(2n); the tolerance is 5
    /// standard errors.
    #[test]
    fn initial_values_have_the_moments_of_their_distribution() {
        let n = 100_000;
        // Standard deviation of a normal distribution truncated at ±2: √(1 - 4φ(2)/(2Φ(2) - 1)).
        let cut = 0.879_625_662_f64;
        for (init, bound, deviation) in [
            (Init::linear(16), 0.25, 0.25 / 3f64.sqrt()),
            (Init::Normal(0.02), f64::INFINITY, 0.02),
            (Init::TruncatedNormal(0.02), 0.04, 0.02 * cut),
        ] {
            let mut builder = Builder::new(5);
            builder.param("x", &[n], init);
            let params = builder.finish();
            let values = params.trained.entries()[0].1.to_f64();
            let mean = values.iter().sum::<f64>() / n as f64;
            let variance = values.iter().map(|x| x * x).sum::<f64>() / n as f64 - mean * mean;
            assert!(values.iter().all(|x| x.abs() <= bound * (1.0 + 1e-6)), "{init:?}");
            assert!(mean.abs() < 5.0 * deviation / (n as f64).sqrt(), "{init:?}: mean {mean}");
            let error = (variance.sqrt() - deviation).abs();
            let tolerance = 5.0 * deviation / (2.0 * n as f64).sqrt();
            assert!(error < tolerance, "{init:?}: deviation {}", variance.sqrt());
        }
    }

    #[test]
    fn frozen_parameters_are_registered_apart_with_the_values_they_would_have_had() {
        let build = |patterns: &[String]| {
            let mut builder = Builder::new(7);
            builder.freeze(patterns);
            let id = builder.scope("encoder", |b| b.param("weight", &[3, 2], Init::Normal(1.0)));
            builder.param("head", &[2], Init::linear(2));
            (id, builder.finish())
        };
        let (id, trained) = build(&[]);
        assert_eq!((id, trained.frozen.entries().len()), (ParamId::Trained(0), 0));
        let (id, frozen) = build(&["encoder.*".into()]);
        assert_eq!(id, ParamId::Frozen(0));
        let values = |(name, tensor): &(String, Tensor)| (name.clone(), tensor.to_f64());
        let of = |params: &Params| params.entries().iter().map(values).collect::<Vec<_>>();
        assert_eq!([of(&frozen.frozen), of(&frozen.trained)].concat(), of(&trained.trained));
    }
}
