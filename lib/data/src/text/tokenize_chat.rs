//! Encodes conversations, and the places of their images.

use super::chat::{ChatTokenizer, Messages, messages_of};
use super::image_store::ImageRef;
use super::token_arrays::{Arrays, Counts, ImageSource};
use super::tokenize::place;
use super::tokenizer::Encoded;
use super::{TextSet, TextStore};
use crate::split::Source;
use crate::store::Ragged;
use rayon::prelude::*;
use std::path::Path;
use unix::relative::relative;
use unix::{Context, Error, Result};

/// The stores of a set whose images its records show, for tokens in the folder `to`; none if no store has images.
/// Errors: 70 for a folder that does not exist.
pub(super) fn image_sources(set: &TextSet, to: &Path) -> Result<Vec<ImageSource>> {
    if set.stores().iter().all(|store| store.image_store().is_none()) {
        return Ok(Vec::new());
    }
    let of = |store: &TextStore| {
        let blake3 = store.description().images.clone();
        Ok(ImageSource { path: relative(store.path(), to)?, blake3 })
    };
    set.stores().iter().map(of).collect()
}

/// The images of some records.
#[derive(Default)]
pub(super) struct ImagePlaces {
    places: Ragged,
    grids: Ragged,
}

impl ImagePlaces {
    fn push(&mut self, images: &[ImageRef], grids: &[[i32; 2]]) {
        let words: Vec<u64> = images.iter().flat_map(|own| own.to_words()).collect();
        self.places.push_items(&words, images.len());
        let grids: Vec<i32> = grids.concat();
        self.grids.push_items(&grids, images.len());
    }

    /// The bytes of the ends, the places and the grids, as far as the layout has them.
    pub fn finish(self, arrays: &Arrays) -> Option<[Vec<u8>; 3]> {
        arrays.images.map(|_| [self.places.ends, self.places.items, self.grids.items])
    }
}

/// The size in patches of each image of a record, rows and columns, and its number of tokens.
fn sizes(chat: &ChatTokenizer, store: &TextStore, i: usize) -> Result<Vec<([i32; 2], usize)>> {
    let images = store.images(i);
    let (Some(own), Some(all)) = (&chat.images, store.image_store()) else { return Ok(Vec::new()) };
    let names = store.image_names(i);
    let of = |(number, image): (usize, &ImageRef)| {
        let name = names.get(number).copied().unwrap_or("image");
        let decoded = all.decode(name, *image)?;
        let fit = own.processor.fit(name, decoded.width, decoded.height)?;
        let [_, rows, columns] = fit.grid.map(|side| side as i32);
        Ok(([rows, columns], fit.tokens as usize))
    };
    images.iter().enumerate().map(of).collect()
}

/// Encodes conversations, and counts the turns that are rendered in another way when a conversation goes on.
pub(super) fn conversations(
    chat: &ChatTokenizer,
    records: &[(&TextStore, usize)],
    images: &mut ImagePlaces,
    counts: &mut Counts,
) -> Result<Vec<Encoded>> {
    let of = |(store, i): &(&TextStore, usize)| {
        let json = store.texts(*i)[0].unwrap_or_default();
        let messages = messages_of(json);
        let messages =
            messages.map_err(|what| Error::data(format!("{}: {what}", place(store, *i))))?;
        let has_images = !store.images(*i).is_empty();
        if has_images && chat.images.is_none() {
            return Err(Error::data(format!(
                "{}: {}",
                place(store, *i),
                super::chat::NO_PROCESSOR
            )));
        }
        let sizes = sizes(chat, store, *i).context(|| place(store, *i))?;
        Ok((messages, sizes))
    };
    type Read = (Messages, Vec<([i32; 2], usize)>);
    // All of them, then in order: of several faults, every run names the first.
    let all: Vec<Result<Read>> = records.par_iter().map(of).collect();
    let all = all.into_iter().collect::<Result<Vec<Read>>>()?;
    let tokens: Vec<Vec<usize>> =
        all.iter().map(|(_, sizes)| sizes.iter().map(|(_, tokens)| *tokens).collect()).collect();
    let given = all.iter().zip(&tokens).map(|((messages, _), own)| (&messages[..], &own[..]));
    let found = chat.encode(&given.collect::<Vec<_>>());
    let found = found.into_iter().zip(records).zip(&all);
    let found = found.map(|((found, (store, i)), (_, sizes))| {
        let (encoded, changed) = found.context(|| place(store, *i))?;
        counts.changed_turns += changed;
        let grids: Vec<[i32; 2]> = sizes.iter().map(|(grid, _)| *grid).collect();
        images.push(&store.images(*i), &grids);
        Ok(encoded)
    });
    found.collect()
}
