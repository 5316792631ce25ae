//! In-memory image of a checkpoint file, byte for byte as on disk, so that it can be written without another copy.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;

use memmap2::{Advice, MmapMut};
use tensor::Tensor;
use tensor::safetensors::{Entry, Header};
use unix::{Context, Error, Result};

use super::manifest::TensorEntry;

/// Layout of a checkpoint file. Tensors with wider dtypes come first, so that every tensor is aligned.
#[derive(Debug)]
pub(super) struct ImagePlan {
    stem: String,
    header: Header,
    /// For each header entry, the index of its tensor in the list that was passed in.
    numbers: Vec<usize>,
}

impl ImagePlan {
    /// Lays out the file `stem` for `tensors`. Errors: 70 when a name cannot be stored.
    pub fn new(stem: &str, tensors: &[(String, Tensor)]) -> Result<Self> {
        let mut numbers: Vec<usize> = (0..tensors.len()).collect();
        numbers.sort_by_key(|&i| (Reverse(tensors[i].1.dtype().bytes()), tensors[i].0.as_str()));
        let planned = numbers.iter().map(|&i| &tensors[i]);
        let planned = planned.map(|(name, t)| (name.as_str(), t.dtype().into(), t.shape()));
        // Loaders of Hugging Face require this metadata entry.
        let format = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let header = Header::plan(planned, format, 8).map_err(Error::bug).context(|| stem)?;
        Ok(Self { stem: stem.into(), header, numbers })
    }

    /// The header entries, each with the index of its tensor.
    fn numbered(&self) -> impl Iterator<Item = (&Entry, usize)> {
        self.header.entries.iter().zip(self.numbers.iter().copied())
    }

    /// Whether the layout matches the stem, names, shapes and dtypes of `tensors`.
    fn fits(&self, stem: &str, tensors: &[(String, Tensor)]) -> bool {
        let fits = |(entry, number): (&Entry, usize)| {
            let (name, tensor) = &tensors[number];
            let form = (&entry.name, &entry.shape[..], entry.dtype);
            form == (name, tensor.shape(), tensor.dtype().into())
        };
        self.stem == stem && self.numbers.len() == tensors.len() && self.numbered().all(fits)
    }
}

/// In-memory image of a checkpoint file.
#[derive(Debug)]
pub(super) struct Image {
    plan: ImagePlan,
    /// Page-aligned, as direct I/O requires.
    memory: MmapMut,
}

impl Image {
    /// Allocates the memory for a file and touches every page, because writing to untouched memory is many times slower
    /// than copying. The tensor contents are unspecified. Errors: 1 when there is not enough memory.
    pub fn new(plan: ImagePlan) -> Result<Self> {
        let taken = || -> io::Result<MmapMut> {
            let mut memory = MmapMut::map_anon(plan.header.file_bytes() as usize)?;
            let _ = memory.advise(Advice::HugePage); // only a hint, so errors are ignored
            memory.fill(0);
            memory[..plan.header.bytes.len()].copy_from_slice(&plan.header.bytes);
            Ok(memory)
        };
        let memory = taken().map_err(|cause| {
            let text = format!(
                "cannot allocate {} bytes for a checkpoint: {cause}",
                plan.header.file_bytes()
            );
            Error::out_of_memory(text)
        })?;
        Ok(Self { plan, memory })
    }

    /// Builds the image of `tensors`, for which `plan` was made. Errors: as [`Image::new`].
    pub fn of(plan: ImagePlan, tensors: &[(String, Tensor)]) -> Result<Self> {
        let mut image = Self::new(plan)?;
        image.pairs(tensors).for_each(|(from, to)| to.copy_from_slice(from));
        Ok(image)
    }

    /// Whether the layout matches the stem, names, shapes and dtypes of `tensors`.
    pub fn fits(&self, stem: &str, tensors: &[(String, Tensor)]) -> bool {
        self.plan.fits(stem, tensors)
    }

    /// Pairs each tensor with its bytes in the image, in file order. The image must have been planned for `tensors`.
    pub fn pairs<'a>(
        &'a mut self,
        tensors: &'a [(String, Tensor)],
    ) -> impl Iterator<Item = (&'a [u8], &'a mut [u8])> {
        let mut rest = &mut self.memory[self.plan.header.bytes.len()..];
        self.plan.numbered().map(move |(entry, number)| {
            let (to, after) =
                std::mem::take(&mut rest).split_at_mut((entry.end - entry.start) as usize);
            rest = after;
            (tensors[number].1.as_bytes(), to)
        })
    }

    /// The file name without `.safetensors`.
    pub fn stem(&self) -> &str {
        &self.plan.stem
    }

    /// The contents of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Total size of the tensors in bytes, without the header.
    pub fn content(&self) -> u64 {
        (self.memory.len() - self.plan.header.bytes.len()) as u64
    }

    /// Returns the manifest entries of the tensors, with hashes, in the order in which the tensors were passed in.
    pub fn entries(&self) -> Vec<TensorEntry> {
        let entry = |(entry, number): (&Entry, usize)| {
            let content = &self.memory[entry.start as usize..entry.end as usize];
            let entry = TensorEntry {
                name: entry.name.clone(),
                dtype: entry.dtype.to_string(),
                shape: entry.shape.clone(),
                start: entry.start,
                end: entry.end,
                blake3: blake3::hash(content).to_hex().to_string(),
            };
            (number, entry)
        };
        let mut entries: Vec<(usize, TensorEntry)> = self.plan.numbered().map(entry).collect();
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
            ("b".to_string(), Tensor::from_slice(&[1.0_f32, 2.0], &[2])),
            ("empty".to_string(), Tensor::zeros(&[0, 7], Dtype::F32)),
            ("c".to_string(), Tensor::from_slice(&[3.0_f64], &[1])),
            ("a".to_string(), Tensor::scalar(4.0_f32)),
        ];
        let image = Image::of(ImagePlan::new("model", &tensors).unwrap(), &tensors).unwrap();
        assert_eq!((image.stem(), image.content()), ("model", 8 + 8 + 4));
        assert_eq!(image.bytes().as_ptr().addr() % 4096, 0, "direct I/O");
        let entries = image.entries();
        for ((name, tensor), entry) in tensors.iter().zip(&entries) {
            let content = &image.bytes()[entry.start as usize..entry.end as usize];
            assert_eq!((&entry.name, content), (name, tensor.as_bytes()));
            assert_eq!(entry.blake3, blake3::hash(content).to_hex().as_str());
        }
        assert_eq!(entries.len(), tensors.len());
        let size = image.bytes().len() as u64;
        let header = image.bytes()[..image.plan.header.bytes.len()].to_vec();
        assert_eq!(Header::parse(header, size).unwrap(), image.plan.header);
        assert!(image.fits("model", &tensors) && !image.fits("ema", &tensors));
        assert!(!image.fits("model", &tensors[1..]));
        let mut other = tensors.clone();
        other[0].1 = Tensor::zeros(&[1, 2], Dtype::F32);
        assert!(!image.fits("model", &other));
    }
}
