//! A folder of images with their texts: `page.md` is the answer to `page.png`.

use super::columns::{Columns, cell};
use super::rows::Row;
use crate::images::{DecodeOptions, count_pages, read};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use unix::{Error, Result, small};

/// Endings of images, in lower case.
const IMAGES: [&str; 5] = ["png", "jpg", "jpeg", "tif", "tiff"];
/// The ending of answers.
const ANSWERS: &str = "md";
/// Maximum size of an answer in bytes.
const MAX_ANSWER: u64 = 16 << 20;
/// Maximum depth of folders in folders.
const MAX_DEPTH: usize = 16;

/// Whether a folder holds images, in itself or in folders in it.
pub fn has_images(folder: &Path) -> bool {
    // The folders of Zarr hold chunks.
    !has_ending(folder, &["zarr"])
        && list(folder)
            .is_ok_and(|found| found.values().any(|own| own.iter().any(|path| is_image(path))))
}

/// The columns of a folder of images: the file without its ending is the id, and the folder that it is in the group, unless that is
/// the whole.
pub fn columns() -> Columns {
    let name = |name: &str| Some(name.to_string());
    Columns {
        image: name("image"),
        completion: name("answer"),
        id: name("id"),
        group: name("group"),
        ..Columns::default()
    }
}

/// Reads the images of a folder in alphabetical order.
pub struct FolderRows {
    root: PathBuf,
    left: std::vec::IntoIter<[PathBuf; 2]>,
    line: u64,
    hasher: blake3::Hasher,
    /// Images without an answer, answers without an image, and what else is in the folder.
    pub unpaired: [usize; 3],
}

impl FolderRows {
    /// Lists a folder. Errors: 65 for two images with one answer; 66; 74.
    pub fn open(root: &Path) -> Result<Self> {
        let (mut pairs, mut unpaired) = (Vec::new(), [0; 3]);
        for (_, own) in list(root)? {
            let images: Vec<&PathBuf> = own.iter().filter(|path| is_image(path)).collect();
            let answers: Vec<&PathBuf> =
                own.iter().filter(|path| has_ending(path, &[ANSWERS])).collect();
            unpaired[2] += own.len() - images.len() - answers.len();
            match (&images[..], &answers[..]) {
                ([image], [answer]) => pairs.push([(*image).clone(), (*answer).clone()]),
                ([first, second, ..], [answer, ..]) => {
                    return Err(Error::data(format!(
                        "{}: the answer to {} or to {}? Rename one of the images",
                        answer.display(),
                        first.display(),
                        second.display()
                    )));
                }
                (images, answers) => {
                    unpaired[0] += images.len();
                    unpaired[1] += answers.len();
                }
            }
        }
        let left = pairs.into_iter();
        Ok(Self { root: root.into(), left, line: 0, hasher: blake3::Hasher::new(), unpaired })
    }

    /// Reads the next image, whose line is its number, from 1. Errors: 65 for an answer that is not UTF-8; 74.
    pub fn next(&mut self) -> Result<Option<Row>> {
        let Some([image, answer]) = self.left.next() else { return Ok(None) };
        self.line += 1;
        let size = small::require_file(&answer)?;
        if size > MAX_ANSWER {
            let what =
                format!("{}: {size} bytes, more than {MAX_ANSWER} for an answer", answer.display());
            return Err(Error::data(what));
        }
        let text = fs::read(&answer).map_err(|cause| Error::io(&answer, cause))?;
        let bad =
            |_| Error::data(format!("{}: not valid UTF-8; convert the file", answer.display()));
        let text = String::from_utf8(text).map_err(bad)?;
        let image = image.strip_prefix(&self.root).unwrap_or(&image).to_path_buf();
        let mut row = Row { line: self.line, cells: Default::default() };
        let text_of = |path: &Path| path.to_string_lossy().into_owned();
        row.cells[cell::IMAGE] = pages(&self.root, &image).join("\n");
        row.cells[cell::ID] = text_of(&image.with_extension(""));
        row.cells[cell::GROUP] = image.parent().map(text_of).unwrap_or_default();
        row.cells[1] = text.trim_end().into();
        for own in [&row.cells[cell::IMAGE], &row.cells[1]] {
            self.hasher.update(&(own.len() as u64).to_le_bytes()).update(own.as_bytes());
        }
        Ok(Some(row))
    }

    /// The hash of the names and answers read so far.
    pub fn hash(&self) -> String {
        self.hasher.finalize().to_hex().to_string()
    }
}

/// The pages of an image, relative to `root`: `FILE#N` for each page of a TIFF file with several.
pub fn pages(root: &Path, image: &Path) -> Vec<String> {
    let name = image.to_string_lossy();
    let path = root.join(image);
    let count = match has_ending(image, &["tif", "tiff"]) {
        // A file that cannot be read is reported when it is decoded.
        true => read(&path, &DecodeOptions::default())
            .and_then(|bytes| count_pages(&name, &bytes))
            .unwrap_or(1),
        false => 1,
    };
    match count {
        1 => vec![name.into()],
        count => (0..count).map(|page| format!("{name}#{page}")).collect(),
    }
}

/// The images of a folder and of the folders in it, relative to it, in alphabetical order. Errors: 66, 74.
pub fn images(root: &Path) -> Result<Vec<PathBuf>> {
    let all = list(root)?.into_values().flatten().filter(|path| is_image(path));
    Ok(all.map(|path| path.strip_prefix(root).map(PathBuf::from).unwrap_or(path)).collect())
}

fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let own = path.extension().and_then(|own| own.to_str()).unwrap_or_default();
    endings.iter().any(|ending| own.eq_ignore_ascii_case(ending))
}

pub fn is_image(path: &Path) -> bool {
    has_ending(path, &IMAGES)
}

/// The files of a folder and the folders in it by path without ending; hidden ones are left out.
fn list(root: &Path) -> Result<BTreeMap<PathBuf, Vec<PathBuf>>> {
    let mut found: BTreeMap<PathBuf, Vec<PathBuf>> = BTreeMap::new();
    let mut folders = vec![(root.to_path_buf(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(|cause| Error::open(&folder, cause))?;
        for entry in entries {
            let path = entry.map_err(|cause| Error::io(&folder, cause))?.path();
            let is_hidden =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if is_hidden {
                continue;
            }
            match path.is_dir() {
                true if depth < MAX_DEPTH => folders.push((path, depth + 1)),
                true => return Err(Error::data(format!("{}: folders too deep", path.display()))),
                false => found.entry(path.with_extension("")).or_default().push(path),
            }
        }
    }
    found.values_mut().for_each(|own| own.sort());
    Ok(found)
}
