//! Every kernel, compiled by NVRTC to machine code for three generations of GPUs, on a machine without one; its
//! resource usage is compared with the table `registers.txt`.
//!
//! The table belongs to the version of NVRTC in its first line. With another version, registers may differ, and only
//! spills that are not in the table are errors. After a change to a kernel, `LONGHAUL_WRITE_REGISTERS=1 cargo test -p
//! tensor --test nvrtc` rewrites the table: review the difference before committing it.

mod cache;

use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use tensor::Dtype;
use tensor::kernel::compile::{Resources, compile, parameters, release, version};
use tensor::kernel::{ALL_DTYPES, SOURCES, Source, cache as kernels};
use test_support::require;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvrtc/registers.txt");
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_100"];

/// Whether NVRTC is available.
fn has_nvrtc() -> bool {
    require(version().is_ok(), "NVRTC")
}

/// By kernel, dtype and architecture: registers, stack, spill stores, spill loads, shared memory.
type Table = BTreeMap<String, [u32; 5]>;

fn head(version: &str) -> String {
    format!(
        "# NVRTC {version}; kernel, element, architecture: registers, bytes of stack, spill stores, spill loads, shared memory"
    )
}

fn row(kernel: &Resources) -> [u32; 5] {
    [kernel.registers, kernel.stack, kernel.spill_stores, kernel.spill_loads, kernel.shared]
}

fn write(version: &str, table: &Table) -> String {
    let row = |(name, row): (&String, &[u32; 5])| {
        let row = row.map(|n| n.to_string()).join(" ");
        format!("{name}: {row}\n")
    };
    format!("{}\n{}", head(version), table.iter().map(row).collect::<String>())
}

fn read(text: &str) -> Table {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let rows = lines.map(|line| {
        let (name, row) = line.split_once(": ").unwrap_or_else(|| panic!("registers.txt: {line}"));
        let row: Vec<u32> = row.split(' ').map(|n| n.parse().unwrap()).collect();
        (name.to_string(), row.try_into().unwrap())
    });
    rows.collect()
}

/// Violations of `table` in `now`, compiled by the version of the table or by another one.
fn faults(table: &Table, now: &Table, same_version: bool) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, row) in now {
        match table.get(name) {
            None => faults.push(format!("{name}: not in the table")),
            Some(known) if row[2] > known[2] || row[3] > known[3] => {
                faults.push(format!("{name}: new spills, {row:?} instead of {known:?}"));
            }
            Some(known) if same_version && row != known => {
                faults.push(format!("{name}: {row:?} instead of {known:?}"));
            }
            Some(_) => {}
        }
    }
    let gone = table.keys().filter(|name| !now.contains_key(*name));
    faults.extend(gone.map(|name| format!("{name}: in the table only")));
    faults
}

#[test]
fn every_kernel_stays_within_the_register_table() {
    if !has_nvrtc() {
        return;
    }
    let version = version().unwrap();
    let architectures = ARCHITECTURES.map(String::from);
    let units = kernels::units(&architectures);
    let compiled = units.par_iter().map(|(source, element, architecture)| {
        let compiled = compile(source, *element, architecture).map_err(|why| why.to_string())?;
        let what = format!("{}.cu, {element}, {architecture}", source.name);
        if let Some(warning) = compiled.warnings.first() {
            return Err(format!("{what}: {warning}"));
        }
        let foreign = |kernel: &&Resources| !kernel.name.starts_with(source.name);
        if let Some(kernel) = compiled.kernels.iter().find(foreign) {
            return Err(format!("{what}: {} does not begin with the source's name", kernel.name));
        }
        // The declarations that arguments are checked against before a launch.
        let declared = |kernel: &&Resources| parameters(&compiled.cubin, &kernel.name).is_none();
        if let Some(kernel) = compiled.kernels.iter().find(declared) {
            return Err(format!("{what}: no parameters of {} in the machine code", kernel.name));
        }
        let name = |kernel: &Resources| format!("{} {element} {architecture}", kernel.name);
        Ok(compiled.kernels.iter().map(|k| (name(k), row(k))).collect::<Vec<_>>())
    });
    let (mut now, mut wrong) = (Table::new(), Vec::new());
    for unit in compiled.collect::<Vec<Result<Vec<_>, String>>>() {
        match unit {
            Ok(rows) => now.extend(rows),
            Err(why) => wrong.push(why),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    if std::env::var_os("LONGHAUL_WRITE_REGISTERS").is_some() {
        return fs::write(TABLE, write(&version, &now)).unwrap();
    }
    let text = fs::read_to_string(TABLE).unwrap();
    let faults = faults(&read(&text), &now, text.starts_with(&head(&version)));
    assert!(
        faults.is_empty(),
        "{}\nLONGHAUL_WRITE_REGISTERS=1 cargo test -p tensor --test nvrtc writes the table again",
        faults.join("\n")
    );
}

#[test]
fn the_table_detects_every_difference() {
    let table = |rows: &[(&str, [u32; 5])]| -> Table {
        rows.iter().map(|(name, row)| (name.to_string(), *row)).collect()
    };
    let known = table(&[("a f32 sm_80", [32, 0, 0, 0, 64]), ("b f32 sm_80", [64, 8, 4, 4, 0])]);
    assert_eq!(read(&write("13.5", &known)), known);
    assert!(faults(&known, &known, true).is_empty());
    let mut now = known.clone();
    now.insert("a f32 sm_80".into(), [40, 0, 0, 0, 64]);
    assert_eq!(faults(&known, &now, true).len(), 1);
    assert_eq!(faults(&known, &now, false).len(), 0);
    now.insert("a f32 sm_80".into(), [32, 4, 4, 0, 64]);
    assert_eq!(faults(&known, &now, false).len(), 1);
    now.remove("a f32 sm_80");
    now.insert("c f32 sm_80".into(), [1, 0, 0, 0, 0]);
    assert_eq!(faults(&known, &now, false).len(), 2);
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
    for source in SOURCES.iter().step_by(7) {
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
    let source = Source {
        name: "primitives",
        text: include_str!("../device/emulator/kernels/primitives.cu"),
        dtypes: ALL_DTYPES,
    };
    for architecture in ARCHITECTURES {
        for element in source.dtypes {
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
    let broken = Source { name: "broken", text: "\nint f() { return x; }", dtypes: &[Dtype::F32] };
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
