//! Source texts to compile: the texts embedded in this program or, if LONGHAUL_KERNEL_SOURCES names a folder, its files
//! of the same name. This allows changing kernels on machines where the program cannot be built.

use super::super::{SOURCES, Source};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use unix::{Error, Result};

/// The environment variable that names a folder with sources; its subfolders are searched too.
const VARIABLE: &str = "LONGHAUL_KERNEL_SOURCES";

/// The headers that a source may include: the files of `kernel/include`.
pub const HEADERS: &[(&str, &str)] = &[
    ("activation.cuh", include_str!("../include/activation.cuh")),
    ("async.cuh", include_str!("../include/async.cuh")),
    ("attention.cuh", include_str!("../include/attention.cuh")),
    ("attention_f32.cuh", include_str!("../include/attention_f32.cuh")),
    ("attention_half.cuh", include_str!("../include/attention_half.cuh")),
    ("attention_scores.cuh", include_str!("../include/attention_scores.cuh")),
    ("attention_wgmma.cuh", include_str!("../include/attention_wgmma.cuh")),
    ("choice.cuh", include_str!("../include/choice.cuh")),
    ("conv.cuh", include_str!("../include/conv.cuh")),
    ("decision.cuh", include_str!("../include/decision.cuh")),
    ("divide.cuh", include_str!("../include/divide.cuh")),
    ("dropout.cuh", include_str!("../include/dropout.cuh")),
    ("element.cuh", include_str!("../include/element.cuh")),
    ("flat.cuh", include_str!("../include/flat.cuh")),
    ("gather.cuh", include_str!("../include/gather.cuh")),
    ("hopper.cuh", include_str!("../include/hopper.cuh")),
    ("logits.cuh", include_str!("../include/logits.cuh")),
    ("mma.cuh", include_str!("../include/mma.cuh")),
    ("philox.cuh", include_str!("../include/philox.cuh")),
    ("product.cuh", include_str!("../include/product.cuh")),
    ("product_fragment.cuh", include_str!("../include/product_fragment.cuh")),
    ("product_kernel.cuh", include_str!("../include/product_kernel.cuh")),
    ("product_wgmma.cuh", include_str!("../include/product_wgmma.cuh")),
    ("rows.cuh", include_str!("../include/rows.cuh")),
    ("streams.cuh", include_str!("../include/streams.cuh")),
    ("table.cuh", include_str!("../include/table.cuh")),
    ("team.cuh", include_str!("../include/team.cuh")),
    ("tile.cuh", include_str!("../include/tile.cuh")),
    ("total.cuh", include_str!("../include/total.cuh")),
    ("warp.cuh", include_str!("../include/warp.cuh")),
];

/// The text of a source, and the names and texts of the headers that it includes directly or indirectly.
#[derive(Debug)]
pub(in super::super) struct Texts {
    pub text: &'static str,
    pub headers: Vec<(String, &'static str)>,
}

/// Returns the texts of a source. Errors: LONGHAUL_KERNEL_SOURCES cannot be read.
pub(in super::super) fn texts_of(source: &Source) -> Result<Texts> {
    Ok(texts(source, folder()?))
}

fn texts(source: &Source, files: &'static Files) -> Texts {
    let text = files.get(&format!("{}.cu", source.name)).map_or(source.text, String::as_str);
    Texts { text, headers: headers_of(text, files) }
}

/// Returns the names and texts of the headers that a text includes directly or indirectly.
fn headers_of(text: &str, files: &'static Files) -> Vec<(String, &'static str)> {
    let mut found: BTreeMap<String, &'static str> = BTreeMap::new();
    let mut open = included(text);
    while let Some(name) = open.pop() {
        let known = HEADERS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let Some(text) = files.get(&name).map(String::as_str).or(known) else { continue };
        if let Entry::Vacant(free) = found.entry(name) {
            open.extend(included(text));
            free.insert(text);
        }
    }
    found.into_iter().collect()
}

/// Returns the quoted names in the include directives of a text.
fn included(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("#include"));
    lines.filter_map(|rest| Some(rest.split('"').nth(1)?.to_string())).collect()
}

/// Texts by file name.
type Files = BTreeMap<String, String>;

/// Returns the files of LONGHAUL_KERNEL_SOURCES, read once per process; warns if they differ from the embedded files.
fn folder() -> Result<&'static Files> {
    static READ: OnceLock<Result<Files>> = OnceLock::new();
    let read = READ.get_or_init(|| {
        let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) else {
            return Ok(Files::new());
        };
        let folder = PathBuf::from(folder);
        let files = read(&folder)?;
        let other = different(&files);
        if !other.is_empty() {
            unix::warn!(
                "{VARIABLE}={}: kernels are compiled with its {}",
                folder.display(),
                other.join(", ")
            );
        }
        Ok(files)
    });
    read.as_ref().map_err(|why| Error::new(why.exit, why))
}

/// Returns the names of files that differ from the embedded files or are not embedded at all.
fn different(files: &Files) -> Vec<&str> {
    let own = |name: &str| {
        let header = HEADERS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        let stem = name.strip_suffix(".cu");
        header.or(SOURCES.iter().find(|s| Some(s.name) == stem).map(|s| s.text))
    };
    let names = files.iter().filter(|(name, text)| own(name) != Some(text.as_str()));
    names.map(|(name, _)| name.as_str()).collect()
}

/// Reads all files NAME.cu and NAME.cuh in a folder and its subfolders. Errors: the folder or a file cannot be read;
/// there is no such file, or two have the same name.
fn read(folder: &Path) -> Result<Files> {
    let (mut files, mut places) = (Files::new(), BTreeMap::new());
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        let entries = fs::read_dir(&folder).map_err(|cause| Error::open(&folder, cause))?;
        for entry in entries {
            let entry = entry.map_err(|cause| Error::open(&folder, cause))?;
            let path = entry.path();
            if entry.file_type().map_err(|cause| Error::open(&path, cause))?.is_dir() {
                open.push(path);
                continue;
            }
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".cu") && !name.ends_with(".cuh") {
                continue;
            }
            let text = fs::read_to_string(&path).map_err(|cause| Error::open(&path, cause))?;
            if let Some(other) = places.insert(name.clone(), path.clone()) {
                let (one, two) = (path.display(), other.display());
                return Err(Error::usage(format!(
                    "{VARIABLE}={}: {one} and {two} have the same name; remove one of them",
                    folder.display()
                )));
            }
            files.insert(name, text);
        }
    }
    if files.is_empty() {
        return Err(Error::usage(format!(
            "{VARIABLE}={}: no file NAME.cu or NAME.cuh in this folder",
            folder.display()
        )));
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;

    fn leaked(files: &[(&str, &str)]) -> &'static Files {
        let files = files.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        Box::leak(Box::new(files.collect()))
    }

    #[test]
    fn headers_are_found_through_others() {
        let names = |text| {
            let found = headers_of(text, leaked(&[]));
            found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names("int x; // table.cuh"), [""; 0]);
        assert_eq!(names("  #include \"element.cuh\"\n#include <cmath>"), ["element.cuh"]);
        let rows = names("#include \"rows.cuh\"");
        assert!(rows.iter().any(|name| name == "element.cuh"), "{rows:?}");
        assert!(rows.iter().any(|name| name == "rows.cuh"), "{rows:?}");
        assert!(rows.is_sorted() && !rows.iter().any(|name| name == "product.cuh"), "{rows:?}");
    }

    #[test]
    fn every_header_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/kernel/include");
        let mut there: Vec<String> = fs::read_dir(folder)
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        there.sort();
        let embedded: Vec<&str> = HEADERS.iter().map(|(name, _)| *name).collect();
        assert_eq!(embedded, there);
    }

    #[test]
    fn files_of_a_folder_replace_those_of_the_program() {
        let source = Source {
            name: "scale",
            text: "#include \"element.cuh\"",
            dtypes: &[Dtype::F32],
            only: None,
        };
        let names = |texts: &Texts| -> Vec<String> {
            texts.headers.iter().map(|(name, _)| name.clone()).collect()
        };
        let own = texts(&source, leaked(&[]));
        assert_eq!((own.text, names(&own)), (source.text, vec!["element.cuh".to_string()]));
        // A header that is not embedded, included by a header that replaces an embedded one.
        let files = [("element.cuh", "#include \"new.cuh\""), ("new.cuh", "int x;")];
        let other = texts(&source, leaked(&files));
        assert_eq!(names(&other), ["element.cuh", "new.cuh"]);
        assert_eq!(other.headers[1].1, "int x;");
        let replaced = texts(&source, leaked(&[("scale.cu", "int y;"), ("other.cu", "")]));
        assert_eq!((replaced.text, names(&replaced).len()), ("int y;", 0));
    }

    #[test]
    fn a_folder_is_read_with_its_subfolders() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let files = read(&here).unwrap();
        assert!(files.len() >= SOURCES.len() + HEADERS.len());
        assert_eq!(different(&files), [""; 0], "the texts of this program");
        let folder = tempfile::tempdir().unwrap();
        let says = |expected: &str| {
            let error = read(folder.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        says("no file NAME.cu");
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/scale.cu"), "int x;").unwrap();
        let files = read(folder.path()).unwrap();
        assert_eq!(different(&files), ["scale.cu"]);
        fs::write(folder.path().join("scale.cu"), "int x;").unwrap();
        says("have the same name");
        fs::write(folder.path().join("scale.cu"), b"\xff").unwrap();
        says("scale.cu");
    }
}
