//! The images that records refer to, while they are imported.

use super::chat::{Messages, references};
use super::image_store::ImageRef;
use super::rows::{Row, at_line};
use crate::images::{DecodeOptions, RgbImage, decode, read, split_page};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use unix::text::summary;
use unix::{Error, Exit, Result};

/// An image of a record, and what messages call it.
pub(super) struct Named {
    pub own: ImageRef,
    pub name: String,
}

/// Where an image is.
enum Place {
    File(PathBuf),
    Bytes(Vec<u8>),
}

/// An image as a record refers to it.
pub(super) struct Reference {
    pub name: String,
    place: Place,
    pub page: u32,
}

impl Reference {
    /// Reads a reference of image `number` of a row: a path relative to `folder`, with `#N` for page N of a TIFF file, or bytes in
    /// base64. Errors: what is wrong with it.
    pub fn parse(text: &str, folder: &Path, number: usize) -> Result<Self, String> {
        let text = text.trim();
        let (head, rest) = text.split_once(',').unwrap_or(("", ""));
        if head.starts_with("data:") && head.ends_with(";base64") {
            return Self::of_base64(rest, number);
        }
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(format!(
                "{}: images are not downloaded; name a file",
                summary(&text.into())
            ));
        }
        let path = text.strip_prefix("file://").unwrap_or(text);
        // A `#` may also be part of a name.
        let (file, page) =
            if folder.join(path).is_file() { (path, None) } else { split_page(path) };
        let file = folder.join(file);
        if file.is_file() {
            let (name, page) = (path.to_string(), page.unwrap_or(0));
            return Ok(Self { name, place: Place::File(file), page });
        }
        // No name of a file is this long.
        if text.len() > 4096 {
            return Self::of_base64(text, number);
        }
        match Self::of_base64(text, number) {
            Ok(own) if text.len() > 64 => Ok(own),
            _ => Err(format!("{}: no such file", file.display())),
        }
    }

    fn of_base64(text: &str, number: usize) -> Result<Self, String> {
        let text: String = text.split_whitespace().collect();
        let bytes = STANDARD
            .decode(text)
            .map_err(|cause| format!("image {number}: not base64: {cause}"))?;
        Ok(Self { name: format!("image {number}"), place: Place::Bytes(bytes), page: 0 })
    }

    /// The bytes of the file. Errors: 65, 66, 74.
    pub fn bytes(&self) -> Result<Cow<'_, [u8]>> {
        match &self.place {
            Place::File(path) => read(path, &DecodeOptions::default()).map(Cow::Owned),
            Place::Bytes(bytes) => Ok(Cow::Borrowed(bytes)),
        }
    }

    /// Decodes the image in these bytes, which are those of the file. Errors: 65.
    pub fn decode(&self, bytes: &[u8]) -> Result<RgbImage> {
        decode(&self.name, bytes, Some(self.page), &DecodeOptions::default())
    }
}

/// The folder that paths in `file` are relative to: its own, or the file itself if it is a folder.
pub(super) fn folder_of(file: &Path) -> &Path {
    match file.is_dir() {
        true => file,
        false => file.parent().unwrap_or(Path::new("")),
    }
}

/// The different images of all records, in the order in which they first occur.
#[derive(Default)]
pub(super) struct RecordImages {
    by_file: HashMap<PathBuf, usize>,
    by_hash: HashMap<blake3::Hash, usize>,
    /// Size of each image in bytes.
    pub sizes: Vec<u64>,
    /// The pages of files that were decoded.
    readable: HashSet<(usize, u32)>,
    /// File and line of each record with an image that cannot be read.
    left_out: HashSet<(PathBuf, u64)>,
    /// What is wrong with them.
    pub problems: Vec<String>,
}

impl RecordImages {
    /// Whether a row is kept that was added.
    pub fn keeps(&self, row: &Row, file: &Path) -> bool {
        !self.left_out.contains(&(file.to_path_buf(), row.line))
    }

    /// Decodes the images of a conversation. Returns their number; None if one cannot be read. Errors: 74.
    pub fn add(&mut self, messages: &Messages, row: &Row, file: &Path) -> Result<Option<usize>> {
        let found = match references(messages) {
            Ok(found) => found,
            Err(what) => return Ok(self.leave_out(row, file, &what)),
        };
        for (number, text) in found.iter().enumerate() {
            let own = Reference::parse(text, folder_of(file), number).map_err(Error::data);
            match own.and_then(|own| self.add_one(own)) {
                Ok(()) => {}
                Err(error) if error.exit == Exit::Io => return Err(error),
                Err(error) => return Ok(self.leave_out(row, file, &error.to_string())),
            }
        }
        Ok(Some(found.len()))
    }

    fn leave_out<T>(&mut self, row: &Row, file: &Path, what: &str) -> Option<T> {
        self.problems.push(at_line(file, row.line, what).to_string());
        self.left_out.insert((file.to_path_buf(), row.line));
        None
    }

    fn add_one(&mut self, own: Reference) -> Result<()> {
        let file = match &own.place {
            Place::File(path) => Some(path.clone()),
            Place::Bytes(_) => None,
        };
        let known = file.as_ref().and_then(|file| self.by_file.get(file)).copied();
        if known.is_some_and(|image| self.readable.contains(&(image, own.page))) {
            return Ok(());
        }
        let bytes = own.bytes()?;
        own.decode(&bytes)?;
        let next = self.sizes.len();
        let image = *self.by_hash.entry(blake3::hash(&bytes)).or_insert(next);
        if image == next {
            self.sizes.push(bytes.len() as u64);
        }
        self.readable.insert((image, own.page));
        file.into_iter().for_each(|file| _ = self.by_file.insert(file, image));
        Ok(())
    }

    /// The images of a conversation that was added. Errors: 65 when a file has changed since.
    pub fn of(&self, messages: &Messages, row: &Row, file: &Path) -> Result<Vec<Named>> {
        let changed =
            || at_line(file, row.line, "an image was changed while it was read; import it again");
        let found = references(messages).map_err(|_| changed())?;
        let of = |(number, text): (usize, &String)| {
            let own = Reference::parse(text, folder_of(file), number).map_err(|_| changed())?;
            let (name, page) = (own.name.clone(), own.page);
            let image = match &own.place {
                Place::File(path) => self.by_file.get(path),
                Place::Bytes(bytes) => self.by_hash.get(&blake3::hash(bytes)),
            };
            let own = ImageRef { image: *image.ok_or_else(changed)?, page };
            Ok(Named { own, name })
        };
        found.iter().enumerate().map(of).collect()
    }

    /// The bytes of those images of a conversation that follow the first `next`, with their numbers. Errors: 65 when a file has
    /// changed since it was added; 74.
    pub fn bytes_from(
        &self,
        next: usize,
        messages: &Messages,
        row: &Row,
        file: &Path,
    ) -> Result<Vec<(usize, Vec<u8>)>> {
        let texts = references(messages).unwrap_or_default();
        let mut found = Vec::new();
        for (number, (text, named)) in texts.iter().zip(self.of(messages, row, file)?).enumerate() {
            if named.own.image < next {
                continue;
            }
            let own = Reference::parse(text, folder_of(file), number).map_err(Error::data)?;
            let bytes = own.bytes()?;
            if self.by_hash.get(&blake3::hash(&bytes)) != Some(&named.own.image) {
                let what = format!("{} was changed while it was read; import it again", named.name);
                return Err(at_line(file, row.line, what));
            }
            found.push((named.own.image, bytes.into_owned()));
        }
        Ok(found)
    }
}
