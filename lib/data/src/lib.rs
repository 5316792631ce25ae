//! Data sets: the order in which training reads samples, the threads that prepare batches, stores of records in shards,
//! the verification of input files; with the feature `hdf5` fields and records of arrays, with `text` texts and their
//! tokens. Independent of any model.

#[cfg(feature = "hdf5")]
pub mod fields;
pub mod inputs;
pub mod loader;
pub mod provenance;
#[cfg(feature = "hdf5")]
pub mod records;
pub mod seal;
pub mod split;
pub mod store;
#[cfg(feature = "text")]
pub mod text;
mod torch_order;
