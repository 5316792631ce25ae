//! Lists of input files on a command line.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use crate::{Error, Exit, Result, diagnostics};

/// Maximum length in bytes of a file name read from stdin, newline included (PATH_MAX on Linux).
const MAX_NAME: usize = 4096;

/// Returns the given files, with `-` replaced by the names on stdin, one per line; empty lines are skipped. Errors: 2
/// when `-` is given twice or the list is empty, 74 when stdin cannot be read.
pub fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut stdin = Some(io::stdin());
    for path in given {
        if path != Path::new("-") {
            files.push(path.clone());
            continue;
        }
        let Some(stdin) = stdin.take() else {
            return Err(Error::usage("`-` is given twice; stdin can be read only once"));
        };
        files.extend(names(stdin.lock())?);
    }
    if files.is_empty() {
        return Err(Error::usage("no files: name them, or give their names on stdin"));
    }
    Ok(files)
}

/// Calls `what` for each of the given [`files`]. A failure is reported and does not prevent the other calls, unless its
/// status is in `fatal`. Returns the status of the first failure.
pub fn each(
    given: &[PathBuf],
    fatal: &[Exit],
    mut what: impl FnMut(&Path) -> Result<()>,
) -> Result<Exit> {
    let mut first = Exit::Done;
    for path in files(given)? {
        if let Err(error) = what(&path) {
            if fatal.contains(&error.exit) {
                return Err(error);
            }
            diagnostics::say_error(&error);
            first = if first == Exit::Done { error.exit } else { first };
        }
    }
    Ok(first)
}

fn names(mut reader: impl BufRead) -> Result<Vec<PathBuf>> {
    let bad = |cause: &dyn std::fmt::Display| {
        Error::new(Exit::Io, format!("cannot read file names from stdin: {cause}"))
    };
    let (mut names, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let mut limited = reader.by_ref().take(MAX_NAME as u64 + 1);
        limited.read_until(b'\n', &mut line).map_err(|cause| bad(&cause))?;
        if line.is_empty() {
            return Ok(names);
        }
        if line.len() > MAX_NAME {
            return Err(bad(&format_args!("a name is longer than {MAX_NAME} bytes")));
        }
        let name =
            str::from_utf8(&line).map_err(|cause| bad(&cause))?.trim_end_matches(['\n', '\r']);
        if !name.is_empty() {
            names.push(name.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_line() {
        let found = names("a.h5\n\nwith blank.h5\r\nlast".as_bytes()).unwrap();
        assert_eq!(found, ["a.h5", "with blank.h5", "last"].map(PathBuf::from));
        assert_eq!(names(&b"\xff\n"[..]).unwrap_err().exit, Exit::Io);
        let endless = io::BufReader::new(io::repeat(b'a'));
        assert!(names(endless).unwrap_err().to_string().contains("longer than 4096 bytes"));
    }

    #[test]
    fn no_files_is_a_usage_error() {
        assert_eq!(files(&[]).unwrap_err().exit, Exit::Usage);
    }
}
