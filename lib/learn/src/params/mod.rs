//! The parameters of a model: named tensors in a fixed order, trained or frozen. A model is plain data and holds only
//! [`ParamId`]s; each [`Forward`](crate::forward::Forward) supplies the values, so the same code runs with the trained
//! weights, their moving average or an f64 copy.

mod builder;
mod init;
mod stored;

pub use builder::Builder;
pub use init::Init;
pub(crate) use stored::NF4_BITS;
pub use stored::{Quantised, Storage, Value};
pub(crate) use stored::{check, grouped, groups, layout};

use crate::adapt::is_adapter;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use tensor::nf4::Nf4;
use tensor::ops::cast;
use tensor::{Device, Dtype, Tensor};
use unix::space::human_bytes;
use unix::{Error, Result};

/// Name under which a checkpoint's dependencies list the frozen parameters.
pub(crate) const FROZEN: &str = "frozen parameters";

/// Identifies a parameter of a [`ParamSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamId {
    /// Index into the trained parameters.
    Trained(usize),
    /// Index into the frozen parameters.
    Frozen(usize),
}

/// The parameters of a model. Frozen parameters have no gradient, optimizer state or moving average, and are stored as in
/// the file that they come from: in any floating-point dtype or, the weights of linear layers, in 4 bits. A checkpoint
/// stores only their hash, unless `checkpoint.frozen` is set.
#[derive(Clone, Debug, Default)]
pub struct ParamSet {
    /// Trained parameters, in f32.
    pub trained: Params,
    /// Frozen parameters, in any form.
    pub frozen: Params,
}

impl ParamSet {
    /// Total number of elements, trained and frozen.
    pub fn count(&self) -> usize {
        self.trained.count() + self.frozen.count()
    }

    /// Describes the frozen parameters and the layers adapted by LoRA; None if there are none.
    pub(crate) fn summary(&self) -> Option<String> {
        let Self { trained, frozen } = self;
        if frozen.entries.is_empty() {
            return None;
        }
        let mut forms: BTreeMap<String, usize> = BTreeMap::new();
        for (i, (_, shape)) in frozen.shapes().enumerate() {
            let form = match frozen.quantised.contains_key(&i) {
                true => "4 bits".to_string(),
                false => frozen.entries[i].1.dtype().to_string(),
            };
            *forms.entry(form).or_default() += shape.iter().product::<usize>();
        }
        let forms: Vec<String> = forms.iter().map(|(form, n)| format!("{n} in {form}")).collect();
        let adapters = trained.entries.iter().filter(|(name, _)| is_adapter(name));
        let (mut layers, mut elements) = (0, 0);
        for (_, tensor) in adapters {
            layers += 1;
            elements += tensor.len();
        }
        let lora = match layers {
            0 => String::new(),
            // A and B.
            _ => format!("; LoRA of {} layers with {elements} parameters", layers / 2),
        };
        let bytes = human_bytes(frozen.bytes() as u64);
        Some(format!("frozen: {} parameters, {bytes} ({}){lora}", frozen.count(), forms.join(", ")))
    }

    /// Stores f32 matrices on the host in bf16 if it represents them exactly, as it does those of a published model, for
    /// evaluation: layers give the same bits from half the memory. Without a parameter that stays in f32, and says by that
    /// in which dtype the model computes, trained ones are left as they are. If products round their operands to bf16
    /// (`rounding`), the weights of linear layers are stored so too, whatever their values.
    pub fn compact(&mut self, rounding: bool) {
        if self.trained.tensors().any(|tensor| tensor.shape().len() != 2) {
            self.trained.compact(rounding);
        }
        self.frozen.compact(rounding);
    }

    /// Copies the parameters to `device`.
    pub fn to_device(&self, device: Device) -> Result<Self> {
        let (trained, frozen) = (self.trained.to_device(device)?, self.frozen.to_device(device)?);
        Ok(Self { trained, frozen })
    }
}

impl From<Params> for ParamSet {
    fn from(trained: Params) -> Self {
        Self { trained, frozen: Params::default() }
    }
}

/// Named tensors in registration order. A quantised weight has several: its codes have its name, and the others follow all
/// parameters, with the names that bitsandbytes gives them.
#[derive(Clone, Debug, Default)]
pub struct Params {
    entries: Vec<(String, Tensor)>,
    /// Depth of each parameter ([`Builder::at_depth`]).
    depths: Vec<u32>,
    /// Whether an assigned value keeps its dtype.
    keeps_dtype: bool,
    /// The parameters that are weights of linear layers, and may be quantised.
    linear: BTreeSet<usize>,
    /// Layout of each quantised weight, and the positions of its other tensors.
    quantised: BTreeMap<usize, (Nf4, Vec<usize>)>,
    /// Copies in the compute dtype, by position ([`Params::prepare`]).
    prepared: BTreeMap<usize, Tensor>,
    /// The hash, once it was computed, of parameters that do not change.
    known_hash: OnceLock<String>,
}

impl Params {
    /// Names and values, in registration order.
    pub fn entries(&self) -> &[(String, Tensor)] {
        &self.entries
    }

    /// Depth of each parameter, in registration order ([`Builder::at_depth`]).
    pub fn depths(&self) -> &[u32] {
        &self.depths
    }

    /// Values, in registration order.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.entries.iter().map(|(_, t)| t)
    }

    /// Mutable values, in registration order.
    pub fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.known_hash = OnceLock::new();
        self.entries.iter_mut().map(|(_, t)| t)
    }

    /// Number of parameters; further entries belong to quantised ones.
    fn len(&self) -> usize {
        self.depths.len()
    }

    /// Name and shape of each parameter.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.entries[..self.len()].iter().enumerate().map(|(i, (name, tensor))| {
            let quantised = self.quantised.get(&i);
            (name.as_str(), quantised.map_or(tensor.shape(), |(layout, _)| &layout.shape))
        })
    }

    /// Total number of elements of the parameters.
    pub fn count(&self) -> usize {
        self.shapes().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Total size of all values in bytes.
    pub fn bytes(&self) -> usize {
        self.tensors().map(Tensor::bytes).sum()
    }

    /// Converts the parameters to a different dtype, except quantised ones.
    pub fn to_dtype(&self, dtype: Dtype) -> Params {
        let convert = |(i, (name, tensor)): (usize, &(String, Tensor))| {
            let is_dense = i < self.len() && !self.quantised.contains_key(&i);
            (name.clone(), if is_dense { tensor.to_dtype(dtype) } else { tensor.clone() })
        };
        let entries = self.entries.iter().enumerate().map(convert).collect();
        Params { entries, prepared: BTreeMap::new(), known_hash: OnceLock::new(), ..self.clone() }
    }

    /// Implements [`ParamSet::compact`], but for LoRA, which is small and never a [`Weight`](crate::forward::Weight).
    fn compact(&mut self, rounding: bool) {
        self.known_hash = OnceLock::new();
        for (i, (name, tensor)) in self.entries.iter_mut().enumerate() {
            let is_matrix = tensor.dtype() == Dtype::F32 && tensor.shape().len() == 2;
            if !is_matrix || tensor.device() != Device::Cpu || is_adapter(name) {
                continue;
            }
            if rounding && self.linear.contains(&i) || is_bf16(tensor) {
                *tensor = tensor.to_dtype(Dtype::Bf16);
            }
        }
    }

    /// Parameters of the same shapes, with values of `dtype` that are zero and take no memory: for examining a model
    /// whose values do not matter.
    pub(crate) fn untouched(&self, dtype: Dtype) -> Params {
        let shape =
            |(name, shape): (&str, &[usize])| (name.into(), Tensor::untouched(shape, dtype));
        let entries = self.shapes().map(shape).collect();
        let (depths, linear) = (self.depths.clone(), self.linear.clone());
        Params { entries, depths, linear, ..Params::default() }
    }

    /// The device that holds the parameters.
    pub fn device(&self) -> Device {
        self.tensors().next().map_or(Device::Cpu, Tensor::device)
    }

    /// Copies the parameters to `device`.
    pub fn to_device(&self, device: Device) -> Result<Params> {
        let entries = to_device(&self.entries, device)?;
        Ok(Params { entries, prepared: BTreeMap::new(), ..self.clone() })
    }

    /// First 64 bits of the hash of all values, in hexadecimal. Computed once for frozen parameters.
    pub fn hash(&self) -> Result<String> {
        if let Some(known) = self.known_hash.get() {
            return Ok(known.clone());
        }
        let of = |tensor: &Tensor| Ok(blake3::hash(tensor.to_host()?.as_bytes()).to_hex());
        let hashes = self.tensors().map(of).collect::<Result<Vec<_>>>()?;
        let hash = hash_of(hashes.iter().map(|hash| hash.as_str()));
        if self.keeps_dtype {
            let _ = self.known_hash.set(hash.clone());
        }
        Ok(hash)
    }

    /// The layout and the tensors of a quantised weight; None for a dense one.
    pub(crate) fn quantised(&self, i: usize) -> Option<(Nf4, Vec<&Tensor>)> {
        let (layout, rest) = self.quantised.get(&i)?;
        let pieces = std::iter::once(&i).chain(rest).map(|at| &self.entries[*at].1);
        Some((*layout, pieces.take(layout.pieces().len()).collect()))
    }

    /// Whether a parameter is the weight of a linear layer.
    pub(crate) fn is_linear(&self, i: usize) -> bool {
        self.linear.contains(&i)
    }

    /// Number of elements of the largest weight of a linear layer.
    pub(crate) fn largest_linear(&self) -> usize {
        let linear = self.shapes().enumerate().filter(|(i, _)| self.is_linear(*i));
        linear.map(|(_, (_, shape))| shape.iter().product()).max().unwrap_or(0)
    }

    /// Replaces a frozen parameter by a value of the same shape, in its own form. A quantised value of anything but the
    /// weight of a linear layer is dequantised.
    pub fn set(&mut self, i: usize, value: Value) {
        self.known_hash = OnceLock::new();
        self.prepared.remove(&i);
        self.forget_codes(i);
        match value {
            Value::Nf4(weight) if self.linear.contains(&i) => {
                let name = self.entries[i].0.clone();
                let layout = weight.layout;
                let mut entries = weight.entries(&name).into_iter();
                self.entries[i] = entries.next().unwrap_or_else(|| self.entries[i].clone());
                let rest = (self.entries.len()..).zip(entries);
                let rest: Vec<usize> = rest
                    .map(|(at, entry)| {
                        self.entries.push(entry);
                        at
                    })
                    .collect();
                self.quantised.insert(i, (layout, rest));
            }
            other => {
                let dtype = other.dtype();
                self.entries[i].1 = other.dense(dtype);
            }
        }
    }

    /// Removes the tensors of a quantised weight but the first.
    fn forget_codes(&mut self, i: usize) {
        let (_, mut old) = self.quantised.remove(&i).unzip();
        for at in old.iter_mut().flatten().rev() {
            self.entries.remove(*at);
            let others = self.quantised.values_mut().flat_map(|(_, rest)| rest);
            others.filter(|other| **other > *at).for_each(|other| *other -= 1);
        }
    }

    /// All parameters in f32.
    ///
    /// # Panics
    /// If they are not on the host.
    pub fn dense(&self) -> Vec<(String, Tensor)> {
        let dense = |i: usize| {
            let (name, tensor) = &self.entries[i];
            let codes = self.quantised(i);
            let found = codes.map(|(layout, pieces)| layout.dequantised(&pieces, Dtype::F32));
            (name.clone(), found.unwrap_or_else(|| tensor.to_dtype(Dtype::F32)))
        };
        (0..self.len()).map(dense).collect()
    }

    /// Makes copies in `dtype`, in which the model computes, of parameters that do not change: vectors, and whatever needs
    /// less memory in it. Others are converted where they are used.
    pub fn prepare(&mut self, dtype: Dtype) {
        for i in 0..self.len() {
            let tensor = &self.entries[i].1;
            let (own, is_small) = (tensor.dtype(), tensor.shape().len() < 2);
            if own.is_float() && own != dtype && (is_small || dtype.bytes() < own.bytes()) {
                let copy = match tensor.device() {
                    Device::Cpu => tensor.to_dtype(dtype),
                    device => {
                        let mut copy = Tensor::empty_on(device, tensor.shape(), dtype);
                        cast::convert(tensor, &mut copy);
                        copy
                    }
                };
                self.prepared.insert(i, copy);
            }
        }
    }

    /// The copies that [`Self::prepare`] made, by position.
    pub(crate) fn prepared(&self) -> &BTreeMap<usize, Tensor> {
        &self.prepared
    }

    /// Assigns `values`, which must have the same names and shapes, in any order.
    pub fn assign(&mut self, values: &[(String, Tensor)]) -> Result<()> {
        self.assign_scope("", values)
    }

    /// Like [`Params::assign`], but only for parameters whose names start with `prefix`.
    pub fn assign_scope(&mut self, prefix: &str, values: &[(String, Tensor)]) -> Result<()> {
        let mut values: BTreeMap<String, Value> =
            stored::grouped(values).map_err(Error::data)?.into_iter().collect();
        for i in 0..self.len() {
            let (name, old) = self.entries[i].clone();
            if !name.starts_with(prefix) {
                continue;
            }
            let Some(value) = values.remove(&name) else {
                return Err(Error::data(format!("the checkpoint has no parameter {name}")));
            };
            let is = self.quantised.get(&i).map_or(old.shape(), |(layout, _)| &layout.shape);
            if value.shape() != is {
                return Err(Error::data(format!(
                    "parameter {name} is {:?} in the checkpoint and {is:?} in the model: \
                     is this the configuration it was trained with?",
                    value.shape(),
                )));
            }
            if !value.dtype().is_float() {
                return Err(Error::data(format!(
                    "parameter {name} has the type {} in the checkpoint: not a floating-point number",
                    value.dtype()
                )));
            }
            if self.keeps_dtype {
                let device = old.device();
                self.set(i, value.to_device(device)?);
            } else {
                let value = value.dense(old.dtype());
                self.entries[i].1 = value.to_device(old.device())?;
            }
        }
        match values.into_keys().next() {
            Some(name) => Err(Error::data(format!(
                "the checkpoint has a parameter {name} that the model lacks"
            ))),
            None => Ok(()),
        }
    }
}

/// Returns the first 64 bits, in hexadecimal, of the BLAKE3 hash of the concatenated hexadecimal BLAKE3 hashes of all
/// parameters, in order. The manifest of a checkpoint contains the parameter hashes.
pub fn hash_of<'a>(parameters: impl Iterator<Item = &'a str>) -> String {
    let mut hasher = blake3::Hasher::new();
    parameters.for_each(|hash| {
        hasher.update(hash.as_bytes());
    });
    hasher.finalize().to_hex()[..16].to_string()
}

/// Whether bf16 represents all elements of an f32 tensor on the host.
fn is_bf16(tensor: &Tensor) -> bool {
    tensor.read::<f32>().iter().all(|x| x.to_bits() & 0xffff == 0)
}

/// Copies named tensors to `device`.
pub fn to_device(tensors: &[(String, Tensor)], device: Device) -> Result<Vec<(String, Tensor)>> {
    tensors.iter().map(|(name, t)| Ok((name.clone(), t.to_device(device)?))).collect()
}
