//! Bindings to NVRTC, the CUDA run-time compiler, which is located and opened once.
//!
//! `cudarc` is not used because it has a fixed list of library names and panics if none is found: it supports neither a
//! folder chosen by the user nor a proper error.

use libloading::{Library, os};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use unix::{Error, Exit, Result};

/// The environment variable that names the NVRTC library or a folder that contains it.
const VARIABLE: &str = "LONGHAUL_NVRTC";
/// Library names for the dynamic loader.
const NAMES: [&str; 3] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Name prefix of the precompiled NVRTC builtins, which NVRTC itself opens only in `compile`.
const BUILTINS: &str = "libnvrtc-builtins.so.";
/// Directory of the checkout into which `make deps` installs NVRTC.
const DEPS: &str = ".deps/nvrtc";
/// The oldest version that the kernels are compiled with in tests (`make nvrtc-versions`).
const OLDEST: (c_int, c_int) = (12, 4);

/// `nvrtcProgram`.
pub(super) type Program = *mut c_void;

macro_rules! functions {
    ($($field:ident = $name:literal: fn($($arg:ty),*) -> $result:ty;)*) => {
        /// The NVRTC functions as declared in its header; `c_int` is `nvrtcResult`, 0 for success.
        #[derive(Debug)]
        pub(super) struct Functions { $(pub $field: unsafe extern "C" fn($($arg),*) -> $result,)* }

        impl Functions {
            /// Looks up the functions. Errors: a function is missing (the error names it).
            fn of(library: &'static Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types match the header, unchanged since CUDA 11.
                unsafe { Ok(Self { $($field: *library.get($name)?,)* }) }
            }
        }
    };
}

functions! {
    version = "nvrtcVersion": fn(*mut c_int, *mut c_int) -> c_int;
    supported_count = "nvrtcGetNumSupportedArchs": fn(*mut c_int) -> c_int;
    supported = "nvrtcGetSupportedArchs": fn(*mut c_int) -> c_int;
    error_string = "nvrtcGetErrorString": fn(c_int) -> *const c_char;
    create = "nvrtcCreateProgram": fn(*mut Program, *const c_char, *const c_char, c_int,
        *const *const c_char, *const *const c_char) -> c_int;
    compile = "nvrtcCompileProgram": fn(Program, c_int, *const *const c_char) -> c_int;
    log_size = "nvrtcGetProgramLogSize": fn(Program, *mut usize) -> c_int;
    log = "nvrtcGetProgramLog": fn(Program, *mut c_char) -> c_int;
    cubin_size = "nvrtcGetCUBINSize": fn(Program, *mut usize) -> c_int;
    cubin = "nvrtcGetCUBIN": fn(Program, *mut c_char) -> c_int;
    ptx_size = "nvrtcGetPTXSize": fn(Program, *mut usize) -> c_int;
    ptx = "nvrtcGetPTX": fn(Program, *mut c_char) -> c_int;
    destroy = "nvrtcDestroyProgram": fn(*mut Program) -> c_int;
}

/// The opened compiler.
#[derive(Debug)]
pub(super) struct Nvrtc {
    /// Major and minor CUDA version of the compiler.
    pub version: (c_int, c_int),
    /// Supported compute capabilities, e.g. 90.
    pub capabilities: Vec<c_int>,
    pub functions: Functions,
}

impl Nvrtc {
    /// Returns the compiler, opened once per process. Errors: it was not found; the message lists the searched names.
    pub fn get() -> Result<&'static Nvrtc> {
        static OPENED: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let opened = OPENED.get_or_init(|| find().and_then(Nvrtc::new));
        opened.as_ref().map_err(|why| Error::new(Exit::Failure, why))
    }

    fn new((library, path): (Library, String)) -> Result<Nvrtc, String> {
        // Never closed: its functions are used until the process ends.
        let library: &'static Library = Box::leak(Box::new(library));
        let functions =
            Functions::of(library).map_err(|why| format!("{path} is not NVRTC: {why}"))?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: both write to the integers passed to them.
        let status = unsafe {
            (functions.version)(&mut major, &mut minor) | (functions.supported_count)(&mut count)
        };
        let mut capabilities = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the buffer has the length that NVRTC reported.
        let status = status | unsafe { (functions.supported)(capabilities.as_mut_ptr()) };
        if status != 0 {
            return Err(format!("{path}: NVRTC reports no version; set {VARIABLE} to another"));
        }
        let version = supported(&path, (major, minor))?;
        Ok(Nvrtc { version, capabilities, functions })
    }

    /// Returns the description of an NVRTC result.
    pub fn words(&self, result: c_int) -> String {
        // SAFETY: for any number, returns a string that lives as long as the library.
        let words = unsafe { CStr::from_ptr((self.functions.error_string)(result)) };
        words.to_string_lossy().into_owned()
    }
}

/// Checks the NVRTC version. Errors: it is too old for the kernels.
fn supported(path: &str, version: (c_int, c_int)) -> Result<(c_int, c_int), String> {
    let ((major, minor), (oldest, least)) = (version, OLDEST);
    if version >= OLDEST {
        return Ok(version);
    }
    Err(format!(
        "{path} is NVRTC {major}.{minor}; the kernels require {oldest}.{least} or newer: load a newer CUDA module, or \
         set {VARIABLE} to another"
    ))
}

/// Looks for NVRTC in the place given by the user or, by default, in the loader's search path and the folder of `make
/// deps`. Errors: it was not found.
fn find() -> Result<(Library, String), String> {
    if let Some(place) = std::env::var_os(VARIABLE).filter(|place| !place.is_empty()) {
        let place = PathBuf::from(place);
        let path = if place.is_dir() { inside(&place) } else { Some(place.clone()) };
        let none = || format!("{VARIABLE}={}: the folder has no libnvrtc.so", place.display());
        let path = path.ok_or_else(none)?;
        let opened = open(&path.display().to_string());
        return opened.map_err(|why| format!("{VARIABLE}={}: {why}", place.display()));
    }
    let in_deps = deps().iter().find_map(|folder| inside(folder));
    let paths = NAMES.map(String::from).into_iter().chain(in_deps.map(|p| p.display().to_string()));
    paths.into_iter().find_map(|path| open(&path).ok()).ok_or_else(|| {
        format!(
            "there is no NVRTC, which compiles the kernels (looked for {}): load the CUDA module of this \
             machine, or say with {VARIABLE} where libnvrtc.so is; make deps fetches it into a checkout",
            NAMES.join(", ")
        )
    })
}

fn open(path: &str) -> Result<(Library, String), String> {
    if let Some(folder) = Path::new(path).parent().filter(|folder| !folder.as_os_str().is_empty()) {
        open_builtins(folder);
    }
    // SAFETY: the initializers that run on opening are NVIDIA's, or belong to a library that the user chose.
    let library = unsafe { Library::new(path) };
    library.map(|library| (library, path.to_string())).map_err(|why| why.to_string())
}

/// Opens the builtins in the library's folder. Some versions (13.0) open them by name only, without searching the
/// folder of the library itself, and find builtins that are already loaded.
fn open_builtins(folder: &Path) {
    for path in list(folder) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(BUILTINS) {
            // SAFETY: a part of the library that is opened next, with NVIDIA's initializers.
            let opened = unsafe {
                os::unix::Library::open(Some(&path), os::unix::RTLD_NOW | os::unix::RTLD_GLOBAL)
            };
            // The builtins are never closed. NVRTC itself reports builtins that cannot be opened.
            std::mem::forget(opened);
        }
    }
}

fn list(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// Returns the newest library in a folder, or in a Python package unpacked there.
fn inside(folder: &Path) -> Option<PathBuf> {
    let mut folders = vec![folder.to_path_buf(), folder.join("lib"), folder.join("lib64")];
    folders.extend(list(&folder.join("nvidia")).into_iter().map(|package| package.join("lib")));
    let files = folders.iter().flat_map(|folder| list(folder));
    let named = files.filter(|file| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so"))
    });
    // Compared by file name, not by path, so that .so.13 comes after .so.12.
    named.max_by(|a, b| a.file_name().cmp(&b.file_name()))
}

/// Returns the `make deps` folders of the package that cargo is running and of the build that contains this program.
fn deps() -> Vec<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let of_package = package.iter().flat_map(|package| package.ancestors());
    let program = std::env::current_exe().ok();
    let of_program = program.iter().flat_map(|program| program.ancestors().nth(3));
    let folders = of_package.chain(of_program).map(|folder| folder.join(DEPS));
    folders.filter(|folder| is_trusted(folder)).collect()
}

/// Whether this user or root owns a folder: libraries found without an explicit path must be in such a folder.
fn is_trusted(folder: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(folder).is_ok_and(|folder| [0, user].contains(&folder.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_are_too_old_are_refused() {
        for version in [(12, 4), (12, 9), (13, 0), (14, 0)] {
            assert_eq!(supported("libnvrtc.so", version), Ok(version));
        }
        for version in [(11, 8), (12, 0), (12, 3)] {
            let why = supported("/opt/libnvrtc.so.12", version).unwrap_err();
            let (major, minor) = version;
            for words in
                [&format!("/opt/libnvrtc.so.12 is NVRTC {major}.{minor}; "), "12.4", VARIABLE]
            {
                assert!(why.contains(words), "no {words} in {why}");
            }
        }
    }
}
