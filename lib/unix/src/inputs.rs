//! Lists of input files on a command line.

use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use crate::{Error, Exit, Result};

/// The files as given, with `-` replaced by the names on stdin, one a line; empty lines are skipped.
/// Errors: 2 when `-` is given twice or nothing is left, 74 when stdin cannot be read.
pub fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut stdin = Some(io::stdin());
    for path in given {
        if path != Path::new("-") {
            files.push(path.clone());
            continue;
        }
        let Some(stdin) = stdin.take() else {
            return Err(Error::usage("`-` is given twice; stdin can be read once"));
        };
        files.extend(names(stdin.lock())?);
    }
    if files.is_empty() {
        return Err(Error::usage("no files: name them, or give their names on stdin"));
    }
    Ok(files)
}

fn names(reader: impl BufRead) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for line in reader.lines() {
        let line = line.map_err(|cause| {
            Error::new(Exit::Io, format!("cannot read file names from stdin: {cause}"))
        })?;
        if !line.is_empty() {
            names.push(line.into());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_line() {
        let found = names("a.h5\n\nwith blank.h5\r\nlast".as_bytes()).unwrap();
        assert_eq!(found, ["a.h5", "with blank.h5", "last"].map(PathBuf::from));
        assert_eq!(names(&b"\xff\n"[..]).unwrap_err().exit, Exit::Io);
    }

    #[test]
    fn no_files_is_a_usage_error() {
        assert_eq!(files(&[]).unwrap_err().exit, Exit::Usage);
    }
}
