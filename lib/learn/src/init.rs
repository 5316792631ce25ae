//! Initial parameter values from a file (config section `init`), for fine-tuning, or for retraining from the weights of
//! another run with a fresh optimizer.

use crate::adapt::{is_adapter, peft};
use crate::foreign::{self, NameMap, Named, WeightFile};
use crate::params::{NF4_BITS, ParamSet, Storage, Value, grouped};
use crate::trained::{self, Weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tensor::memory;
use unix::{Context, Error, Result};

/// Where the initial parameter values come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InitFrom {
    /// Source of the weights: a safetensors or PyTorch file, a checkpoint directory, or a run directory, whose best
    /// checkpoint is used.
    pub from: PathBuf,
    /// Which weights of a checkpoint to use: `ema`, the moving average if the checkpoint has one, or `raw`, the trained
    /// parameters.
    #[serde(default)]
    pub weights: Weights,
    /// How the frozen parameters are stored. Null: as in the file, which may have been quantised by bitsandbytes. In `bf16`,
    /// weights that are in 4 bits in the file are dequantised once, not for each product: the same values for a model that
    /// computes in bf16, for more memory and less time.
    #[serde(default)]
    pub storage: Option<Storage>,
    /// How names in the file map to parameter names of the model.
    #[serde(default)]
    pub names: NameMap,
    /// A LoRA adapter of PEFT (adapter_model.safetensors), whose parameters replace those of `from`.
    #[serde(default)]
    pub adapter: Option<PathBuf>,
}

/// Source of the initial tensors.
enum Source {
    File(WeightFile),
    Checkpoint(Vec<(String, Value)>),
}

impl InitFrom {
    /// Assigns initial values to `params`: trained ones in f32, frozen ones as `storage` says. With `only_frozen`, only the
    /// frozen parameters are assigned, because the trained ones come from the checkpoint being resumed. LoRA parameters
    /// keep their values if the source has none.
    ///
    /// Errors: 66 when the file is missing; 65 when it is damaged, its tensors do not match the model, or a value is not
    /// finite; 78 when `storage` is set and no parameter is frozen.
    pub fn apply(&self, params: &mut ParamSet, only_frozen: bool) -> Result<()> {
        if params.frozen.entries().is_empty() {
            if self.storage.is_some() {
                return Err(Error::config(
                    "init.storage: no parameter is frozen; set model.lora, or leave the key out",
                ));
            }
            if only_frozen {
                return Ok(());
            }
        }
        let (found, adapter) = self.matched(params, only_frozen)?;
        let all = params.trained.shapes().chain(params.frozen.shapes());
        let names: Vec<String> = all.map(|(name, _)| name.to_string()).collect();
        let value = |number: usize, form| {
            let (source, path) = match &adapter {
                Some(own) if own.pairs[number].is_some() => (own, self.adapter.as_deref()),
                _ => (&found, None),
            };
            let value = source.value(number, form)?;
            match value.as_ref().is_none_or(Value::is_finite) {
                true => Ok(value),
                false => {
                    let path = path.unwrap_or(&self.from).display();
                    Err(Error::data(format!(
                        "{path}: {}: some values are not finite (NaN or infinity); the model is damaged, take another file",
                        names[number]
                    )))
                }
            }
        };
        let trained = params.trained.entries().len();
        for (number, tensor) in params.trained.tensors_mut().enumerate().filter(|_| !only_frozen) {
            if let Some(value) = value(number, None)? {
                *tensor = value.dense(tensor.dtype());
            }
        }
        let what = format!("{}: the frozen parameters", self.from.display());
        unix::memory::ensure(&what, Some(self.bytes_of_frozen(&found, params)))?;
        for i in 0..params.frozen.shapes().count() {
            let form = self.form(params, i);
            if let Some(value) = value(trained + i, form)? {
                params.frozen.set(i, value);
                // What it replaces, and other forms of it, have sizes that do not come again.
                memory::release();
            }
        }
        Ok(())
    }

    /// Opens the source and the adapter, and finds their tensors of each parameter.
    fn matched(
        &self,
        params: &ParamSet,
        only_frozen: bool,
    ) -> Result<(MatchedSource, Option<MatchedSource>)> {
        let source = match self.from.is_dir() {
            true => {
                let tensors = trained::load_weights(&self.from, self.weights)?;
                let bad = |what| Error::data(format!("{}: {what}", self.from.display()));
                Source::Checkpoint(grouped(&tensors).map_err(bad)?)
            }
            false => Source::File(foreign::open(&self.from)?),
        };
        let given: Vec<Named> = match &source {
            Source::File(file) => {
                file.tensors().iter().map(|entry| (&*entry.name, &*entry.shape)).collect()
            }
            Source::Checkpoint(tensors) => {
                tensors.iter().map(|(name, value)| (&**name, value.shape())).collect()
            }
        };
        let wanted: Vec<Named> = params.trained.shapes().chain(params.frozen.shapes()).collect();
        let mut names = self.names.clone();
        if !given.iter().any(|(name, _)| is_adapter(name)) {
            names.keep.extend(wanted.iter().map(|w| w.0.to_string()).filter(|n| is_adapter(n)));
        }
        if only_frozen {
            names.keep.extend(params.trained.entries().iter().map(|(name, _)| name.clone()));
        }
        // An adapter contains only trained parameters, so it is skipped with `only_frozen`.
        let adapter = self.adapter.as_deref().filter(|_| !only_frozen);
        let adapter = adapter.map(|path| MatchedSource::adapter(path, &wanted)).transpose()?;
        if let Some(adapter) = &adapter {
            let own = wanted.iter().zip(&adapter.pairs).filter(|(_, at)| at.is_some());
            names.keep.extend(own.map(|((name, _), _)| name.to_string()));
        }
        let pairs = names.pair(&self.from, &given, &wanted)?;
        Ok((MatchedSource { source, pairs }, adapter))
    }

    /// Checks that the source has every parameter in its shape, and describes it. Values are not read. Errors: as
    /// [`Self::apply`].
    pub(crate) fn check(&self, params: &ParamSet) -> Result<String> {
        let (found, _) = self.matched(params, false)?;
        let taken: Vec<usize> =
            (0..found.pairs.len()).filter(|i| found.pairs[*i].is_some()).collect();
        let in_4_bits = taken.iter().filter(|i| found.bits(**i) == NF4_BITS).count();
        let from = self.from.display();
        let text = format!("{} of {} parameters from {from}", taken.len(), found.pairs.len());
        Ok(match in_4_bits {
            0 => text,
            count => format!("{text}, {count} of them in 4 bits"),
        })
    }

    /// Bytes that the frozen parameters take once they are assigned. Errors: as [`Self::apply`].
    pub(crate) fn frozen_bytes(&self, params: &ParamSet) -> Result<u64> {
        match params.frozen.entries().is_empty() {
            true => Ok(0),
            false => Ok(self.bytes_of_frozen(&self.matched(params, true)?.0, params)),
        }
    }

    fn bytes_of_frozen(&self, found: &MatchedSource, params: &ParamSet) -> u64 {
        let trained = params.trained.entries().len();
        let bytes = params.frozen.shapes().enumerate().map(|(i, (_, shape))| {
            let own = || found.bits(trained + i);
            self.form(params, i).map_or_else(own, Storage::bits) / 8.0
                * shape.iter().product::<usize>() as f64
        });
        bytes.sum::<f64>() as u64
    }

    /// The form that `storage` gives the frozen parameter with index `number`; None for its own.
    fn form(&self, params: &ParamSet, number: usize) -> Option<Storage> {
        let shape = params.frozen.shapes().nth(number)?.1;
        self.storage?.applied(shape, params.frozen.is_linear(number))
    }
}

/// A source with, for each model parameter, the index of its tensor.
struct MatchedSource {
    source: Source,
    pairs: Vec<Option<usize>>,
}

impl MatchedSource {
    /// Matches the tensors of a PEFT adapter with the parameters `wanted`, of which it has only some.
    fn adapter(path: &Path, wanted: &[Named]) -> Result<Self> {
        let file = foreign::open(path)?;
        let own = |name: &str| {
            let own =
                |entry: &foreign::TensorEntry| entry.name.strip_prefix(peft::PREFIX) == Some(name);
            file.tensors().iter().any(own)
        };
        let others = wanted.iter().filter(|(name, _)| !own(name));
        let names = NameMap {
            map: vec![format!("{}*=*", peft::PREFIX)],
            keep: others.map(|(name, _)| name.to_string()).collect(),
            ..NameMap::default()
        };
        let given: Vec<Named> =
            file.tensors().iter().map(|entry| (&*entry.name, &*entry.shape)).collect();
        let pairs = names.pair(path, &given, wanted)?;
        Ok(Self { source: Source::File(file), pairs })
    }

    /// Bits of an element of the parameter with index `number`, in its own form.
    fn bits(&self, number: usize) -> f64 {
        let Some(at) = self.pairs[number] else { return 32.0 };
        match &self.source {
            Source::File(file) => file.tensors()[at].bits(),
            Source::Checkpoint(tensors) => match &tensors[at].1 {
                Value::Dense(tensor) => 8.0 * tensor.dtype().bytes() as f64,
                Value::Nf4(_) => NF4_BITS,
            },
        }
    }

    /// Reads the value of the parameter with index `number`, in its own form or another one; None if the source has none.
    fn value(&self, number: usize, form: Option<Storage>) -> Result<Option<Value>> {
        let Some(at) = self.pairs[number] else { return Ok(None) };
        let value = match (&self.source, form) {
            (Source::File(file), None) => file.read_stored(&file.tensors()[at]),
            (Source::File(file), Some(form)) => file.read_as(&file.tensors()[at], form),
            (Source::Checkpoint(tensors), None) => Ok(tensors[at].1.clone()),
            (Source::Checkpoint(tensors), Some(form)) => {
                let (name, value) = &tensors[at];
                value.clone().stored_as(form).context(|| name)
            }
        };
        value.map(Some)
    }
}
