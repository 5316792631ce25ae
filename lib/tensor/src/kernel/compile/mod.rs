//! Compiles CUDA sources to machine code with NVRTC; requires no CUDA toolkit, no external headers and no GPU.

mod nvrtc;
mod report;
mod signature;
mod sources;

pub use report::Resources;
pub use signature::{most_threads, parameters};
pub use sources::HEADERS;
use sources::Texts;
pub(super) use sources::texts_of;

use super::Source;
use crate::dtype::Dtype;
use nvrtc::{Nvrtc, Program};
use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::OnceLock;
use unix::{Error, Exit, Result};

/// Minimum compute capability: the first with asynchronous copies and bf16 matrix products.
const OLDEST: u32 = 80;

/// Prefix of virtual architectures, for which the result is PTX that the driver compiles.
const VIRTUAL: &str = "compute_";

/// A compiled source.
#[derive(Debug)]
pub struct Compiled {
    /// Machine code (a cubin), or PTX with a final NUL, as the driver loads it.
    pub cubin: Vec<u8>,
    /// Resource use of the kernels, sorted by name; unknown for PTX.
    pub kernels: Vec<Resources>,
    /// Compiler warnings.
    pub warnings: Vec<String>,
}

/// Returns the version of NVRTC, e.g. `13.5`. Errors: NVRTC was not found.
pub fn version() -> Result<String> {
    let (major, minor) = Nvrtc::get()?.version;
    Ok(format!("{major}.{minor}"))
}

/// Returns the version of NVRTC with its release, e.g. `13.5.34`, as written into PTX. Errors: NVRTC was not found.
pub fn release() -> Result<String> {
    static FOUND: OnceLock<Result<String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let nothing = Source { name: "nothing", text: "", dtypes: &[], only: None };
        let nvrtc = Nvrtc::get()?;
        let newest = nvrtc.capabilities.iter().max().copied().unwrap_or(0);
        let unit = Unit::new(nvrtc, &nothing)?;
        unit.compile(&[format!("--gpu-architecture={VIRTUAL}{newest}")])?;
        let ptx = String::from_utf8_lossy(&unit.ptx().unwrap_or_default()).into_owned();
        // "// Cuda compilation tools, release 13.5, V13.5.34".
        let written = ptx.lines().find(|line| line.contains("release")).and_then(|line| {
            let release = line.rsplit(", V").next()?.trim();
            release.starts_with(|c: char| c.is_ascii_digit()).then(|| release.to_string())
        });
        written.map_or_else(version, Ok)
    });
    match found {
        Ok(release) => Ok(release.clone()),
        Err(why) => Err(Error::new(why.exit, why)),
    }
}

/// Returns the architecture that kernels are compiled for on a GPU with compute capability `major`.`minor`: its own
/// architecture if NVRTC supports it; else the nearest older one of its generation, whose machine code it runs; else
/// PTX for the newest older one, which the driver compiles. Without NVRTC, or if NVRTC supports no such architecture,
/// the GPU's own architecture.
pub fn architecture(major: u32, minor: u32) -> String {
    let known = Nvrtc::get().map(|nvrtc| nvrtc.capabilities.clone()).unwrap_or_default();
    let known = known.into_iter().filter_map(|c| u32::try_from(c).ok());
    nearest(known, 10 * major + minor)
}

fn nearest(known: impl Iterator<Item = u32>, capability: u32) -> String {
    let older = known.filter(|c| (OLDEST..=capability).contains(c)).max();
    match older.unwrap_or(capability) {
        // Only Hopper's matrix instructions need the suffix `a`: code compiled with it runs only on that generation,
        // and our kernels need it for no other.
        90 if capability == 90 => "sm_90a".into(),
        nearest if nearest / 10 == capability / 10 => format!("sm_{nearest}"),
        nearest => format!("{VIRTUAL}{nearest}"),
    }
}

/// Returns the compiler options, which together with the source text and its headers fully determine the result.
pub(super) fn options(element: Dtype, architecture: &str) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        format!("--define-macro=ELEMENT_{}=1", element.to_string().to_uppercase()),
    ];
    // Headers come from this program, never from the current directory. NVRTC 12.4 and 13.0 treat a lambda inside a
    // generic lambda as a host function, unless functions without annotations default to the device.
    let always = [
        "--std=c++17",
        "--no-source-include",
        "--device-as-default-execution-space",
        "--ptxas-options=-v",
    ];
    options.extend(always.map(String::from));
    options
}

/// Checks the name of an architecture, such as `sm_80` or `sm_90a`. Errors: it is not a valid name, or too old for the
/// kernels.
pub fn check_architecture(name: &str) -> Result<()> {
    match capability(name).filter(|_| !name.starts_with(VIRTUAL)) {
        Some(capability) if capability >= OLDEST => Ok(()),
        Some(_) => {
            Err(Error::usage(format!("{name} is too old for the kernels: sm_{OLDEST} or newer")))
        }
        None => Err(Error::usage(format!(
            "\"{name}\" is not an architecture; use one such as sm_80, sm_90a or sm_100"
        ))),
    }
}

fn capability(name: &str) -> Option<u32> {
    let number = name.strip_prefix("sm_").or(name.strip_prefix(VIRTUAL))?;
    let number = number.strip_suffix(['a', 'f']).unwrap_or(number);
    number.parse().ok().filter(|_| number.bytes().all(|c| c.is_ascii_digit()))
}

/// Compiles a source for a dtype and an architecture. Errors: NVRTC is missing or does not support the architecture;
/// compilation failed (with the compiler log).
pub fn compile(source: &Source, element: Dtype, architecture: &str) -> Result<Compiled> {
    if let Some(only) = source.only.filter(|only| *only != architecture) {
        return Err(Error::bug(format!("{}.cu for {architecture}: it needs {only}", source.name)));
    }
    let is_virtual = architecture.starts_with(VIRTUAL);
    if !is_virtual {
        check_architecture(architecture)?;
    }
    let nvrtc = Nvrtc::get()?;
    let (major, minor) = nvrtc.version;
    let capability = capability(architecture).and_then(|c| c_int::try_from(c).ok());
    if !capability.is_some_and(|c| nvrtc.capabilities.contains(&c)) {
        let known: Vec<String> = nvrtc.capabilities.iter().map(|c| format!("sm_{c}")).collect();
        return Err(Error::new(
            Exit::Failure,
            format!(
                "NVRTC {major}.{minor} does not compile for {architecture}, only for {}; set LONGHAUL_NVRTC to another",
                known.join(" ")
            ),
        ));
    }
    let unit = Unit::new(nvrtc, source)?;
    let result = unit.compile(&options(element, architecture))?;
    let log = unit.log();
    if result != 0 {
        let first = format!(
            "{}.cu does not compile for {element} on {architecture} (NVRTC {major}.{minor}: {}):",
            source.name,
            nvrtc.words(result)
        );
        return Err(Error::list(Exit::Bug, first, &log.trim_end().lines().collect::<Vec<_>>()));
    }
    let code = if is_virtual { unit.ptx() } else { unit.cubin() };
    let cubin = code.ok_or_else(|| {
        Error::bug(format!("compiling {}.cu for {architecture} gave no code", source.name))
    })?;
    let (kernels, warnings) = report::parse(&log);
    Ok(Compiled { cubin, kernels, warnings })
}

/// An NVRTC program.
struct Unit {
    nvrtc: &'static Nvrtc,
    program: Program,
}

impl Unit {
    fn new(nvrtc: &'static Nvrtc, source: &Source) -> Result<Self> {
        // Only the headers that are hashed into the cache file name.
        let Texts { text, headers } = texts_of(source)?;
        let texts = headers.iter().map(|(_, text)| string(text)).collect::<Result<Vec<_>>>()?;
        let names = headers.iter().map(|(name, _)| string(name)).collect::<Result<Vec<_>>>()?;
        let (texts_at, names_at) = (pointers(&texts), pointers(&names));
        let (text, name) = (string(text)?, string(&format!("{}.cu", source.name))?);
        let mut unit = Unit { nvrtc, program: ptr::null_mut() };
        // SAFETY: NUL-terminated strings that live for the call, which copies them; the counts match the lists.
        let result = unsafe {
            (nvrtc.functions.create)(
                &mut unit.program,
                text.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                texts_at.as_ptr(),
                names_at.as_ptr(),
            )
        };
        match result {
            0 => Ok(unit),
            _ => Err(Error::bug(format!("NVRTC on {}.cu: {}", source.name, nvrtc.words(result)))),
        }
    }

    fn compile(&self, options: &[String]) -> Result<c_int> {
        let options = options.iter().map(|o| string(o)).collect::<Result<Vec<_>>>()?;
        let at = pointers(&options);
        // SAFETY: a program created by `new`, and as many strings as stated, which live for the call.
        Ok(unsafe { (self.nvrtc.functions.compile)(self.program, at.len() as c_int, at.as_ptr()) })
    }

    /// Returns the compiler log; empty if it is not available.
    fn log(&self) -> String {
        let functions = &self.nvrtc.functions;
        let bytes = self.read(functions.log_size, functions.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).trim_end_matches('\0').to_string()
    }

    fn cubin(&self) -> Option<Vec<u8>> {
        let functions = &self.nvrtc.functions;
        self.read(functions.cubin_size, functions.cubin).filter(|cubin| !cubin.is_empty())
    }

    fn ptx(&self) -> Option<Vec<u8>> {
        let functions = &self.nvrtc.functions;
        self.read(functions.ptx_size, functions.ptx).filter(|ptx| ptx.len() > 1)
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
        read: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    ) -> Option<Vec<u8>> {
        let mut bytes = 0;
        // SAFETY: a program created by `new`; writes to `bytes`.
        let result = unsafe { size(self.program, &mut bytes) };
        let mut content = vec![0u8; bytes];
        // SAFETY: the buffer has the size that NVRTC reported.
        let result = result | unsafe { read(self.program, content.as_mut_ptr().cast()) };
        (result == 0).then_some(content)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // SAFETY: a program created by `new`, or null, which is no longer used.
        unsafe { (self.nvrtc.functions.destroy)(&mut self.program) };
    }
}

fn string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::bug("a CUDA source contains a NUL byte"))
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_architecture_has_a_name_of_its_own() {
        for known in ["sm_80", "sm_89", "sm_90a", "sm_100", "sm_100f", "sm_120"] {
            check_architecture(known).unwrap();
        }
        for wrong in ["", "sm_", "90a", "sm_90b", "compute_90", "sm_+90", "sm_75", "sm_90a,sm_80"] {
            assert_eq!(check_architecture(wrong).unwrap_err().exit, Exit::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_gpu_that_nvrtc_does_not_know_gets_the_nearest_older_code() {
        let known = [75, 80, 86, 89, 90, 100, 103, 120];
        let of = |capability| nearest(known.into_iter(), capability);
        for (capability, expected) in [
            (80, "sm_80"),
            (87, "sm_86"),
            (90, "sm_90a"),
            (101, "sm_100"),
            (121, "sm_120"),
            (110, "compute_103"),
            (130, "compute_120"),
        ] {
            assert_eq!(of(capability), expected);
        }
        assert_eq!(nearest([80, 86].into_iter(), 90), "compute_86");
        // Without NVRTC, or if it supports no architecture that old: the cache may have entries for the GPU itself.
        assert_eq!(nearest([].into_iter(), 90), "sm_90a");
        assert_eq!(nearest([100].into_iter(), 89), "sm_89");
    }
}
