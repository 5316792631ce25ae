//! The images of tokens, which stay in the stores of texts.

use super::TokenSet;
use super::image_store::{ImageRef, ImageStore};
use super::token_arrays::ImageSource;
use crate::images::RgbImage;
use std::path::Path;
use unix::Result;

/// Opens the images of tokens in `folder`. Errors: 66 when a store is missing; 65 when it has others.
pub(super) fn open_images(
    sources: &[ImageSource],
    folder: &Path,
) -> Result<Vec<Option<ImageStore>>> {
    let open = |source: &ImageSource| {
        let hash = source.blake3.as_ref()?;
        Some(ImageStore::open(&folder.join(&source.path), hash))
    };
    sources.iter().map(open).map(Option::transpose).collect()
}

/// An image of a record.
#[derive(Clone, Copy, Debug)]
pub struct RecordImage<'a> {
    /// Where it is.
    store: &'a ImageStore,
    own: ImageRef,
    /// Rows and columns of its patches.
    pub grid: [usize; 2],
}

impl RecordImage<'_> {
    /// Decodes the image, which is called `name` in errors. Errors: 65.
    pub fn decode(&self, name: &str) -> Result<RgbImage> {
        self.store.decode(name, self.own)
    }
}

impl TokenSet {
    /// Whether any record may have images.
    pub fn has_images(&self) -> bool {
        self.images.iter().any(Option::is_some)
    }

    /// The images of record `i`, in the order of their tokens. Panics when out of range. Errors: 65 when it was damaged.
    pub fn images(&self, i: usize) -> Result<Vec<RecordImage<'_>>> {
        let Some([places, grids]) = self.arrays.images else { return Ok(Vec::new()) };
        let grids: &[[i32; 2]] = bytemuck::cast_slice(self.store.bytes(grids, i));
        let store = self.images.get(self.source(i)[0] as usize).and_then(Option::as_ref);
        let of = |(own, grid): (ImageRef, &[i32; 2])| {
            let [rows, columns] = grid.map(|side| usize::try_from(side).ok());
            let store = store.filter(|store| own.image < store.len())?;
            Some(RecordImage { store, own, grid: [rows?, columns?] })
        };
        let found = ImageRef::all_of(self.store.bytes(places, i)).into_iter().zip(grids).map(of);
        let damaged = || self.damaged(&format!("the images of record {i} are damaged"));
        found.collect::<Option<_>>().ok_or_else(damaged)
    }
}
