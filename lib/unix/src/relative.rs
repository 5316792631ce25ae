//! Paths that stay valid when a folder is moved as a whole.

use crate::{Error, Result};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Returns `path` relative to `folder`, without symbolic links, so that both can be moved together. Errors: either does
/// not exist.
pub fn relative(path: &Path, folder: &Path) -> Result<PathBuf> {
    let absolute = |p: &Path| {
        let p = if p.as_os_str().is_empty() { Path::new(".") } else { p };
        fs::canonicalize(p).map_err(|cause| Error::open(p, cause))
    };
    let (path, folder) = (absolute(path)?, absolute(folder)?);
    let common = path.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let up = folder.components().skip(common).map(|_| Component::ParentDir);
    Ok(up.chain(path.components().skip(common)).collect())
}

/// Returns the current location of a file or folder: `relative` to `folder` if it exists there, otherwise `path`.
pub fn located(path: Option<PathBuf>, relative: Option<&Path>, folder: &Path) -> Option<PathBuf> {
    let near = relative.map(|relative| folder.join(relative)).filter(|near| near.exists());
    near.and_then(|near| near.canonicalize().ok()).or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_folder_keeps_its_paths() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("project/runs/codec")).unwrap();
        fs::create_dir_all(at("project/latents")).unwrap();
        let (codec, latents) = (at("project/runs/codec"), at("project/latents"));
        let path = relative(&codec, &latents).unwrap();
        assert_eq!(path, Path::new("../runs/codec"));
        fs::rename(at("project"), at("moved")).unwrap();
        let found = located(Some(codec.clone()), Some(&path), &at("moved/latents"));
        assert_eq!(found, Some(at("moved/runs/codec").canonicalize().unwrap()));
        // It was moved alone, without the codec next to it.
        fs::rename(at("moved/latents"), at("latents")).unwrap();
        assert_eq!(located(Some(codec.clone()), Some(&path), &at("latents")), Some(codec));
        assert!(relative(&at("none"), &at("moved")).is_err());
    }
}
