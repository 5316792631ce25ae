//! Power cuts on a real file system. A run saves to an ext4 image; at seeded moments the image is copied as it is,
//! without anything that the system has not written back yet; the copy is mounted, and the run continues there to the
//! same bits as one without a power cut.
//!
//! Three cuts after the first checkpoint, under `make torture` a hundred at any time. Requires root and loop devices,
//! and says so when skipped.

use crate::common::shell;
use learn::checkpoint::{list, load, load_newest};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use test_support::{Random, logged};

const CODEC: &str = "data: {split: DATA/split.json, stats: DATA/stats.json, random_shift: true}
model: {patch: 8, latent: 4, hidden: 8, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 40, batch_size: 4, log_every: 1, validate_every: 3, ema: 0.9, threads: 1}
optimizer: {method: {kind: adamw}, learning_rate: 1e-2}
checkpoint: {every: 2, keep_last: 2, keep_best: 1}
";

fn call(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A file with a file system, mounted while this is alive.
struct Mounted(PathBuf);

impl Mounted {
    fn new(image: &Path, at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let done = call("mount", &["-o", "loop", image.to_str()?, at.to_str()?]);
        done.then_some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        call("umount", &[self.0.to_str().unwrap_or_default()]);
    }
}

/// A run, killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn signal(&self, name: &str) {
        assert!(call("kill", &[name, &self.0.id().to_string()]));
    }
}

fn start(folder: &Path) -> Running {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train-stage"));
    command.args(["codec", "-c", "codec.yaml", "--run"]).arg(folder.join("run"));
    let folder = folder.ancestors().nth(1).unwrap();
    command.current_dir(folder).env_remove("LONGHAUL_END_TIME");
    Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Waits for the first checkpoint.
fn wait_for_latest(run: &Path) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while !run.join("ckpt/latest").exists() {
        assert!(Instant::now() < deadline, "no checkpoint in {}", run.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A snapshot of the image: copied again until it did not change meanwhile.
fn cut(image: &Path, copy: &Path) {
    for _ in 0..100 {
        std::fs::copy(image, copy).unwrap();
        if call("cmp", &["-s", image.to_str().unwrap(), copy.to_str().unwrap()]) {
            return;
        }
    }
    panic!("the image never stands still");
}

/// Hashes of the files of a checkpoint.
fn hashes(checkpoint: &Path) -> Vec<String> {
    let loaded = load(checkpoint).unwrap();
    loaded.manifest.files.iter().map(|file| format!("{} {}", file.name, file.blake3)).collect()
}

/// The update of the newest save that had completed: the one before the last that was started.
fn promised(run: &Path) -> Option<u64> {
    let records = unix::log::read(&run.join("log.jsonl")).ok()?.records;
    let begun: Vec<u64> = records
        .iter()
        .filter(|record| record["kind"] == "checkpoint")
        .filter_map(|record| record["update"].as_u64())
        .collect();
    begun.len().checked_sub(2).map(|at| begun[at])
}

#[test]
fn after_a_power_cut_the_run_continues_to_the_same_bits() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let (image, copy) = (folder.join("image"), folder.join("copy"));
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let made = ["/sbin/mkfs.ext4", "/usr/sbin/mkfs.ext4", "mkfs.ext4"]
        .iter()
        .any(|mkfs| call(mkfs, &["-q", "-F", image.to_str().unwrap()]));
    let disk = if made { Mounted::new(&image, folder.join("disk")) } else { None };
    let Some(disk) = disk else {
        test_support::skip("power cuts require mkfs.ext4, root and a loop device");
        return;
    };
    let output = shell(
        folder,
        "ds-prep gen burgers --parameter 0.01 --samples 12 --grid 32 --frames 6 --seed 5 -o data
         ds-prep split data/*.hdf5 --seed 5 -o split.json
         ds-prep stats split.json -o stats.json",
    );
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let text = CODEC.replace("DATA", folder.to_str().unwrap());
    std::fs::write(folder.join("codec.yaml"), text).unwrap();
    // Without a power cut, keeping all checkpoints.
    let script = "train-stage codec -c codec.yaml -s checkpoint.keep_every=1 --run whole";
    let output = shell(folder, script);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let whole = folder.join("whole");

    let mut random = Random(test_support::seed());
    let torture = test_support::torture();
    let cuts = if torture { 100 } else { 3 };
    let (mut within, mut hidden) = (0, 0);
    let begin = || {
        let saving = start(&disk.0);
        if !torture {
            wait_for_latest(&disk.0.join("run"));
        }
        saving
    };
    let mut saving = begin();
    for number in 0..cuts {
        std::thread::sleep(Duration::from_secs_f64(0.12 * random.uniform()));
        if saving.0.try_wait().unwrap().is_some() {
            std::fs::remove_dir_all(disk.0.join("run")).unwrap();
            saving = begin();
            std::thread::sleep(Duration::from_secs_f64(0.06 * random.uniform()));
        }
        saving.signal("-STOP");
        let safe = promised(&disk.0.join("run"));
        cut(&image, &copy);

        let after = Mounted::new(&copy, folder.join("after")).expect("the copy mounts");
        let run = after.0.join("run");
        let newest = load_newest(&run.join("ckpt")).unwrap();
        let update = newest.map(|newest| newest.manifest.update);
        assert!(update >= safe, "cut {number}: {safe:?} was safe, {update:?} is found");
        within += u64::from(update.is_some());
        for entry in list(&run.join("ckpt")).unwrap() {
            let same = whole.join("ckpt").join(entry.name());
            assert_eq!(hashes(&entry.path), hashes(&same), "cut {number}: a mix");
        }
        let names = std::fs::read_dir(run.join("ckpt")).into_iter().flatten();
        hidden += names
            .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'))
            .count();
        // A power cut would have ended the owner of the lease; here it is only suspended.
        let _ = std::fs::remove_dir_all(run.join("lease"));
        let done = start(&after.0).0.wait().unwrap();
        assert!(done.success(), "cut {number}: resumed at {update:?}: {done}");
        let last = "ckpt/step-00000040";
        assert_eq!(hashes(&run.join(last)), hashes(&whole.join(last)), "cut {number}");
        assert_eq!(logged(&run), logged(&whole), "cut {number}: the log");
        drop(after);
        saving.signal("-CONT");
    }
    drop(saving);
    println!("{cuts} cuts, {within} with a checkpoint, {hidden} unfinished folders found");
    assert!(within > 0);
}
