//! The images of a store of texts: the bytes of each file once, as they are, however many records have it.

use crate::images::{DecodeOptions, RgbImage, decode};
use crate::inputs::InputFile;
use crate::seal::SealedFile;
use crate::store::{RecordArray, Store, StoreLayout};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tensor::FileDtype;
use unix::{Error, Result};

pub(super) const FILE: SealedFile = SealedFile {
    format: "longhaul-images",
    version: 1,
    made_by: "ds-prep import",
    max_bytes: 64 << 20,
};

/// Description of the images of a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Description {
    /// BLAKE3 hashes of the files with the records.
    pub files: Vec<String>,
    /// The sum of the sizes of all images in bytes.
    pub bytes: u64,
}

/// An image of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRef {
    /// Its number among the images of the store.
    pub image: usize,
    /// The page of a TIFF file, from 0.
    pub page: u32,
}

impl ImageRef {
    pub(super) fn to_words(self) -> [u64; 2] {
        [self.image as u64, self.page.into()]
    }

    /// Decodes stored words, which [`ImageStore::decode`] checks.
    pub(super) fn all_of(bytes: &[u8]) -> Vec<Self> {
        let word = |bytes: &[u8]| u64::from_le_bytes(std::array::from_fn(|k| bytes[k]));
        let of = |bytes: &[u8]| Self {
            image: word(bytes) as usize,
            page: u32::try_from(word(&bytes[8..])).unwrap_or(u32::MAX),
        };
        bytes.chunks_exact(16).map(of).collect()
    }
}

/// The folder with the images of the store in `folder`.
pub(super) fn image_folder(folder: &Path) -> PathBuf {
    folder.join("images")
}

pub(super) fn layout(images: usize, shard_records: usize) -> StoreLayout {
    let arrays =
        vec![RecordArray::ends("bytes.ends"), RecordArray::ragged("bytes", FileDtype::U8, &[], 0)];
    StoreLayout { arrays, records: images, shard_records }
}

/// Images, mapped into memory. They can be shared between threads.
#[derive(Debug)]
pub struct ImageStore(Store<Description, ()>);

impl ImageStore {
    /// Opens the images of the store of texts in `folder`. Errors: 66; 65 when they are incomplete or damaged, or not those with
    /// the hash `expected`.
    pub fn open(folder: &Path, expected: &str) -> Result<Self> {
        let folder = image_folder(folder);
        let store = Store::<Description, ()>::open(FILE, &folder)?;
        let found = &store.index().layout;
        let planned = layout(found.records, found.shard_records);
        if store.hash() != expected || *found != planned {
            return Err(Error::data(format!(
                "{}: not the images of the records beside it; run `ds-prep import` again",
                folder.display()
            )));
        }
        Ok(Self(store))
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.0.index().layout.records
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of the file of an image. Panics when it is out of range.
    pub fn bytes(&self, image: usize) -> &[u8] {
        self.0.bytes(1, image)
    }

    /// Reads the same, see [`Store::read`]. Panics when it is out of range. Errors: 74.
    pub fn read(&self, image: usize) -> Result<Vec<u8>> {
        self.0.read(1, image)
    }

    /// Decodes an image, which is called `name` in errors. Errors: 65.
    pub fn decode(&self, name: &str, own: ImageRef) -> Result<RgbImage> {
        if own.image >= self.len() {
            let count = self.len();
            return Err(Error::data(format!(
                "{name}: image {} of {count}; the store is damaged",
                own.image
            )));
        }
        decode(name, &self.read(own.image)?, Some(own.page), &DecodeOptions::default())
    }

    /// Its files with their recorded hashes.
    pub fn input_files(&self) -> Vec<InputFile> {
        self.0.input_files()
    }
}
