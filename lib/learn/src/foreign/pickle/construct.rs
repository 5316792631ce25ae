//! The only calls that a pickle may make; all others are rejected.

use super::names::Name;
use super::{Machine, Storage, Value, View};
use crate::foreign::MAX_TENSORS;
use tensor::safetensors::MAX_RANK;

/// Maximum number of arguments of a call; PyTorch's calls have up to 7.
const MAX_ARGUMENTS: usize = 8;

impl Machine<'_> {
    /// Handles the persistent ID `('storage', type, key, location, elements)`, which refers to a storage in an archive
    /// entry.
    pub(super) fn persistent(&mut self) -> Result<(), String> {
        let id = self.pop()?;
        let (key, dtype, count) = match self.tuple(id)? {
            [tag, Value::Name(Name::Storage(dtype)), Value::Text(key), _, Value::Int(count)]
                if self.text(*tag)? == "storage" =>
            {
                (*key, *dtype, u64::try_from(*count))
            }
            _ => return Err("a persistent id that is not a storage".into()),
        };
        let count = count.map_err(|_| "a storage of negative length")?;
        self.contents.storages.push(Storage { key, dtype, count });
        self.push(Value::Storage(self.contents.storages.len() - 1))
    }

    /// Executes one of the supported calls.
    pub(super) fn call(&mut self) -> Result<(), String> {
        let (arguments, callee) = (self.pop()?, self.pop()?);
        let arguments = self.tuple(arguments)?;
        if arguments.len() > MAX_ARGUMENTS || self.contents.views.len() == MAX_TENSORS {
            return Err(format!(
                "its pickle has a call with more than {MAX_ARGUMENTS} arguments, or more than {MAX_TENSORS} tensors"
            ));
        }
        let arguments = arguments.to_vec();
        match (callee, arguments.as_slice()) {
            (Value::Name(Name::OrderedDict), []) => self.push_container(Value::Dict, Vec::new()),
            (Value::Name(Name::Size), [tuple @ Value::Tuple(_)])
            | (Value::Name(Name::RebuildParameter), [tuple @ Value::Tensor(_), ..]) => {
                self.push(*tuple)
            }
            (
                Value::Name(Name::RebuildTensor),
                [Value::Storage(storage), Value::Int(offset), shape, strides, ..],
            ) => {
                let view = View {
                    storage: *storage,
                    offset: u64::try_from(*offset).map_err(|_| "a negative offset")?,
                    shape: self.sizes(*shape)?,
                    strides: self.sizes(*strides)?,
                };
                self.contents.views.push(view);
                self.push(Value::Tensor(self.contents.views.len() - 1))
            }
            (callee, _) => Err(format!("a call of {callee:?} with unsupported arguments")),
        }
    }

    fn sizes(&self, tuple: Value) -> Result<Vec<usize>, String> {
        let sizes = self.tuple(tuple)?;
        if sizes.len() > MAX_RANK {
            return Err(format!("a tensor of rank {}", sizes.len()));
        }
        let size = |value: &Value| match value {
            Value::Int(n) => {
                usize::try_from(*n).map_err(|_| "a negative size or stride".to_string())
            }
            _ => Err("a size or stride that is not a number".into()),
        };
        sizes.iter().map(size).collect()
    }
}
