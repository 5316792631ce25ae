//! Trained models, restored from a checkpoint.

use crate::checkpoint::{self, Loaded};
use crate::config::Precision;
use crate::dependency::Dependencies;
use crate::forward::Forward;
use crate::init::InitFrom;
use crate::params::{Builder, FROZEN, ParamSet};
use crate::task::Buffers;
use crate::train::numerics;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Path, PathBuf};
use tensor::product::bf16::Rounding;
use tensor::{Device, Dtype, Element, Tape, Tensor, with_element};
use unix::{Error, Exit, Result, warn};

/// Which weights of a checkpoint to use.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    JsonSchema,
    clap::ValueEnum,
    strum::Display,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Weights {
    /// The moving average if the checkpoint has one, else the trained parameters.
    #[default]
    Ema,
    /// The trained parameters.
    Raw,
}

/// Where a trained model computes, and how.
#[derive(Clone, Copy, Debug)]
pub struct ComputeMode {
    /// The device.
    pub device: Device,
    /// Whether matrix products round their operands to bf16: as with `training.amp`, by computing in bf16 inside the model on
    /// GPUs.
    pub amp: bool,
}

impl From<Device> for ComputeMode {
    /// In f32.
    fn from(device: Device) -> Self {
        Self { device, amp: false }
    }
}

impl ComputeMode {
    /// Whether products round their operands in f32, as `amp` means on the CPU.
    pub fn rounds(self) -> bool {
        self.amp && self.device == Device::Cpu
    }

    /// Runs `body` as a forward run without gradients of parameters on the device.
    pub fn run<R>(self, params: &ParamSet, body: impl FnOnce(&Forward) -> Result<R>) -> Result<R> {
        let _rounding = self.rounds().then(Rounding::begin);
        let tape = Tape::without_gradients();
        let forward = Forward::evaluation(&tape, params);
        match numerics::dtype(self.amp, Precision::Bf16, self.device) {
            Dtype::F32 => body(&forward),
            dtype => body(&forward.computing_in(dtype)?),
        }
    }
}

/// Origin of the weights of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Origin {
    /// Path of the checkpoint.
    pub checkpoint: PathBuf,
    /// Updates completed when the checkpoint was saved.
    pub update: u64,
    /// Whether the moving average or the trained parameters were used.
    pub weights: Weights,
    /// BLAKE3 over the hashes of the checkpoint files.
    pub blake3: String,
    /// Hash of the training data. For fields it is the hash of the split manifest; several hashes are joined with `+`.
    pub data: String,
}

impl Origin {
    /// Whether the training data included the split manifest with this hash.
    pub fn was_trained_on(&self, manifest_hash: &str) -> bool {
        self.data.split('+').any(|hash| hash == manifest_hash)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} weights)", self.checkpoint.display(), self.weights)
    }
}

/// The contents of a checkpoint, from which a trained model is restored.
#[derive(Clone, Debug)]
pub struct Parts {
    /// Name of the task.
    pub task: String,
    /// Origin of the weights.
    pub origin: Origin,
    /// The resolved configuration of the training run.
    pub config: serde_json::Value,
    /// The trained parameters by name.
    pub weights: Vec<(String, Tensor)>,
    /// The frozen parameters, if the checkpoint stores them.
    pub frozen: Option<Vec<(String, Tensor)>>,
    /// Buffers by name.
    pub buffers: Buffers,
    /// Trained models that the model depends on.
    pub dependencies: Dependencies,
}

impl Parts {
    /// Reads a checkpoint. For a run directory it reads the best checkpoint, or the newest good one if there is no best
    /// checkpoint or it is damaged.
    ///
    /// Errors: 66 when there is no checkpoint, 65 when it is damaged.
    pub fn read(path: &Path, weights: Weights) -> Result<Self> {
        let found = find(path)?;
        let file = found.path().to_path_buf();
        let hashes: Vec<&str> = found.manifest.files.iter().map(|f| f.blake3.as_str()).collect();
        let need = |name: &str| {
            let missing = || Error::data(format!("{} has no {name}.safetensors", file.display()));
            found.tensors(name).ok_or_else(missing)
        };
        // The checkpoint is at DIRECTORY/ckpt/step-N, so this is the current run directory.
        let run = file.parent().and_then(Path::parent).unwrap_or(&file);
        let dependencies = found.manifest.dependencies.clone().into_iter();
        let average = match weights {
            Weights::Ema => found.tensors("ema"),
            Weights::Raw => None,
        };
        let used = if average.is_some() { Weights::Ema } else { Weights::Raw };
        Ok(Self {
            weights: average.map_or_else(|| need("model"), Ok)?,
            frozen: found.tensors("frozen"),
            buffers: need("buffers")?,
            config: found.manifest.config.clone(),
            dependencies: dependencies.map(|(n, found)| (n, found.found_from(run))).collect(),
            task: found.manifest.task.clone(),
            origin: Origin {
                checkpoint: file,
                update: found.manifest.update,
                weights: used,
                blake3: blake3::hash(hashes.concat().as_bytes()).to_hex().to_string(),
                data: found.manifest.data_hash.clone(),
            },
        })
    }

    /// Deserialises one section of the configuration. Errors: 65.
    pub fn section<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        serde_json::from_value(self.config[name].clone())
            .map_err(|cause| Error::data(format!("its configuration, {name}: {cause}")))
    }

    /// Returns the values of a buffer. Errors: 65 when there is no buffer with this name.
    pub fn buffer(&self, name: &str) -> Result<Vec<f64>> {
        let found = self.buffers.iter().find(|(own, _)| own == name);
        let (_, values) =
            found.ok_or_else(|| Error::data(format!("the checkpoint has no buffer {name}")))?;
        Ok(values.to_f64())
    }

    /// Assigns the frozen parameters: from the checkpoint, or from the file of `init` when the checkpoint stores only
    /// their hash.
    fn assign_frozen(&self, params: &mut ParamSet) -> Result<()> {
        if params.frozen.entries().is_empty() {
            return Ok(());
        }
        if let Some(frozen) = &self.frozen {
            return params.frozen.assign(frozen);
        }
        let init: Option<InitFrom> = self.section("init")?;
        init.iter().try_for_each(|init| init.apply(params, true))?;
        let (is, was) = (params.frozen.hash()?, self.dependencies.get(FROZEN));
        if was.is_none_or(|was| was.hash != is) {
            return Err(Error::config(format!(
                "{}: the frozen parameters from init.from have changed: hash {is}, was {}",
                self.origin.checkpoint.display(),
                was.map_or("missing", |was| &was.hash)
            )));
        }
        Ok(())
    }

    /// Builds the model with `build` and loads these weights onto its device. Errors: 65 when model and weights do not
    /// match; 1 when a weight is not finite.
    pub fn restore<M>(
        &self,
        mode: impl Into<ComputeMode>,
        build: impl FnOnce(&mut Builder) -> Result<M>,
    ) -> Result<TrainedModel<M>> {
        let mode = mode.into();
        // Only frozen parameters that the source of the others lacks are drawn again.
        let init: Option<InitFrom> = self.section("init")?;
        let kept = init.map(|init| init.names.keep).unwrap_or_default();
        let mut builder = Builder::replaced(self.section("seed")?, kept);
        let model = build(&mut builder)?;
        let mut params = builder.finish();
        params.trained.assign(&self.weights)?;
        self.assign_frozen(&mut params)?;
        require_finite(&params)?;
        let params = params.to_device(mode.device)?;
        Ok(TrainedModel { origin: self.origin.clone(), model, params, mode })
    }
}

/// Checks that all parameters are finite, because a model with NaN or infinite weights cannot predict. Errors: 1.
fn require_finite(params: &ParamSet) -> Result<()> {
    for (name, tensor) in params.trained.entries().iter().chain(params.frozen.entries()) {
        let (host, all) = (tensor.to_host()?, tensor.len());
        let bad = with_element!(host.dtype(), T => {
            host.read::<T>().iter().filter(|value| !value.f64().is_finite()).count()
        });
        if bad > 0 {
            return Err(Error::new(
                Exit::Failure,
                format!(
                    "{bad} of {all} values of the weight {name} are not finite, so the model predicts nothing; use an \
                     earlier checkpoint (ckpt list RUN), or train again with a lower learning rate"
                ),
            ));
        }
    }
    Ok(())
}

/// A model with its trained parameters.
#[derive(Clone, Debug)]
pub struct TrainedModel<M> {
    /// Origin of the weights.
    pub origin: Origin,
    /// The model.
    pub model: M,
    /// The parameters.
    pub params: ParamSet,
    /// How it computes.
    pub mode: ComputeMode,
}

impl<M> TrainedModel<M> {
    /// Runs `body` as a forward run without gradients.
    pub fn run<R>(&self, body: impl FnOnce(&Forward, &M) -> Result<R>) -> Result<R> {
        self.mode.run(&self.params, |forward| body(forward, &self.model))
    }
}

/// Loads all parameters of a checkpoint: the trained ones, and the frozen ones if stored. For a run directory, uses the
/// best checkpoint. Errors: 66 when there is no checkpoint, 65 when it is damaged.
pub fn load_weights(path: &Path, weights: Weights) -> Result<Vec<(String, Tensor)>> {
    let Parts { weights, frozen, .. } = Parts::read(path, weights)?;
    Ok(weights.into_iter().chain(frozen.unwrap_or_default()).collect())
}

/// Resolves `path` to a checkpoint: the path itself, or the best checkpoint of a run directory.
fn find(path: &Path) -> Result<Loaded> {
    let checkpoints = path.join("ckpt");
    if !checkpoints.is_dir() {
        return checkpoint::load(path);
    }
    // The link `best` is not used: it may be missing from a copy of the run, or point elsewhere.
    if let Some(best) = checkpoint::best(&checkpoints)? {
        match checkpoint::load(&best) {
            Ok(found) => return Ok(found),
            Err(error) => warn!("{error}; using the newest good checkpoint"),
        }
    }
    checkpoint::load_newest(&checkpoints)?
        .ok_or_else(|| Error::open(path, "the run has no checkpoint yet"))
}
