//! The globals that a pickle may use: tensor constructors and storage types.

use tensor::FileDtype;

/// A global that a pickle may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::foreign) enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(FileDtype),
}

/// Looks up a global; the error names the global if it is not supported.
pub(super) fn name_of(module: &str, name: &str) -> Result<Name, String> {
    Ok(match (module, name) {
        ("collections", "OrderedDict") => Name::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Name::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Name::RebuildParameter,
        ("torch", "Size") => Name::Size,
        ("torch", "DoubleStorage") => Name::Storage(FileDtype::F64),
        ("torch", "FloatStorage") => Name::Storage(FileDtype::F32),
        ("torch", "HalfStorage") => Name::Storage(FileDtype::F16),
        ("torch", "BFloat16Storage") => Name::Storage(FileDtype::Bf16),
        ("torch", "LongStorage") => Name::Storage(FileDtype::I64),
        ("torch", "IntStorage") => Name::Storage(FileDtype::I32),
        ("torch", "ShortStorage") => Name::Storage(FileDtype::I16),
        ("torch", "CharStorage") => Name::Storage(FileDtype::I8),
        ("torch", "ByteStorage") => Name::Storage(FileDtype::U8),
        ("torch", "BoolStorage") => Name::Storage(FileDtype::Bool),
        _ => {
            return Err(format!(
                "its pickle uses {:?}, which is not supported; nothing was \
                 executed. In PyTorch, save a state_dict: tensors in plain dictionaries",
                format!("{module}.{name}")
            ));
        }
    })
}
