//! The machine code of every kernel for six architectures, compared with the table `kernels.txt`: registers, spills,
//! occupancy, and the instructions of its main loop.
//!
//! The table belongs to the release of NVRTC in its first line. With another one, the only differences that are errors
//! are spills. With any, a kernel that cannot be launched or whose main loop divides integers is an error. A source whose
//! text, headers and options have the hash in the table has been compiled before; an eighth of these are compiled again
//! for sm_90a, all of them by `make torture`. After a change to a kernel, `make sass` compiles all and writes the table again: review the difference before
//! committing it.

use super::has_nvrtc;
use super::sass::{Counts, counts, nvdisasm};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use tensor::Dtype;
use tensor::kernel::Source;
use tensor::kernel::cache as kernels;
use tensor::kernel::compile::{Resources, compile, most_threads, parameters, release};
use test_support::require;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvrtc/kernels.txt");

/// An architecture: maximum number of warps and of KB of shared memory per multiprocessor (CUDA C++ Programming Guide,
/// "Technical Specifications per Compute Capability").
struct Architecture {
    name: &'static str,
    warps: u32,
    shared: u32,
}

const ARCHITECTURES: [Architecture; 6] = [
    Architecture { name: "sm_80", warps: 64, shared: 164 },
    Architecture { name: "sm_86", warps: 48, shared: 100 },
    Architecture { name: "sm_89", warps: 48, shared: 100 },
    Architecture { name: "sm_90a", warps: 64, shared: 228 },
    Architecture { name: "sm_100", warps: 64, shared: 228 },
    Architecture { name: "sm_120", warps: 48, shared: 100 },
];

/// The architecture for which unchanged sources are sampled.
const SAMPLED: &str = "sm_90a";

/// Maximum threads per block of a kernel that declares none, as for the emulator.
const THREADS: u32 = 256;

/// Registers, stack, spill stores, spill loads, static shared memory, threads, resident warps, and [`Counts`].
const NUMBERS: usize = 17;
/// Which numbers of a row are the resident warps, and the integer divisions of the main loop.
const WARPS: usize = 6;
const DIVISIONS: usize = 14;
type Row = [u32; NUMBERS];

/// A source compiled for a dtype and an architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unit {
    hash: String,
    kernels: BTreeMap<String, Row>,
}

/// By source, dtype and architecture.
type Table = BTreeMap<String, Unit>;

/// The release of NVRTC of the table; registers, spill stores and spill loads by unit and kernel.
pub fn registers(architectures: &[&str]) -> (String, BTreeMap<(String, String), [u32; 3]>) {
    let text = fs::read_to_string(TABLE).unwrap();
    let release = text.strip_prefix("# NVRTC ").and_then(|rest| rest.split(". ").next());
    let is_wanted =
        |unit: &str| architectures.iter().any(|name| unit.ends_with(&format!(" {name}")));
    let of_unit = |(unit, Unit { kernels, .. }): (String, Unit)| {
        let row =
            move |(kernel, row): (String, Row)| ((unit.clone(), kernel), [row[0], row[2], row[3]]);
        kernels.into_iter().map(row)
    };
    let rows = read(&text).into_iter().filter(|(unit, _)| is_wanted(unit)).flat_map(of_unit);
    (release.unwrap().into(), rows.collect())
}

fn head(release: &str) -> String {
    format!(
        "# NVRTC {release}. Source, dtype, architecture, hash; of each kernel: registers, bytes of stack, spill stores, spill \
         loads, static shared memory; maximum threads (else {THREADS}), resident warps without dynamic shared memory; {}",
        Counts::NAMES
    )
}

fn write(release: &str, table: &Table) -> String {
    let mut text = head(release) + "\n";
    for (unit, Unit { hash, kernels }) in table {
        text += &format!("{unit} {hash}\n");
        for (kernel, row) in kernels {
            let row = row.map(|n| n.to_string()).join(" ");
            text += &format!(" {kernel} {row}\n");
        }
    }
    text
}

fn read(text: &str) -> Table {
    let mut table = Table::new();
    let mut unit = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut read = || {
            let Some(line) = line.strip_prefix(' ') else {
                let (name, hash) = line.rsplit_once(' ')?;
                unit = name.into();
                table.insert(name.into(), Unit { hash: hash.into(), kernels: BTreeMap::new() });
                return Some(());
            };
            let (kernel, row) = line.split_once(' ')?;
            let row = row.split(' ').map(|n| n.parse().ok()).collect::<Option<Vec<u32>>>()?;
            let kernels = &mut table.get_mut(&unit)?.kernels;
            kernels.insert(kernel.into(), row.try_into().ok()?);
            Some(())
        };
        read().unwrap_or_else(|| panic!("kernels.txt: {line}"));
    }
    table
}

/// Violations of `table` in the units compiled `now`, by the release of NVRTC of the table or by another one.
fn faults(table: &Table, now: &Table, same_release: bool) -> Vec<String> {
    let mut faults = Vec::new();
    let none = BTreeMap::new();
    for (unit, Unit { kernels, .. }) in now {
        let known = table.get(unit).map_or(&none, |unit| &unit.kernels);
        for (name, row) in kernels {
            let what = format!("{name}, {unit}");
            match known.get(name) {
                None => faults.push(format!("{what}: not in the table")),
                Some(known) if row[2] > known[2] || row[3] > known[3] => {
                    faults.push(format!("{what}: new spills, {row:?} instead of {known:?}"));
                }
                Some(known) if same_release && row != known => {
                    faults.push(format!("{what}: {row:?} instead of {known:?}"));
                }
                Some(_) => {}
            }
        }
        let gone = known.keys().filter(|name| !kernels.contains_key(*name));
        faults.extend(gone.map(|name| format!("{name}, {unit}: in the table only")));
    }
    faults
}

/// Kernels that cannot be launched with their maximum of threads, and main loops that divide integers.
fn forbidden(table: &Table) -> Vec<String> {
    let mut forbidden = Vec::new();
    for (unit, Unit { kernels, .. }) in table {
        for (name, row) in kernels {
            if row[WARPS] == 0 {
                forbidden.push(format!("{name}, {unit}: no block of it fits: {row:?}"));
            }
            if row[DIVISIONS] > 0 {
                forbidden.push(format!("{name}, {unit}: its main loop divides: use divide.cuh"));
            }
        }
    }
    forbidden
}

/// Warps that fit on a multiprocessor: registers are allocated to warps by 256, shared memory to blocks by 128 bytes after
/// 1 KB of the system's (CUDA's occupancy calculator). 0 if not even one block fits.
fn resident_warps(architecture: &Architecture, registers: u32, threads: u32, shared: u32) -> u32 {
    let warps = threads.div_ceil(32);
    let by_registers = 65536 / ((registers * 32).next_multiple_of(256) * warps).max(1);
    let by_shared = architecture.shared * 1024 / (shared.next_multiple_of(128) + 1024);
    let most = if threads > 1024 { 0 } else { architecture.warps / warps };
    let blocks = by_registers.min(by_shared).min(most);
    blocks * warps
}

fn row(kernel: &Resources, threads: u32, architecture: &Architecture, counts: &Counts) -> Row {
    let Resources { registers, stack, spill_stores, spill_loads, shared, .. } = *kernel;
    let warps = resident_warps(architecture, registers, threads, shared);
    let resources = [registers, stack, spill_stores, spill_loads, shared, threads, warps];
    let numbers: Vec<u32> = resources.into_iter().chain(counts.row()).collect();
    numbers.try_into().unwrap()
}

/// Compiles a source and measures its kernels.
fn measure(source: &Source, element: Dtype, architecture: &Architecture) -> Result<Unit, String> {
    let what = format!("{}.cu, {element}, {}", source.name, architecture.name);
    let compiled = compile(source, element, architecture.name).map_err(|why| why.to_string())?;
    if let Some(warning) = compiled.warnings.first() {
        return Err(format!("{what}: {warning}"));
    }
    let nvdisasm = nvdisasm().unwrap();
    let counts = counts(&nvdisasm, &compiled.cubin).map_err(|why| format!("{what}: {why}"))?;
    let mut kernels = BTreeMap::new();
    for kernel in &compiled.kernels {
        let name = kernel.name.as_str();
        if !name.starts_with(source.name) {
            return Err(format!("{what}: {name} does not begin with the source's name"));
        }
        // The declarations that arguments are checked against before a launch.
        if parameters(&compiled.cubin, name).is_none() {
            return Err(format!("{what}: no parameters of {name} in the machine code"));
        }
        let Some(counts) = counts.get(name) else {
            return Err(format!("{what}: no code of {name}"));
        };
        let threads = most_threads(&compiled.cubin, name).map_or(THREADS, |n| n as u32);
        kernels.insert(name.into(), row(kernel, threads, architecture, counts));
    }
    let hash = hash(source, element, architecture.name);
    Ok(Unit { hash, kernels })
}

fn hash(source: &Source, element: Dtype, architecture: &str) -> String {
    let stem = kernels::stem(source, element, architecture).unwrap();
    stem.split('-').nth(3).unwrap().into()
}

#[test]
fn every_kernel_stays_within_the_table() {
    if !has_nvrtc() || !require(nvdisasm().is_some(), "nvdisasm") {
        return;
    }
    // What has not changed is only compiled again if "all" are to be written.
    let written = std::env::var("LONGHAUL_WRITE_KERNELS").ok();
    let release = release().unwrap();
    let is_kept = written.as_deref() != Some("all");
    let text = if is_kept { fs::read_to_string(TABLE).unwrap() } else { String::new() };
    let same_release = text.starts_with(&head(&release));
    let known = read(&text);
    let names = ARCHITECTURES.map(|architecture| architecture.name.to_string());
    let units: Vec<_> = kernels::units(&names)
        .into_iter()
        .map(|(source, element, architecture)| {
            (format!("{} {element} {architecture}", source.name), source, element, architecture)
        })
        .collect();
    let is_changed = |(name, source, element, architecture): &&(String, &Source, Dtype, &str)| {
        let hash = hash(source, *element, architecture);
        !same_release || known.get(name).is_none_or(|unit| unit.hash != hash)
    };
    let is_sampled = |(name, .., architecture): &(String, _, _, &str)| {
        let is_chosen = known.get(name).is_some_and(|unit| *unit.hash < *"2");
        *architecture == SAMPLED && (is_chosen || test_support::torture())
    };
    let is_compiled = |unit: &&_| is_changed(unit) || written.is_none() && is_sampled(unit);
    let compiled = units.par_iter().filter(is_compiled);
    let compiled = compiled.map(|(name, source, element, architecture)| {
        let architecture = ARCHITECTURES.iter().find(|a| a.name == *architecture).unwrap();
        Ok((name.clone(), measure(source, *element, architecture)?))
    });
    let (mut now, mut wrong) = (Table::new(), Vec::new());
    for unit in compiled.collect::<Vec<Result<_, String>>>() {
        match unit {
            Ok((name, unit)) => _ = now.insert(name, unit),
            Err(why) => wrong.push(why),
        }
    }
    let is_unit = |name: &String| units.iter().any(|unit| unit.0 == *name);
    if written.is_some() {
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let kept = known.into_iter().filter(|(name, _)| is_unit(name) && !now.contains_key(name));
        let all = kept.collect::<Vec<_>>().into_iter().chain(now).collect();
        return fs::write(TABLE, write(&release, &all)).unwrap();
    }
    wrong.extend(faults(&known, &now, same_release));
    let gone = known.keys().filter(|name| !is_unit(name));
    wrong.extend(gone.map(|name| format!("{name}: in the table only")));
    // Of units that were not compiled again, what the table says.
    wrong.extend(forbidden(&known.into_iter().chain(now).collect()));
    assert!(wrong.is_empty(), "{}\nmake sass writes the table again", wrong.join("\n"));
}

#[test]
fn the_table_detects_every_difference() {
    let table = |kernels: &[(&str, Row)]| -> Table {
        let kernels = kernels.iter().map(|(name, row)| (name.to_string(), *row)).collect();
        [("a f32 sm_80".into(), Unit { hash: "0".into(), kernels })].into()
    };
    let row = |first: [u32; 4]| {
        let mut row = [7; NUMBERS];
        row[DIVISIONS] = 0;
        row[..4].copy_from_slice(&first);
        row
    };
    let known = table(&[("a", row([32, 0, 0, 0])), ("b", row([64, 8, 4, 4]))]);
    assert_eq!(read(&write("13.5", &known)), known);
    assert!(faults(&known, &known, true).is_empty());
    let differences = |kernels: &[(&str, Row)], same_release: bool| {
        faults(&known, &table(kernels), same_release).len()
    };
    let b = ("b", row([64, 8, 4, 4]));
    assert_eq!(differences(&[("a", row([40, 0, 0, 0])), b], true), 1);
    assert_eq!(differences(&[("a", row([40, 0, 0, 0])), b], false), 0);
    assert_eq!(differences(&[("a", row([32, 4, 4, 0])), b], false), 1);
    assert_eq!(differences(&[("c", row([1, 0, 0, 0])), b], false), 2);
    assert_eq!(faults(&Table::new(), &known, true).len(), 2);
    for (number, value) in [(DIVISIONS, 1), (WARPS, 0)] {
        let mut wrong = row([32, 0, 0, 0]);
        wrong[number] = value;
        assert_eq!(forbidden(&table(&[("a", wrong), b])).len(), 1);
    }
}

#[test]
fn occupancy_is_that_of_cudas_calculator() {
    let of = |name: &str| ARCHITECTURES.iter().find(|a| a.name == name).unwrap();
    for (architecture, registers, threads, shared, warps) in [
        ("sm_80", 32, 256, 0, 64),
        ("sm_90a", 91, 256, 0, 16),
        ("sm_90a", 242, 256, 0, 8),
        ("sm_80", 64, 1024, 0, 32),
        ("sm_86", 16, 1024, 0, 32),
        ("sm_86", 40, 128, 48 << 10, 8),
        ("sm_100", 20, 96, 0, 63),
        // Too many registers, threads, or bytes of shared memory for a block.
        ("sm_80", 72, 1024, 0, 0),
        ("sm_90a", 32, 1056, 0, 0),
        ("sm_86", 32, 128, 99 << 10, 4),
        ("sm_86", 32, 128, (99 << 10) + 1, 0),
    ] {
        let found = resident_warps(of(architecture), registers, threads, shared);
        assert_eq!(found, warps, "{architecture}, {registers} registers, {threads} threads");
    }
}
