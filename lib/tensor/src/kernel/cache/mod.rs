//! Compiled kernels on disk, so that a thousand processes need not compile.
//!
//! A file is named after its source, element type, architecture, a hash of all that decides the result
//! (text, headers, options) and the version of NVRTC. So nothing is ever out of date, and a machine
//! without NVRTC runs on what another one compiled. The folder is `$LONGHAUL_KERNEL_CACHE`, else
//! `$XDG_CACHE_HOME/longhaul/kernels`, else `~/.cache/longhaul/kernels`. A cache that cannot be used
//! costs time, never a run: it is warned of once.

mod folder;

pub use folder::Folder;

use super::Source;
use super::compile::{self, HEADERS};
use crate::dtype::Dtype;
use std::path::PathBuf;
use std::sync::OnceLock;
use unix::Result;

/// Most bytes of all files together: every kernel for a dozen architectures.
const BOUND: u64 = 256 << 20;

/// Machine code, and where it came from.
#[derive(Debug)]
pub struct Cubin {
    /// What the driver loads.
    pub bytes: Vec<u8>,
    /// Whether it had to be compiled.
    pub compiled: bool,
}

/// The machine code of a source: the cache's, else compiled and cached.
/// Errors: it is not in the cache and cannot be compiled.
pub fn cubin(source: &Source, element: Dtype, architecture: &str) -> Result<Cubin> {
    cubin_in(users(), source, element, architecture)
}

/// As [`cubin`], with the cache given.
pub fn cubin_in(
    cache: Option<&Folder>,
    source: &Source,
    element: Dtype,
    architecture: &str,
) -> Result<Cubin> {
    let stem = stem(source, element, architecture);
    let version = match compile::version() {
        Ok(version) => version,
        // Machine code of any version is right; only its speed and last bits may differ.
        Err(none) => {
            let bytes = cache.and_then(|cache| cache.read_any(&stem));
            return bytes.map(|bytes| Cubin { bytes, compiled: false }).ok_or(none);
        }
    };
    let name = format!("{stem}{version}");
    if let Some(bytes) = cache.and_then(|cache| cache.read(&name)) {
        return Ok(Cubin { bytes, compiled: false });
    }
    let bytes = compile::compile(source, element, architecture)?.cubin;
    if let Some(cache) = cache {
        cache.write(&name, &bytes);
    }
    Ok(Cubin { bytes, compiled: true })
}

/// The name of a file up to the version of NVRTC.
fn stem(source: &Source, element: Dtype, architecture: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    let options = compile::options(element, architecture);
    let headers = HEADERS.iter().flat_map(|(name, text)| [*name, *text]);
    for text in headers.chain([source.text]).chain(options.iter().map(String::as_str)) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    format!("{}-{element}-{architecture}-{}-nvrtc", source.name, &hash[..32])
}

/// The folder of this user; none when it cannot be had, which is warned of.
fn users() -> Option<&'static Folder> {
    static FOLDER: OnceLock<Option<Folder>> = OnceLock::new();
    let opened = FOLDER.get_or_init(|| {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let path = set("LONGHAUL_KERNEL_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|home| home.join("longhaul/kernels")))
            .or_else(|| set("HOME").map(|home| home.join(".cache/longhaul/kernels")))?;
        Folder::open(&path, BOUND)
            .map_err(|why| unix::warn!("{why}; kernels are compiled at every start"))
            .ok()
    });
    opened.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source = Source { name: "scale", text: "text", elements: &[Dtype::F32] };

    #[test]
    fn whatever_decides_the_result_is_in_the_name() {
        let other = Source { name: "scale", text: "text ", elements: &[Dtype::F32] };
        let mut names = vec![
            stem(&SOURCE, Dtype::F32, "sm_80"),
            stem(&SOURCE, Dtype::Bf16, "sm_80"),
            stem(&SOURCE, Dtype::F32, "sm_90a"),
            stem(&other, Dtype::F32, "sm_80"),
        ];
        assert!(names[0].starts_with("scale-f32-sm_80-"), "{}", names[0]);
        names.dedup();
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], stem(&SOURCE, Dtype::F32, "sm_80"));
    }
}
