//! What NVRTC makes of the kernels, on a machine without a GPU.

mod cache;
mod sass;
mod table;
mod versions;

use tensor::Dtype;
use tensor::kernel::compile::{compile, parameters, release, version};
use tensor::kernel::{ALL_DTYPES, SOURCES, Source};
use test_support::require;

/// Whether NVRTC is available.
fn has_nvrtc() -> bool {
    require(version().is_ok(), "NVRTC")
}

/// Indexes an array dynamically, so that it must live on the stack.
const SCALE: Source = Source {
    name: "scale",
    text: r#"
        #if ELEMENT_F32
        typedef float element;
        #elif ELEMENT_BF16 || ELEMENT_F16
        typedef unsigned short element;
        #endif
        extern "C" __global__ void scale_shared(element* x, int n) {
            __shared__ element held[512];
            held[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            x[threadIdx.x] = held[n - threadIdx.x];
        }
        extern "C" __global__ void scale_stack(element* x, int n) {
            element held[64];
            for (int i = 0; i < 64; i++) held[(i * n) % 64] = x[i];
            for (int i = 0; i < 64; i++) x[i] = held[i];
        }
    "#,
    dtypes: &[Dtype::F32, Dtype::Bf16],
    only: None,
};

#[test]
fn a_source_becomes_machine_code_for_each_generation() {
    if !has_nvrtc() {
        return;
    }
    for architecture in ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120"] {
        for (element, bytes) in [(Dtype::F32, 4), (Dtype::Bf16, 2)] {
            let compiled = compile(&SCALE, element, architecture).unwrap();
            assert_eq!(&compiled.cubin[..4], b"\x7fELF");
            let [shared, stack] = &compiled.kernels[..] else { panic!("{:?}", compiled.kernels) };
            assert_eq!((shared.name.as_str(), shared.shared), ("scale_shared", 512 * bytes));
            assert_eq!((stack.name.as_str(), stack.stack), ("scale_stack", 64 * bytes));
            assert!(shared.registers > 0 && shared.stack == 0 && shared.spill_loads == 0);
            assert_eq!(compiled.warnings, [""; 0]);
        }
    }
}

/// A GPU of a generation that NVRTC does not know gets PTX, which declares the same kernels as machine code does.
#[test]
fn ptx_declares_the_parameters_of_machine_code() {
    if !has_nvrtc() {
        return;
    }
    // Compiling all would take a minute.
    for source in SOURCES.iter().filter(|source| source.only.is_none()).step_by(7) {
        let element = source.dtypes[0];
        let code = compile(source, element, "sm_80").unwrap();
        let ptx = compile(source, element, "compute_80").unwrap().cubin;
        assert!(ptx.starts_with(b"//") && ptx.ends_with(b"\0"), "{}", source.name);
        for kernel in &code.kernels {
            let declared = parameters(&code.cubin, &kernel.name).unwrap();
            assert_eq!(parameters(&ptx, &kernel.name), Some(declared), "{}", kernel.name);
        }
    }
    let (version, release) = (version().unwrap(), release().unwrap());
    assert!(release.starts_with(&format!("{version}.")), "{release}");
}

/// The headers that the emulator's tests compare with plain arithmetic also compile for a GPU.
#[test]
fn the_headers_compile_for_each_element_type() {
    if !has_nvrtc() {
        return;
    }
    let primitives = Source {
        name: "primitives",
        text: include_str!("../device/emulator/kernels/primitives.cu"),
        dtypes: ALL_DTYPES,
        only: None,
    };
    let hopper = Source {
        name: "hopper",
        text: include_str!("../device/emulator/kernels/hopper.cu"),
        dtypes: &[Dtype::Bf16, Dtype::F16],
        only: Some("sm_90a"),
    };
    for (source, architectures) in
        [(primitives, &["sm_80", "sm_90a", "sm_100"][..]), (hopper, &["sm_90a"])]
    {
        for (architecture, element) in
            architectures.iter().flat_map(|a| source.dtypes.iter().map(move |e| (a, e)))
        {
            let compiled = compile(&source, *element, architecture).unwrap();
            assert!(compiled.kernels.len() > 5, "{:?}", compiled.kernels);
            assert_eq!(compiled.warnings, [""; 0]);
        }
    }
}

#[test]
fn compile_errors_have_name_and_line() {
    if !has_nvrtc() {
        return;
    }
    let broken = Source {
        name: "broken",
        text: "\nint f() { return x; }",
        dtypes: &[Dtype::F32],
        only: None,
    };
    let error = compile(&broken, Dtype::F32, "sm_80").unwrap_err();
    assert_eq!(error.exit, unix::Exit::Bug);
    for words in ["broken.cu does not compile for f32 on sm_80", "broken.cu(2)", "\"x\""] {
        assert!(error.to_string().contains(words), "no {words} in {error}");
    }
    // A header in the working directory must not be found.
    let outside = Source { name: "outside", text: "#include \"Cargo.toml\"", ..broken };
    let error = compile(&outside, Dtype::F32, "sm_80").unwrap_err().to_string();
    assert!(error.contains("Cargo.toml"), "{error}");
    let error = compile(&SCALE, Dtype::F32, "sm_990").unwrap_err().to_string();
    assert!(error.contains("does not compile for sm_990, only for") && error.contains("sm_80"));
    assert_eq!(compile(&SCALE, Dtype::F32, "sm_75").unwrap_err().exit, unix::Exit::Usage);
}

#[test]
fn kernel_names_are_unique() {
    let mut names: Vec<&str> = SOURCES.iter().map(|source| source.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), SOURCES.len());
}
