//! Site files: cluster-specific settings, one `NAME=VALUE` per line, for the environment of `sbatch` and of the job.
//! Empty lines and lines that begin with `#` are skipped. Nothing is expanded or executed. A name that neither sbatch
//! nor longhaul reads but that looks like a typo is an error, because the job would run elsewhere or with other
//! settings.

mod names;

use std::path::Path;

use crate::{Error, Result, secrets, small};

/// Maximum size of a site file in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a site file. Errors: 66; 78, with file and line, for a line that is not `NAME=VALUE`, a misspelt name, or a
/// value that the job could not use.
pub fn read(path: &Path) -> Result<Vec<(String, String)>> {
    let text = small::read(path, MAX_BYTES)?;
    let text = String::from_utf8(text)
        .map_err(|cause| Error::config(format!("{}: {cause}", path.display())))?;
    let mut variables = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let variable =
            line.split_once('=').map(|(name, value)| (name.trim_end(), value.trim_start()));
        let place = || format!("{}:{}", path.display(), number + 1);
        let Some((name, value)) =
            variable.filter(|(name, value)| is_name(name) && !value.contains('\0'))
        else {
            // Do not show the line, which may contain a secret.
            let what = "expected NAME=VALUE, without export or quotes around it";
            return Err(Error::config(format!("{}: {what}", place())));
        };
        secrets::register(name, value);
        if let Some(problem) = names::problem(name, value) {
            return Err(Error::config(format!("{}: {problem}", place())));
        }
        variables.push((name.into(), value.into()));
    }
    Ok(variables)
}

/// Returns the variables of this process that a site file could have set for sbatch or longhaul, for a later submission
/// from an empty environment. Other variables are not read, because they may contain secrets.
pub fn exported() -> Vec<(String, String)> {
    let value = |name: String| std::env::var(&name).ok().map(|value| (name, value));
    names::known().filter_map(value).collect()
}

fn is_name(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().all(is_word) && text.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    #[test]
    fn names_and_values_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site");
        std::fs::write(&path, "# us\n\nSBATCH_ACCOUNT=a b=c\n  X_1 = $HOME `id`\nEMPTY=\n")
            .unwrap();
        let pair = |name: &str, value: &str| (name.to_string(), value.to_string());
        let expected =
            [pair("SBATCH_ACCOUNT", "a b=c"), pair("X_1", "$HOME `id`"), pair("EMPTY", "")];
        assert_eq!(read(&path).unwrap(), expected);
        for (text, line) in [
            ("A=1\nexport B=2\n", 2),
            ("=1", 1),
            ("1A=2", 1),
            ("module load x", 1),
            ("A=1\n\nSBATCH_PARTITON=main\n", 3),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert_eq!(error.exit, Exit::Config);
            assert!(error.to_string().contains(&format!("site:{line}: ")), "{error}");
        }
        assert_eq!(read(&folder.path().join("none")).unwrap_err().exit, Exit::NoInput);
    }
}
