//! Data sets: the order in which training reads samples and the threads that prepare batches, shards of records, the
//! verification of input files, and, with the feature `hdf5`, fields. Knows no model.

#[cfg(feature = "hdf5")]
pub mod fields;
pub mod inputs;
pub mod loader;
pub mod seal;
pub mod split;
pub mod store;
