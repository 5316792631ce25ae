//! The checks of tests/gpu, rehearsed on the emulator at their smallest size with the programs of this build.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::programs;
use crate::timekeep::script;

/// The newest test binary of this build with this name: `cargo test --workspace` builds all before it runs any.
fn test_binary(name: &str) -> Option<PathBuf> {
    let files = fs::read_dir(programs().join("deps")).unwrap().map(|entry| entry.unwrap().path());
    let is_named = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        file.strip_prefix(&format!("{name}-")).is_some_and(|hash| !hash.contains('.'))
    };
    files.filter(is_named).max_by_key(|path| fs::metadata(path).unwrap().modified().unwrap())
}

/// A folder like that of `make gpu-pack`, with `ops`.
fn pack(folder: &Path, ops: &str) -> Option<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("python");
    for name in ["bin", "python", "peers"] {
        fs::create_dir(folder.join(name)).unwrap();
    }
    for entry in fs::read_dir(here.join("tests/gpu")).unwrap() {
        let path = entry.unwrap().path();
        let to = if path.extension().is_some_and(|e| e == "py") { &python } else { folder };
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    symlink(programs().join("examples/opcheck"), folder.join("bin/opcheck")).unwrap();
    for name in ["device", "wgmma"] {
        symlink(test_binary(name)?, folder.join("bin").join(name)).unwrap();
    }
    fs::write(folder.join("ops.txt"), ops).unwrap();
    fs::write(folder.join("about.json"), "{\"commit\": \"none\"}").unwrap();
    Some(())
}

/// Exit status and output of the part `first` for some ops.
fn first(folder: &Path, only: &str) -> (Option<i32>, String) {
    let mut command = Command::new("bash");
    command.arg(folder.join("run.sh")).args(["first", "--seconds", "120", "--only", only]);
    let out = folder.join("out");
    command.envs([
        ("DEVICE", "emu".as_ref()),
        ("OUT", out.as_os_str()),
        ("WORK", folder.join("work").as_os_str()),
        ("SILENCE", "15".as_ref()),
    ]);
    let output = command.current_dir(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output.status.code(), text + &String::from_utf8_lossy(&output.stderr))
}

#[test]
fn the_first_part_names_what_is_wrong_and_goes_on() {
    if !test_support::require_program("python3", &["--version"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    if pack(folder, "narrow\npool\nconcat\n").is_none() {
        test_support::skip("the tests of lib/tensor are not built: cargo test --workspace");
        return;
    }
    let (status, text) = first(folder, "narrow,pool,concat");
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("6 of 6 checks passed") && text.contains("first: ok after"), "{text}");
    let rows = |text: &str| text.lines().filter(|line| line.starts_with("f32   ")).count();
    assert!(rows(&text) > 2, "{text}");
    // One op crashes and opcheck ends early; all others are checked as before.
    let device = folder.join("bin/device");
    let real = fs::read_link(&device).unwrap();
    fs::remove_file(&device).unwrap();
    let crash = "test \"${LONGHAUL_TEST_OPS-}\" != pool || { echo 'case 3: pool [[2, 2]]'; kill -SEGV $$; }";
    script(&device, &format!("{crash}\nexec {} \"$@\"", real.display()));
    let (status, text) = first(folder, "narrow,pool,concat");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("4 of 6 checks passed") && rows(&text) > 2, "{text}");
    let failed = text.lines().filter(|line| line.starts_with("FAILED  pool: "));
    assert_eq!(failed.filter(|line| line.contains("case 3: pool [[2, 2]]")).count(), 2, "{text}");
    // Measuring an op hangs: it is named, and the rows of those after it are there.
    let opcheck = folder.join("bin/opcheck");
    let real = fs::read_link(&opcheck).unwrap();
    fs::remove_file(&opcheck).unwrap();
    let hang = "while read -r line; do echo \"$line\"; case $line in *'\"next\":\"narrow\"'*) sleep 100 ;; esac; done";
    script(&opcheck, &format!("{} \"$@\" | {hang}", real.display()));
    let (status, text) = first(folder, "narrow,pool,concat");
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("FAILED  opcheck f32 --filter narrow: narrow 5: silent"), "{text}");
    assert!(text.contains("f32   pool ") && !text.contains("f32   narrow "), "{text}");
    let results = fs::read_dir(folder.join("out")).unwrap().map(|entry| entry.unwrap().file_name());
    let results = results.filter(|name| name.to_string_lossy().ends_with(".json")).count();
    assert_eq!(results, 3, "a file for each run");
    let logs = folder.join("out/first-logs.tar.gz");
    assert!(fs::metadata(logs).unwrap().len() > 1000);
}
