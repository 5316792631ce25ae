//! Data sets of pages: PNG files, and a list of them with their answers.

use super::{Options, Preset, ROW_HEIGHT, WIDTH, page, png};
use rayon::prelude::*;
use serde::Serialize;
use std::fs;
use std::path::Path;
use unix::publish::{REAL, create_folder, publish_bytes};
use unix::space::{ensure_files, ensure_space};
use unix::{Error, Result};

/// The list: a line of JSON for each page, with `id`, `image` (a path relative to the list), `answer` and `group`.
pub const LIST: &str = "pages.jsonl";
/// The columns of the list, for `ds-prep import`.
pub const COLUMNS: (&str, &str) = (
    "columns.yaml",
    "# For ds-prep import\nimage: image\ncompletion: answer\nid: id\ngroup: group\ninstruction: Read.\n",
);
/// The folder with the images, in sub-folders.
pub const IMAGES: &str = "images";
/// Largest number of images in a sub-folder.
const PER_FOLDER: u64 = 1000;

/// A data set of pages. Equal values give equal files. File names depend only on the index, so that further pages of a
/// seed have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The appearance.
    pub preset: Preset,
    /// The seed.
    pub seed: u64,
    /// Index of the first page.
    pub first: u64,
    /// Number of pages.
    pub samples: u64,
    /// Options of each page.
    pub options: Options,
}

/// A line of the list.
#[derive(Serialize)]
struct Line<'a> {
    id: String,
    image: String,
    answer: &'a str,
    group: &'a str,
}

impl Pages {
    /// Writes [`IMAGES`], [`COLUMNS`] and [`LIST`] into a folder on the threads of the current rayon pool. Creates the folder if it
    /// does not exist. `done` is called after each page; its error ends the work. The images appear at once, when all
    /// are written, and the list after them. Errors: 2 if indices exceed 64 bits; 73 if the images exist, or there is
    /// too little space; 74; those of `done`.
    pub fn write(&self, folder: &Path, done: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let end = self.first.checked_add(self.samples).ok_or_else(|| {
            let Self { first, samples, .. } = self;
            Error::usage(format!(
                "{samples} pages from index {first}: indices end at {}; begin at a smaller one",
                u64::MAX
            ))
        })?;
        let images = folder.join(IMAGES);
        ensure_files(&images, self.samples.saturating_add(self.samples / PER_FOLDER))?;
        // Compressed pages are smaller than their pixels.
        let largest = (WIDTH * ROW_HEIGHT * self.options.most_rows) as u64;
        ensure_space(&images, self.samples.saturating_mul(largest))?;
        create_folder(folder)?;
        let lines = REAL.folder(&images, |inside| {
            let mut lines = Vec::new();
            let mut from = self.first;
            while from < end {
                let to = (from / PER_FOLDER + 1).saturating_mul(PER_FOLDER).min(end);
                let folder = subfolder(from);
                let made = fs::create_dir(inside.join(&folder));
                made.map_err(|cause| Error::create(&images.join(&folder), cause))?;
                let own = (from..to).into_par_iter().map(|index| {
                    let line = self.write_page(index, inside, &images)?;
                    done().map(|()| line)
                });
                lines.append(&mut own.collect::<Result<Vec<_>>>()?.concat());
                from = to;
            }
            Ok(lines)
        })?;
        publish_bytes(&folder.join(COLUMNS.0), COLUMNS.1.as_bytes())?;
        publish_bytes(&folder.join(LIST), &lines)
    }

    /// Writes an image into the folder `inside`, which is published as `images`, and returns the line of the page.
    fn write_page(&self, index: u64, inside: &Path, images: &Path) -> Result<Vec<u8>> {
        let page = page(self.preset, self.seed, index, &self.options);
        let name = format!("{}/{index:07}.png", subfolder(index));
        let written = fs::write(inside.join(&name), png(&page)?);
        written.map_err(|cause| Error::io(&images.join(&name), cause))?;
        let line = Line {
            id: format!("{}-{index:07}", self.preset),
            image: format!("{IMAGES}/{name}"),
            answer: &page.answer,
            group: &page.group,
        };
        let mut bytes = serde_json::to_vec(&line).map_err(Error::bug)?;
        bytes.push(b'\n');
        Ok(bytes)
    }
}

/// Returns the name of the sub-folder of a page.
fn subfolder(index: u64) -> String {
    format!("{:04}", index / PER_FOLDER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    const PAGES: Pages = Pages {
        preset: Preset::Clean,
        seed: 5,
        first: 995,
        samples: 10,
        options: Options { least_rows: 1, most_rows: 2 },
    };

    /// The content of every file below a folder.
    fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_path_buf()]);
        while let Some(own) = folders.pop() {
            for entry in fs::read_dir(own).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let name = path.strip_prefix(folder).unwrap().to_path_buf();
                    found.insert(name, fs::read(path).unwrap());
                }
            }
        }
        found
    }

    /// Writes pages on this many threads and returns the files.
    fn written(pages: Pages, threads: usize) -> BTreeMap<PathBuf, Vec<u8>> {
        let folder = tempfile::tempdir().unwrap();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| pages.write(folder.path(), &|| Ok(()))).unwrap();
        files(folder.path())
    }

    #[test]
    fn files_depend_on_index_and_seed_but_not_on_threads() {
        let all = written(PAGES, 1);
        assert_eq!(all, written(PAGES, 4));
        let names: Vec<&str> = all.keys().map(|name| name.to_str().unwrap()).collect();
        let image = |index| format!("images/{:04}/{index:07}.png", index / 1000);
        let expected: Vec<String> = (995..1005).map(image).collect();
        assert_eq!(names[1..11], expected);
        assert_eq!([names[0], names[11]], [COLUMNS.0, LIST]);
        let part = written(Pages { first: 999, samples: 3, ..PAGES }, 2);
        for (name, content) in &part {
            let same = &all[name];
            assert!(content == same || name == Path::new(LIST), "{name:?}");
        }
        let list = String::from_utf8(all[Path::new(LIST)].clone()).unwrap();
        let lines: Vec<&str> = list.split_inclusive('\n').collect();
        assert_eq!(lines[4..7].concat().as_bytes(), part[Path::new(LIST)]);
        for (index, line) in (995..1005).zip(lines) {
            let page = page(Preset::Clean, 5, index, &PAGES.options);
            let id = format!("clean-{index:07}");
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let expected = serde_json::json!({
                "id": id, "image": image(index), "answer": page.answer, "group": page.group,
            });
            assert_eq!(line, expected);
        }
        let other = written(Pages { seed: 6, ..PAGES }, 2);
        let mut others = other.iter().filter(|(name, _)| *name != Path::new(COLUMNS.0));
        assert!(others.all(|(name, content)| all[name] != *content));
    }

    #[test]
    fn an_interrupted_run_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let count = AtomicU64::new(0);
        let stop = || match count.fetch_add(1, Ordering::Relaxed) {
            7 => Err(Error::new(unix::Exit::Again, "stopped")),
            _ => Ok(()),
        };
        let error = PAGES.write(folder.path(), &stop).unwrap_err();
        assert_eq!(error.exit, unix::Exit::Again);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Images without a list are those of a run that was killed; they are not overwritten.
        fs::create_dir(folder.path().join(IMAGES)).unwrap();
        let error = PAGES.write(folder.path(), &|| Ok(())).unwrap_err();
        assert_eq!(error.exit, unix::Exit::CannotCreate);
        assert!(!folder.path().join(LIST).exists());
    }

    #[test]
    fn numbers_that_are_too_large_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        for (first, samples, exit) in
            [(2, u64::MAX, unix::Exit::Usage), (0, 1 << 50, unix::Exit::CannotCreate)]
        {
            let error = Pages { first, samples, ..PAGES }.write(folder.path(), &|| Ok(()));
            assert_eq!(error.unwrap_err().exit, exit);
        }
        let last = Pages { first: u64::MAX - 2, samples: 2, ..PAGES };
        assert_eq!(written(last, 1).len(), 4);
    }
}
