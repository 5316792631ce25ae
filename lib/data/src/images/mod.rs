//! Images of documents: files are decoded ([`decode`]), resized as Pillow does it ([`resize`]) and cut into patches as
//! the image processor of Qwen2-VL and Qwen3-VL in transformers does it ([`Preprocessor`]).
//!
//! Values are equal to those of Pillow and of transformers' PIL back end to the bit, except where files are decoded by
//! other means: JPEG within 2/255, and grey levels of 16 bits (see [`decode`]).

mod config;
mod decode;
mod exif;
pub mod headers;
mod jpeg_file;
mod patches;
mod pixels;
mod png_file;
mod resize;
mod sheet;
mod tiff_fax;
mod tiff_file;

pub use config::{FILE as PROCESSOR_FILE, Preprocessor};
pub use decode::{DecodeOptions, Transparency, count_pages, decode, open, read, split_page};
pub use patches::{Fit, Patches, smart_resize};
pub use pixels::RgbImage;
pub use png_file::thumbnail;
pub use resize::{Filter, resize};
pub use sheet::contact_sheet;
