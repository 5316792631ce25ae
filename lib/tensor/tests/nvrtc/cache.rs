//! The kernel cache together with the compiler, and with many processes at once. (The cache folder itself is
//! tested in its module.)

use super::has_nvrtc;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Barrier;
use tensor::Dtype;
use tensor::kernel::Source;
use tensor::kernel::cache::{Folder, cubin_in};

/// The folder that a process of [`processes_that_start_together_do_not_disturb_each_other`] works in.
const SHARED: &str = "NVRTC_CACHE_SHARED";

const SCALE: Source = Source {
    name: "scale",
    text: "extern \"C\" __global__ void scale_all(float* x) { x[threadIdx.x] *= 2; }",
    dtypes: &[Dtype::F32],
    only: None,
};

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_kernel_is_compiled_once_and_again_when_damaged() {
    if !has_nvrtc() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let cache = Folder::open(&parent.path().join("kernels"), 1 << 20).unwrap();
    let get = |architecture| {
        let (cubin, written) = cubin_in(Some(&cache), &SCALE, Dtype::F32, architecture).unwrap();
        written.unwrap();
        (cubin.compiled, cubin.bytes)
    };
    let (compiled, bytes) = get("sm_80");
    assert!(compiled);
    assert_eq!(get("sm_80"), (false, bytes.clone()));
    assert!(get("sm_90a").0);
    let names = names(&parent.path().join("kernels"));
    assert_eq!(names.len(), 2, "{names:?}");
    for name in names {
        let path = parent.path().join("kernels").join(name);
        let mut content = fs::read(&path).unwrap();
        let last = content.len() - 1;
        content[last] ^= 1;
        fs::write(&path, content).unwrap();
    }
    assert_eq!(get("sm_80"), (true, bytes.clone()));
    assert_eq!(get("sm_80"), (false, bytes.clone()));
    // Without a cache, or with a deleted one, it only takes longer.
    assert!(cubin_in(None, &SCALE, Dtype::F32, "sm_80").unwrap().0.compiled);
    fs::remove_dir_all(parent.path().join("kernels")).unwrap();
    let (cubin, written) = cubin_in(Some(&cache), &SCALE, Dtype::F32, "sm_80").unwrap();
    assert_eq!((cubin.bytes, written.is_err()), (bytes, true));
}

#[test]
fn processes_that_start_together_do_not_disturb_each_other() {
    if !has_nvrtc() {
        return;
    }
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("kernels");
    let program = std::env::current_exe().unwrap();
    let start = || {
        let words = ["--exact", "cache::one_of_several_processes", "--nocapture"];
        Command::new(&program).args(words).env(SHARED, &folder).spawn().unwrap()
    };
    let processes: Vec<_> = (0..4).map(|_| start()).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let names = names(&folder);
    assert_eq!(names.len(), 8, "{names:?}");
}

/// Requests the same kernels as its siblings; started alone it has nothing to do.
#[test]
fn one_of_several_processes() {
    let Some(folder) = std::env::var_os(SHARED) else { return };
    let cache = Folder::open(Path::new(&folder), 1 << 20).unwrap();
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                together.wait();
                for capability in ["80", "86", "89", "90", "90a", "100", "103", "120"] {
                    let name = format!("sm_{capability}");
                    let (cubin, written) =
                        cubin_in(Some(&cache), &SCALE, Dtype::F32, &name).unwrap();
                    written.unwrap();
                    assert_eq!(&cubin.bytes[..4], b"\x7fELF");
                }
            });
        }
    });
}
