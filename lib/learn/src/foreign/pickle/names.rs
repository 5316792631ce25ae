//! The names that a pickle may use: constructors of tensors, and types of numbers.

use crate::foreign::Element;

/// Names that a pickle may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::foreign) enum Name {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Size,
    Storage(Element),
}

/// A name on the list, or an error with the name.
pub(super) fn name_of(module: &str, name: &str) -> Result<Name, String> {
    Ok(match (module, name) {
        ("collections", "OrderedDict") => Name::OrderedDict,
        ("torch._utils", "_rebuild_tensor_v2") => Name::RebuildTensor,
        ("torch._utils", "_rebuild_parameter") => Name::RebuildParameter,
        ("torch", "Size") => Name::Size,
        ("torch", "DoubleStorage") => Name::Storage(Element::F64),
        ("torch", "FloatStorage") => Name::Storage(Element::F32),
        ("torch", "HalfStorage") => Name::Storage(Element::F16),
        ("torch", "BFloat16Storage") => Name::Storage(Element::BF16),
        ("torch", "LongStorage") => Name::Storage(Element::I64),
        ("torch", "IntStorage") => Name::Storage(Element::I32),
        ("torch", "ShortStorage") => Name::Storage(Element::I16),
        ("torch", "CharStorage") => Name::Storage(Element::I8),
        ("torch", "ByteStorage") => Name::Storage(Element::U8),
        ("torch", "BoolStorage") => Name::Storage(Element::Bool),
        _ => {
            return Err(format!(
                "its pickle asks for {:?}, which is not on the list of what is taken; nothing of it \
                 was run. In PyTorch, save a state_dict: tensors in plain dictionaries",
                format!("{module}.{name}")
            ));
        }
    })
}
