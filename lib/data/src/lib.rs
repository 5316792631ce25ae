//! Data sets: sample order, threads that prepare batches, sharded stores of records, and verification of input files.
//! The feature `hdf5` adds fields and array records, `text` adds texts and their tokens, `images` images and their
//! patches. Independent of any model.

#[cfg(any(feature = "images", feature = "text"))]
mod draw;
#[cfg(feature = "hdf5")]
pub mod fields;
#[cfg(feature = "images")]
pub mod images;
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
