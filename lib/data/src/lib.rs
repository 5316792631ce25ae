//! Data sets: the order in which training reads samples and the thread that prepares them, the verification of input
//! files, and, with the feature `hdf5`, fields. Knows no model.

// Files hold little-endian numbers and are read and mapped as they are.
const _: () = assert!(cfg!(target_endian = "little"));

#[cfg(feature = "hdf5")]
pub mod fields;
pub mod inputs;
pub mod loader;
pub mod seal;
