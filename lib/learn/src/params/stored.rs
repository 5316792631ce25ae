//! The forms in which frozen parameters are stored, and the tensors by which bitsandbytes and transformers store a weight in
//! 4 bits: `NAME`, the codes; `NAME.absmax`, the scales; `NAME.quant_map`, the numbers of the codes; with double
//! quantisation `NAME.nested_absmax` and `NAME.nested_quant_map`; and `NAME.quant_state.bitsandbytes__nf4`, the bytes of a
//! JSON object with everything else.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tensor::nf4::{self, BLOCK, NESTED_BLOCK, Nf4};
use tensor::{Device, Dtype, Element, Tensor, with_element};
use unix::text::quote;
use unix::{Error, Result};

/// Bits of an element in 4 bits, with the scales of its block.
pub(crate) const NF4_BITS: f64 = 4.0 + 8.0 / BLOCK as f64 + 32.0 / (BLOCK * NESTED_BLOCK) as f64;
/// What follows the name of a quantised weight in the names of its tensors, in the order of [`Nf4::pieces`].
const ENDINGS: [&str; 5] = ["", ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"];
/// The same for the description.
const STATE: &str = ".quant_state.bitsandbytes__nf4";
/// The same for any kind of 4-bit code.
const STATES: &str = ".quant_state.";

/// How the frozen parameters are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Storage {
    /// Weights of linear layers in 4 bits, with scales in 8 bits; other matrices in bf16, vectors as in the file.
    Nf4,
    /// Matrices in bf16, vectors as in the file.
    Bf16,
}

/// The value of a parameter.
#[derive(Clone, Debug)]
pub enum Value {
    /// A tensor of its shape.
    Dense(Tensor),
    /// A matrix in 4 bits.
    Nf4(Quantised),
}

/// A matrix in 4 bits.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// Its shape and dtype.
    pub layout: Nf4,
    /// The tensors [`Nf4::pieces`].
    pieces: Vec<Tensor>,
    /// The description, as bytes.
    state: Tensor,
}

/// The description of a quantised weight.
#[derive(Serialize, Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    dtype: String,
    shape: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nested_blocksize: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nested_dtype: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nested_offset: Option<f64>,
}

/// PyTorch's names of dtypes.
const DTYPES: [(&str, Dtype); 3] =
    [("bfloat16", Dtype::Bf16), ("float16", Dtype::F16), ("float32", Dtype::F32)];

impl Storage {
    /// The form that a parameter gets; None for those that stay as they are.
    pub(crate) fn applied(self, shape: &[usize], is_linear: bool) -> Option<Self> {
        match self {
            _ if shape.len() < 2 => None,
            Self::Nf4 if is_linear => Some(Self::Nf4),
            Self::Nf4 | Self::Bf16 => Some(Self::Bf16),
        }
    }

    /// Bits of an element.
    pub(crate) fn bits(self) -> f64 {
        match self {
            Self::Nf4 => NF4_BITS,
            Self::Bf16 => 16.0,
        }
    }
}

fn is_finite(tensor: &Tensor) -> bool {
    with_element!(tensor.dtype(), T => tensor.read::<T>().iter().all(|x| x.f64().is_finite()))
}

impl Value {
    /// The shape of the parameter.
    pub fn shape(&self) -> &[usize] {
        match self {
            Self::Dense(tensor) => tensor.shape(),
            Self::Nf4(weight) => &weight.layout.shape,
        }
    }

    /// The dtype of the parameter's elements.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::Dense(tensor) => tensor.dtype(),
            Self::Nf4(weight) => weight.layout.dtype,
        }
    }

    /// Returns the value as one tensor, on the host.
    pub fn dense(self, dtype: Dtype) -> Tensor {
        match self {
            Self::Dense(tensor) => tensor.to_dtype(dtype),
            Self::Nf4(Quantised { layout, pieces, .. }) => {
                layout.dequantised(&pieces.iter().collect::<Vec<_>>(), dtype)
            }
        }
    }

    /// Returns a matrix in another form. Errors: it is to be quantised and not finite.
    pub fn stored_as(self, form: Storage) -> Result<Self> {
        match (self, form) {
            (Self::Nf4(weight), Storage::Nf4) => Ok(Self::Nf4(weight)),
            (Self::Nf4(weight), Storage::Bf16) => {
                Ok(Self::Dense(Self::Nf4(weight).dense(Dtype::Bf16)))
            }
            (Self::Dense(tensor), form) => {
                let shape = tensor.shape().to_vec();
                Self::from_parts(&shape, tensor.dtype(), form, [Ok(tensor)])
            }
        }
    }

    /// Joins the consecutive parts of a matrix, in row-major order, in another form, without keeping them. Errors: those of
    /// a part; the matrix is to be quantised and not finite.
    pub fn from_parts(
        shape: &[usize],
        dtype: Dtype,
        form: Storage,
        parts: impl IntoIterator<Item = Result<Tensor>>,
    ) -> Result<Self> {
        if let (Storage::Nf4, &[outputs, inputs]) = (form, shape) {
            return Quantised::of([outputs, inputs], dtype, parts).map(Self::Nf4);
        }
        let mut dense = Tensor::empty(shape, Dtype::Bf16);
        let mut rest = dense.as_bytes_mut();
        for part in parts {
            let part = part?.to_dtype(Dtype::Bf16);
            let (own, others) = rest.split_at_mut(part.bytes());
            own.copy_from_slice(part.as_bytes());
            rest = others;
        }
        Ok(Self::Dense(dense))
    }

    /// Whether no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        match self {
            Self::Dense(tensor) => is_finite(tensor),
            Self::Nf4(_) => true, // its scales are checked
        }
    }

    /// Copies the value to a device.
    pub(super) fn to_device(&self, device: Device) -> unix::Result<Self> {
        Ok(match self {
            Self::Dense(tensor) => Self::Dense(tensor.to_device(device)?),
            Self::Nf4(Quantised { layout, pieces, state }) => Self::Nf4(Quantised {
                layout: *layout,
                pieces: pieces.iter().map(|p| p.to_device(device)).collect::<unix::Result<_>>()?,
                state: state.to_device(device)?,
            }),
        })
    }
}

impl Quantised {
    /// Quantises a matrix that comes in parts, as [`nf4::quantise_parts`], and the scales of its blocks too. Errors: those of
    /// a part, or some values are not finite.
    pub fn of(
        shape: [usize; 2],
        dtype: Dtype,
        parts: impl IntoIterator<Item = Result<Tensor>>,
    ) -> Result<Self> {
        let parts = parts.into_iter().map(|part| match part {
            Ok(part) if !is_finite(&part) => {
                Err(Error::data("some values are not finite, which 4 bits cannot express"))
            }
            part => part,
        });
        let (layout, pieces) = nf4::quantise_parts(shape, dtype, true, parts)?;
        let dtype = DTYPES.iter().find(|(_, dtype)| *dtype == layout.dtype);
        let state = State {
            quant_type: "nf4".into(),
            blocksize: BLOCK,
            dtype: dtype.map_or("float32", |(name, _)| name).into(),
            shape: layout.shape.to_vec(),
            nested_blocksize: layout.offset.map(|_| NESTED_BLOCK),
            nested_dtype: layout.offset.map(|_| "float32".into()),
            nested_offset: layout.offset.map(f64::from),
        };
        let state = serde_json::json!(state).to_string();
        Ok(Self { layout, pieces, state: Tensor::from_slice(state.as_bytes(), &[state.len()]) })
    }

    /// Checks the tensors of a weight. Errors: what is wrong.
    pub fn new(state: Tensor, pieces: Vec<Tensor>) -> Result<Self, String> {
        let layout = layout(state.as_bytes())?;
        let found = pieces.iter().map(|piece| (piece.shape(), piece.dtype()));
        check(&layout, found)?;
        let rises = |tensor: &Tensor| tensor.to_f64().is_sorted_by(|a, b| a < b);
        for (piece, ending) in pieces.iter().zip(ENDINGS).skip(1) {
            if piece.dtype() == Dtype::F32 && !is_finite(piece) {
                return Err(format!("*{ending} has values that are not finite"));
            }
            if ending.ends_with("quant_map") && !rises(piece) {
                return Err(format!("*{ending} is not in ascending order"));
            }
        }
        Ok(Self { layout, pieces, state })
    }

    /// Names and tensors in files, the codes first and the description last.
    pub fn entries(self, name: &str) -> Vec<(String, Tensor)> {
        let pieces = ENDINGS.iter().zip(self.pieces);
        let pieces = pieces.map(|(ending, piece)| (format!("{name}{ending}"), piece));
        pieces.chain([(format!("{name}{STATE}"), self.state)]).collect()
    }
}

/// Reads the description of a weight. Errors: what is wrong.
pub fn layout(state: &[u8]) -> Result<Nf4, String> {
    let state: State = serde_json::from_slice(state)
        .map_err(|cause| format!("*{STATE} is not a description of a 4-bit weight: {cause}"))?;
    let known = |is: &dyn std::fmt::Debug, key: &str, was: &dyn std::fmt::Debug| {
        format!("*{STATE}: {key} is {was:?}; only {is:?} is supported")
    };
    if state.quant_type != "nf4" {
        return Err(known(&"nf4", "quant_type", &state.quant_type));
    }
    if state.blocksize != BLOCK {
        return Err(known(&BLOCK, "blocksize", &state.blocksize));
    }
    let dtype = DTYPES.iter().find(|(name, _)| *name == state.dtype);
    let (_, dtype) =
        dtype.ok_or_else(|| known(&DTYPES.map(|(name, _)| name), "dtype", &state.dtype))?;
    let shape: [usize; 2] = state.shape.as_slice().try_into().map_err(|_| {
        format!("*{STATE}: shape is {:?}; only matrices are supported", state.shape)
    })?;
    if shape.iter().try_fold(1usize, |all, n| all.checked_mul(*n)).is_none() {
        return Err(format!("*{STATE}: shape is {shape:?}, which is too large"));
    }
    let offset = match (state.nested_blocksize, state.nested_offset) {
        (None, None) => None,
        (Some(NESTED_BLOCK), Some(offset)) if (offset as f32).is_finite() => Some(offset as f32),
        other => return Err(format!("*{STATE}: nested_blocksize and nested_offset are {other:?}")),
    };
    Ok(Nf4 { shape, dtype: *dtype, offset })
}

/// Checks the shapes and dtypes of the tensors of a weight. Errors: which one does not fit.
pub fn check<'a>(
    layout: &Nf4,
    found: impl ExactSizeIterator<Item = (&'a [usize], Dtype)>,
) -> Result<(), String> {
    let needed = layout.pieces();
    if found.len() > needed.len() {
        return Err(format!("*{} is there, but *{STATE} has no nested_offset", ENDINGS[3]));
    }
    if found.len() < needed.len() {
        return Err(format!("there is no *{}", ENDINGS[found.len()]));
    }
    for (((shape, dtype), (is, of)), ending) in needed.iter().zip(found).zip(ENDINGS) {
        if is != shape || of != *dtype {
            return Err(format!(
                "*{ending} is {of} {is:?}; a matrix {:?} in blocks of {BLOCK} needs {dtype} {shape:?}",
                layout.shape
            ));
        }
    }
    Ok(())
}

/// The positions of the tensors of a quantised weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name of the weight.
    pub name: String,
    /// The description.
    pub state: usize,
    /// The tensors [`Nf4::pieces`].
    pub pieces: Vec<usize>,
}

/// Returns the quantised weights among tensors with these names, and the positions of all other tensors. Errors: a tensor
/// of a quantised weight is missing, or its codes are not NF4.
pub fn groups<'a>(
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(Vec<Group>, Vec<usize>), String> {
    let positions: HashMap<&str, usize> = names.clone().zip(0..).collect();
    let (mut found, mut is_part) = (Vec::new(), vec![false; positions.len()]);
    for (at, name) in names.clone().enumerate() {
        let Some((weight, kind)) = name.rsplit_once(STATES) else { continue };
        if !name.ends_with(STATE) {
            let kind = kind.strip_prefix("bitsandbytes__").unwrap_or(kind);
            return Err(format!(
                "{} has 4-bit codes of type {}; only nf4 is supported: quantise the dense model again",
                quote(weight),
                quote(kind)
            ));
        }
        let of = |ending: &&str| positions.get(format!("{weight}{ending}").as_str()).copied();
        let needed: Vec<usize> = ENDINGS.iter().map_while(of).collect();
        if needed.len() < 3 {
            let lacks = ENDINGS[needed.len()];
            return Err(format!("{name} is there, but {weight}{lacks} is not"));
        }
        for part in needed.iter().chain([&at]) {
            if let Some(is_part) = is_part.get_mut(*part) {
                *is_part = true;
            }
        }
        found.push(Group { name: weight.into(), state: at, pieces: needed });
    }
    let rest = names.enumerate().filter(|(at, _)| !is_part.get(*at).copied().unwrap_or(false));
    let is_lonely = |(_, name): &(usize, &str)| {
        let weight = ENDINGS[1..].iter().find_map(|ending| name.strip_suffix(ending));
        weight.is_some_and(|weight| positions.contains_key(weight))
    };
    let rest: Vec<(usize, &str)> = rest.collect();
    if let Some((_, name)) = rest.iter().copied().find(is_lonely) {
        return Err(format!("{name} is there, but no description *{STATE} of its weight"));
    }
    Ok((found, rest.into_iter().map(|(at, _)| at).collect()))
}

/// Returns the parameters that tensors stand for. Errors: as [`groups`] and [`Quantised::new`].
pub fn grouped(tensors: &[(String, Tensor)]) -> Result<Vec<(String, Value)>, String> {
    let (groups, dense) = groups(tensors.iter().map(|(name, _)| name.as_str()))?;
    let of = |at: usize| tensors[at].1.to_host().map_err(|error| error.to_string());
    let quantised = groups.into_iter().map(|group| {
        let pieces = group.pieces.into_iter().map(of).collect::<Result<_, _>>()?;
        let weight = Quantised::new(of(group.state)?, pieces);
        let weight = weight.map_err(|what| what.replace('*', &group.name))?;
        Ok((group.name, Value::Nf4(weight)))
    });
    let dense = dense.into_iter().map(|at| {
        let (name, tensor) = &tensors[at];
        Ok((name.clone(), Value::Dense(tensor.clone())))
    });
    dense.chain(quantised).collect()
}

#[cfg(test)]
mod tests;
