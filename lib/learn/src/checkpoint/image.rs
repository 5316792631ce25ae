//! A file of a checkpoint in memory, byte for byte as it will be on the disk, so that it is written from
//! where it is.

use std::collections::HashMap;
use std::io;

use memmap2::{Advice, MmapMut};
use tensor::Tensor;
use unix::{Context, Error, Result};

use super::bytes;
use super::layout::{self, Place};
use super::manifest::TensorEntry;

/// Where everything goes in a file.
#[derive(Debug)]
pub(super) struct Plan {
    stem: String,
    header: Vec<u8>,
    /// In the order of the file, each with its number among the tensors that were given.
    places: Vec<(Place, usize)>,
}

impl Plan {
    /// The file `stem` with `tensors`. Errors: 70 when their names cannot be stored.
    pub fn new(stem: &str, tensors: &[(String, Tensor)]) -> Result<Self> {
        let (header, places) = layout::plan(tensors).context(|| stem)?;
        let given: HashMap<&str, usize> =
            tensors.iter().enumerate().map(|(number, (name, _))| (name.as_str(), number)).collect();
        let numbered = places.into_iter().map(|place| {
            let number = given.get(place.name.as_str()).copied();
            Ok((place, number.ok_or_else(|| Error::bug("a place without a tensor"))?))
        });
        let places = numbered.collect::<Result<_>>()?;
        Ok(Self { stem: stem.into(), header, places })
    }

    /// Whether it is the plan for `tensors` too.
    fn fits(&self, stem: &str, tensors: &[(String, Tensor)]) -> bool {
        let fits = |(place, number): &(Place, usize)| {
            let (name, tensor) = &tensors[*number];
            let form = (&place.name, &place.shape[..], place.dtype);
            form == (name, tensor.shape(), tensor.dtype())
        };
        self.stem == stem && self.places.len() == tensors.len() && self.places.iter().all(fits)
    }

    /// Size of the file.
    fn bytes(&self) -> usize {
        self.places.last().map_or(self.header.len(), |(place, _)| place.end as usize)
    }
}

/// A file in memory.
#[derive(Debug)]
pub(super) struct Image {
    plan: Plan,
    /// At the start of a page, as writing past the page cache wants it.
    memory: MmapMut,
}

impl Image {
    /// Takes the memory for a file, all of it touched: fresh memory is many times slower than a copy.
    /// Its tensors have any content. Errors: 1 when there is not so much memory.
    pub fn new(plan: Plan) -> Result<Self> {
        let taken = || -> io::Result<MmapMut> {
            let mut memory = MmapMut::map_anon(plan.bytes())?;
            let _ = memory.advise(Advice::HugePage); // a hint: everything works without
            memory.fill(0);
            memory[..plan.header.len()].copy_from_slice(&plan.header);
            Ok(memory)
        };
        let memory = taken().map_err(|cause| {
            let text = format!("no memory for {} bytes of a checkpoint: {cause}", plan.bytes());
            Error::new(unix::Exit::Failure, text)
        })?;
        Ok(Self { plan, memory })
    }

    /// A file of `tensors`, for which it was planned. Errors: as [`Image::new`].
    pub fn of(plan: Plan, tensors: &[(String, Tensor)]) -> Result<Self> {
        let mut image = Self::new(plan)?;
        image.pairs(tensors).for_each(|(from, to)| to.copy_from_slice(from));
        Ok(image)
    }

    /// Whether it has the places for `tensors`.
    pub fn fits(&self, stem: &str, tensors: &[(String, Tensor)]) -> bool {
        self.plan.fits(stem, tensors)
    }

    /// Each of `tensors`, for which the image was planned, with its place.
    pub fn pairs<'a>(
        &'a mut self,
        tensors: &'a [(String, Tensor)],
    ) -> impl Iterator<Item = (&'a [u8], &'a mut [u8])> {
        let mut rest = &mut self.memory[self.plan.header.len()..];
        self.plan.places.iter().map(move |(place, number)| {
            let (to, after) =
                std::mem::take(&mut rest).split_at_mut((place.end - place.start) as usize);
            rest = after;
            (bytes::of(&tensors[*number].1), to)
        })
    }

    /// The name of the file without `.safetensors`.
    pub fn stem(&self) -> &str {
        &self.plan.stem
    }

    /// The file.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Bytes of the tensors.
    pub fn content(&self) -> u64 {
        (self.memory.len() - self.plan.header.len()) as u64
    }

    /// Its tensors in the order in which they were given, with their hashes.
    pub fn entries(&self) -> Vec<TensorEntry> {
        let entry = |(place, number): &(Place, usize)| {
            let content = &self.memory[place.start as usize..place.end as usize];
            let entry = TensorEntry {
                name: place.name.clone(),
                dtype: layout::dtype_name(place.dtype).into(),
                shape: place.shape.clone(),
                start: place.start,
                end: place.end,
                blake3: blake3::hash(content).to_hex().to_string(),
            };
            (*number, entry)
        };
        let mut entries: Vec<(usize, TensorEntry)> = self.plan.places.iter().map(entry).collect();
        entries.sort_by_key(|(number, _)| *number);
        entries.into_iter().map(|(_, entry)| entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use tensor::Dtype;

    use super::*;

    #[test]
    fn tensors_lie_where_the_plan_says_at_the_start_of_a_page() {
        let tensors = vec![
            ("b".to_string(), Tensor::of(&[1.0_f32, 2.0], &[2])),
            ("empty".to_string(), Tensor::zeros(&[0, 7], Dtype::F32)),
            ("c".to_string(), Tensor::of(&[3.0_f64], &[1])),
            ("a".to_string(), Tensor::scalar(4.0_f32)),
        ];
        let image = Image::of(Plan::new("model", &tensors).unwrap(), &tensors).unwrap();
        assert_eq!((image.stem(), image.content()), ("model", 8 + 8 + 4));
        assert_eq!(image.bytes().as_ptr().addr() % 4096, 0, "written past the page cache");
        let entries = image.entries();
        for ((name, tensor), entry) in tensors.iter().zip(&entries) {
            let content = &image.bytes()[entry.start as usize..entry.end as usize];
            assert_eq!((&entry.name, content), (name, tensor.as_bytes()));
            assert_eq!(entry.blake3, blake3::hash(content).to_hex().as_str());
        }
        assert_eq!(entries.len(), tensors.len());
        let size = image.bytes().len() as u64;
        let read = layout::read(&image.bytes()[8..image.plan.header.len()], size).unwrap();
        assert_eq!(read, image.plan.places.iter().map(|(p, _)| p.clone()).collect::<Vec<_>>());
        assert!(image.fits("model", &tensors) && !image.fits("ema", &tensors));
        assert!(!image.fits("model", &tensors[1..]));
        let mut other = tensors.clone();
        other[0].1 = Tensor::zeros(&[1, 2], Dtype::F32);
        assert!(!image.fits("model", &other));
    }
}
