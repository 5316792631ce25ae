//! Nearly equal images: their brightness in 32 x 32 fields is compared.
//!
//! The similarity of two images is the correlation of these fields, which neither size, compression, contrast nor a little
//! noise change much. Images of one field value, such as empty pages, are similar to nothing.

use super::TextStore;
use crate::images::{Filter, RgbImage, resize};
use rayon::prelude::*;

/// Fields along each side.
const SIDE: u32 = 32;

/// The fields of an image, with mean 0 and length 1.
struct Fields(Vec<f32>);

impl Fields {
    /// Computes the fields of an image; None if all are equal, or it does not fit into memory.
    fn of(image: &RgbImage) -> Option<Self> {
        let small = resize(image, SIDE, SIDE, Filter::Bicubic).ok()?;
        let grey = |rgb: &[u8]| {
            rgb.iter()
                .zip([0.299, 0.587, 0.114])
                .map(|(own, part)| f32::from(*own) * part)
                .sum::<f32>()
        };
        let mut all: Vec<f32> = small.pixels.chunks(3).map(grey).collect();
        let mean = all.iter().sum::<f32>() / all.len() as f32;
        all.iter_mut().for_each(|own| *own -= mean);
        let length = all.iter().map(|own| own * own).sum::<f32>().sqrt();
        // Less than one grey level a field.
        if length < SIDE as f32 {
            return None;
        }
        all.iter_mut().for_each(|own| *own /= length);
        Some(Self(all))
    }

    /// The correlation with other fields.
    fn similarity(&self, other: &Self) -> f64 {
        self.0.iter().zip(&other.0).map(|(a, b)| a * b).sum::<f32>().into()
    }
}

/// The fields of the images of a record, as far as they can be decoded.
fn fields_of((store, i): &(&TextStore, usize)) -> Vec<Option<Fields>> {
    let Some(images) = store.image_store() else { return Vec::new() };
    let of = |own| images.decode("image", own).ok().and_then(|image| Fields::of(&image));
    store.images(*i).into_iter().map(of).collect()
}

/// The similarity of two records with as many images: that of the most different ones. None if they have none.
fn similarity(a: &[Option<Fields>], b: &[Option<Fields>]) -> Option<f64> {
    if a.len() != b.len() || a.is_empty() {
        return None;
    }
    let of = |(a, b): (&Option<Fields>, &Option<Fields>)| Some(a.as_ref()?.similarity(b.as_ref()?));
    a.iter().zip(b).map(of).try_fold(1.0, |least: f64, own| Some(least.min(own?)))
}

/// The pairs of records whose images have a similarity of at least `threshold`, the later one first, and their similarity.
pub(super) fn pairs(records: &[(&TextStore, usize)], threshold: f64) -> Vec<(usize, usize, f64)> {
    if records.iter().all(|(store, _)| store.image_store().is_none()) {
        return Vec::new();
    }
    let all: Vec<Vec<Option<Fields>>> = records.par_iter().map(fields_of).collect();
    let near = |own: usize| {
        let earlier = all[..own].iter().enumerate();
        let near = earlier.filter_map(|(i, other)| Some((i, similarity(&all[own], other)?)));
        near.filter(|(_, found)| *found >= threshold).map(|(i, found)| (own, i, found)).collect()
    };
    (0..all.len()).into_par_iter().map(near).collect::<Vec<Vec<_>>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::headers::{Options, Preset, page, png};
    use crate::images::{DecodeOptions, decode};

    fn image(seed: u64, index: u64) -> RgbImage {
        let own = page(Preset::Clean, seed, index, &Options::rows(4, 4).unwrap());
        decode("page", &png(&own).unwrap(), None, &DecodeOptions::default()).unwrap()
    }

    #[test]
    fn copies_are_similar_and_other_pages_are_not() {
        let all: Vec<Fields> = (0..60).map(|i| Fields::of(&image(3, i)).unwrap()).collect();
        let mut most = 0.0_f64;
        for (i, own) in all.iter().enumerate() {
            for other in &all[..i] {
                most = most.max(own.similarity(other));
            }
            let mut copy = resize(&image(3, i as u64), 150, 50, Filter::Lanczos).unwrap();
            copy.pixels
                .iter_mut()
                .enumerate()
                .for_each(|(k, own)| *own = (*own / 2 + 60).wrapping_add((k % 3) as u8));
            let near = own.similarity(&Fields::of(&copy).unwrap());
            assert!(near > 0.95, "{i}: {near}");
        }
        assert!(most < 0.9, "{most}");
        let blank = RgbImage { width: 40, height: 20, pixels: vec![250; 2400] };
        assert!(Fields::of(&blank).is_none());
    }
}
