//! Kernels compiled by several versions of NVRTC: the oldest supported one, one between, and that of `kernels.txt`.
//!
//! `make nvrtc-versions` installs the other two, compiles every source with each of them and writes `versions.txt`.
//! A process opens one NVRTC only, so this test starts itself once for each version.

use super::table;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tensor::Dtype;
use tensor::kernel::Source;
use tensor::kernel::cache::units;
use tensor::kernel::compile::{compile, release};

/// Set in a process that compiles with one version: `all`, or `some` for a quick look.
const INSIDE: &str = "NVRTC_VERSIONS_INSIDE";
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nvrtc/versions.txt");
const ARCHITECTURES: [&str; 2] = ["sm_80", "sm_90a"];
/// Folders of `make nvrtc-versions` below `.deps`, oldest first.
const FOLDERS: [&str; 2] = ["nvrtc-12.4", "nvrtc-13.0"];
/// Sources of a quick look, in their first dtype for sm_90a: lambdas inside of generic lambdas.
const SOME: [&str; 2] = ["activation", "strided"];

/// Registers and bytes of spill stores and loads, by unit and kernel.
type Spills = BTreeMap<(String, String), [u32; 3]>;

#[test]
fn every_supported_version_compiles_the_kernels() {
    let written = std::env::var_os("LONGHAUL_WRITE_VERSIONS").is_some();
    let deps = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps"));
    let folders = FOLDERS.map(|name| deps.join(name)).into_iter().filter(|folder| folder.exists());
    let found: Vec<(String, Spills)> =
        folders.map(|folder| in_process(folder, if written { "all" } else { "some" })).collect();
    if !written {
        if found.is_empty() {
            test_support::skip("only one NVRTC is here: make nvrtc-versions installs others");
        }
        return;
    }
    assert_eq!(found.len(), FOLDERS.len(), "`make nvrtc-versions` installs the other versions");
    let (newest, known) = table::registers(&ARCHITECTURES);
    let all: Vec<(String, Spills)> = found.into_iter().chain([(newest, known)]).collect();
    let spills: Vec<String> = all
        .iter()
        .flat_map(|(release, each)| {
            let spilling = each.iter().filter(|(_, row)| row[1] + row[2] > 0);
            spilling.map(move |((unit, kernel), _)| format!("{release}: {kernel}, {unit}"))
        })
        .collect();
    fs::write(TABLE, table_of(&all)).unwrap();
    println!("{} spills: {}", spills.len(), spills.join("; "));
}

/// The table: a line for each kernel, with the columns of each version.
fn table_of(all: &[(String, Spills)]) -> String {
    let releases: Vec<&str> = all.iter().map(|(release, _)| release.as_str()).collect();
    let mut text = format!(
        "# Source, dtype, architecture; of each kernel registers, or registers/spill stores/spill loads in bytes, with \
         NVRTC {}\n",
        releases.join(", ")
    );
    let mut last = "";
    let names: BTreeSet<_> = all.iter().flat_map(|(_, each)| each.keys()).collect();
    for name in names {
        if name.0 != last {
            text += &format!("{}\n", name.0);
            last = &name.0;
        }
        let column = |(_, each): &(String, Spills)| match each.get(name) {
            None => "-".into(),
            Some([registers, 0, 0]) => registers.to_string(),
            Some([registers, stores, loads]) => format!("{registers}/{stores}/{loads}"),
        };
        let columns: Vec<String> = all.iter().map(column).collect();
        text += &format!(" {} {}\n", name.1, columns.join(" "));
    }
    text
}

/// Compiles with the NVRTC in a folder, in another process: its release, and what it says about each kernel.
fn in_process(folder: PathBuf, which: &str) -> (String, Spills) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "versions::one_version", "--nocapture"]);
    command.env(INSIDE, which).env("LONGHAUL_NVRTC", &folder);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{talk}", folder.display());
    let (mut release, mut found) = (String::new(), Spills::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split('\t').collect();
        match words[..] {
            ["release", name] => release = name.into(),
            [unit, kernel, registers, stores, loads] => {
                let row = [registers, stores, loads].map(|number| number.parse().unwrap());
                found.insert((unit.into(), kernel.into()), row);
            }
            _ => {}
        }
    }
    assert!(!release.is_empty() && !found.is_empty(), "{}: {text}", folder.display());
    (release, found)
}

/// Compiles with the NVRTC of the environment; started alone it has nothing to do.
#[test]
fn one_version() {
    let Ok(which) = std::env::var(INSIDE) else { return };
    println!("release\t{}", release().unwrap());
    let names = ARCHITECTURES.map(String::from);
    let is_picked = |(source, dtype, architecture): &(&Source, Dtype, &str)| {
        let first = (source.dtypes[0], ARCHITECTURES[1]);
        which == "all" || SOME.contains(&source.name) && (*dtype, *architecture) == first
    };
    let units: Vec<(&Source, Dtype, &str)> = units(&names).into_iter().filter(is_picked).collect();
    assert!(units.len() >= SOME.len());
    let lines: Vec<String> = units
        .par_iter()
        .flat_map(|(source, dtype, architecture)| {
            let unit = format!("{} {dtype} {architecture}", source.name);
            let compiled = compile(source, *dtype, architecture).unwrap();
            assert_eq!(compiled.warnings, [""; 0], "{unit}");
            let line = |k: &tensor::kernel::compile::Resources| {
                let numbers = format!("{}\t{}\t{}", k.registers, k.spill_stores, k.spill_loads);
                format!("{unit}\t{}\t{numbers}", k.name)
            };
            compiled.kernels.iter().map(line).collect::<Vec<_>>()
        })
        .collect();
    println!("\n{}", lines.join("\n"));
}
