//! On-disk cache of compiled kernels, so that a thousand processes need not compile.
//!
//! A file name contains the source's name, the dtype, the architecture, a hash of everything that determines the result
//! (the source's text, the headers that it includes, the options) and the release of NVRTC. Entries are therefore never
//! out of date, and a machine without NVRTC can use entries compiled on another machine. The folder is
//! `$LONGHAUL_KERNEL_CACHE`, else `$XDG_CACHE_HOME/longhaul/kernels`, else `~/.cache/longhaul/kernels`. An unusable
//! cache costs time but never fails a run; it causes a single warning.

mod folder;

pub use folder::Folder;

use super::compile;
use super::{SOURCES, Source};
use crate::dtype::Dtype;
use rayon::prelude::*;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};
use unix::{Error, Exit, Result};

/// Maximum total size in bytes, enough for every kernel on a dozen architectures.
const BOUND: u64 = 256 << 20;

/// Machine code and its origin.
#[derive(Debug)]
pub struct Cubin {
    /// The cubin that the driver loads.
    pub bytes: Vec<u8>,
    /// Whether it was compiled rather than found in the cache.
    pub compiled: bool,
}

/// Returns the machine code of a source from the cache, or compiles and caches it. Errors: it is not in the cache and
/// cannot be compiled.
pub fn cubin(source: &Source, element: Dtype, architecture: &str) -> Result<Cubin> {
    static WARNED: Once = Once::new();
    let cache = match users() {
        Ok(cache) => Some(cache),
        Err(why) => {
            WARNED.call_once(|| unix::warn!("{why}; kernels are compiled at every start"));
            None
        }
    };
    let (cubin, written) = cubin_in(cache, source, element, architecture)?;
    if let Err(why) = written {
        WARNED
            .call_once(|| unix::warn!("kernel cache: {why}; kernels are compiled at every start"));
    }
    Ok(cubin)
}

/// Fills the cache for the architectures, on all cores, and returns how many cubins were compiled; the others were
/// already cached. `step` is called after each cubin. Errors: no NVRTC; the cache cannot be written; an architecture is
/// unknown.
pub fn warm(architectures: &[String], step: impl Fn() + Sync) -> Result<usize> {
    architectures.iter().try_for_each(|name| compile::check_architecture(name))?;
    compile::version()?;
    let cache = users()?;
    let units = units(architectures);
    let compiled = units.par_iter().map(|(source, element, architecture)| {
        let (cubin, written) = cubin_in(Some(cache), source, *element, architecture)?;
        written?;
        step();
        Ok(usize::from(cubin.compiled))
    });
    compiled.sum()
}

/// Lists what [`warm`] compiles: each source for each of its dtypes and each architecture that supports its
/// instructions.
pub fn units(architectures: &[String]) -> Vec<(&'static Source, Dtype, &str)> {
    let sources = SOURCES.iter().flat_map(|source| source.dtypes.iter().map(|e| (*source, *e)));
    let all = sources.flat_map(|(s, e)| architectures.iter().map(move |a| (s, e, a.as_str())));
    all.filter(|(source, _, name)| source.only.is_none_or(|only| only == *name)).collect()
}

/// Like [`cubin`], with an explicit cache; also returns whether the cache could be written.
pub fn cubin_in(
    cache: Option<&Folder>,
    source: &Source,
    element: Dtype,
    architecture: &str,
) -> Result<(Cubin, Result<()>)> {
    let stem = stem(source, element, architecture)?;
    let version = match compile::release() {
        Ok(version) => version,
        // Machine code from any version is correct; only speed and last bits may differ.
        Err(none) => {
            let bytes = cache.and_then(|cache| cache.read_any(&stem));
            return bytes.map(|bytes| (Cubin { bytes, compiled: false }, Ok(()))).ok_or(none);
        }
    };
    let name = format!("{stem}{version}");
    if let Some(bytes) = cache.and_then(|cache| cache.read(&name)) {
        return Ok((Cubin { bytes, compiled: false }, Ok(())));
    }
    let bytes = compile::compile(source, element, architecture)?.cubin;
    let written = cache.map_or(Ok(()), |cache| cache.write(&name, &bytes));
    Ok((Cubin { bytes, compiled: true }, written))
}

/// Returns the name of a cache file without the NVRTC version; equal compiler inputs give equal names. Errors:
/// LONGHAUL_KERNEL_SOURCES cannot be read.
pub fn stem(source: &Source, element: Dtype, architecture: &str) -> Result<String> {
    let mut hasher = blake3::Hasher::new();
    let options = compile::options(element, architecture);
    let texts = compile::texts_of(source)?;
    let headers = texts.headers.iter().flat_map(|(name, text)| [name.as_str(), *text]);
    for text in headers.chain([texts.text]).chain(options.iter().map(String::as_str)) {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    Ok(format!("{}-{element}-{architecture}-{}-nvrtc", source.name, &hash[..32]))
}

/// Returns the cache folder of this user, opened once. Errors: it cannot be used.
fn users() -> Result<&'static Folder> {
    static FOLDER: OnceLock<Result<Folder>> = OnceLock::new();
    let opened = FOLDER.get_or_init(|| {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let path = set("LONGHAUL_KERNEL_CACHE")
            .or_else(|| set("XDG_CACHE_HOME").map(|graph_pool| graph_pool.join("longhaul/kernels")))
            .or_else(|| set("HOME").map(|graph_pool| graph_pool.join(".cache/longhaul/kernels")));
        let none =
            || Error::new(Exit::CannotCreate, "kernel cache: LONGHAUL_KERNEL_CACHE is not set");
        Folder::open(&path.ok_or_else(none)?, BOUND)
    });
    opened.as_ref().map_err(|why| Error::new(why.exit, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: Source =
        Source { name: "scale", text: "text", dtypes: &[Dtype::F32], only: None };

    #[test]
    fn whatever_decides_the_result_is_in_the_name() {
        let other = Source { name: "scale", text: "text ", dtypes: &[Dtype::F32], only: None };
        let of = |source, dtype, architecture| stem(source, dtype, architecture).unwrap();
        let mut names = vec![
            of(&SOURCE, Dtype::F32, "sm_80"),
            of(&SOURCE, Dtype::Bf16, "sm_80"),
            of(&SOURCE, Dtype::F32, "sm_90a"),
            of(&other, Dtype::F32, "sm_80"),
        ];
        assert!(names[0].starts_with("scale-f32-sm_80-"), "{}", names[0]);
        names.dedup();
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], of(&SOURCE, Dtype::F32, "sm_80"));
    }
}
