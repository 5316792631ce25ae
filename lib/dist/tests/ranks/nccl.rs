//! NCCL's collectives on a fake NCCL (nccl.c) and the fake driver of the tensor crate, which run without a GPU and execute
//! work as late, as early and in as odd an order as streams and a nonblocking communicator allow.

use super::job::Job;
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;
use test_support::{require, require_program, seed};

/// The folder with the two libraries, where ranks also exchange their tensors, and the log of the driver.
struct Fake(TempDir);

impl Fake {
    fn new() -> Option<Self> {
        // Kernels are compiled, although the fake driver has its own.
        let can_start = require(tensor::kernel::compile::version().is_ok(), "NVRTC")
            && require_program("mpirun", &["--version"]);
        can_start.then(|| {
            let fake = Self(tempfile::tempdir().unwrap());
            let here = Path::new(env!("CARGO_MANIFEST_DIR"));
            fake.make("libcuda.so", &here.join("../tensor/tests/driver/driver.c"));
            fake.make("libnccl.so", &here.join("tests/ranks/nccl.c"));
            fake
        })
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn make(&self, library: &str, source: &Path) {
        let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
        let library = self.path().join(library);
        let made = Command::new("cc").args(flags).arg(&library).arg(source).status().unwrap();
        assert!(made.success(), "{} does not compile", source.display());
    }

    /// What the driver and NCCL have logged.
    fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap_or_default()
    }

    fn start(&self, ranks: usize, settings: &[(&str, &str)], words: &[&str]) -> Job {
        let folder = self.path().to_str().unwrap();
        let libraries = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let (path, log) = (format!("{folder}:{libraries}"), self.path().join("log"));
        let cache = self.path().join("kernels");
        let own = [
            ("LD_LIBRARY_PATH", path.as_str()),
            ("NCCL_FOLDER", folder),
            ("DRIVER_LOG", log.to_str().unwrap()),
            ("LONGHAUL_KERNEL_CACHE", cache.to_str().unwrap()),
        ];
        let nvrtc = std::env::var("LONGHAUL_NVRTC").ok();
        let nvrtc = nvrtc.as_deref().map(|folder| ("LONGHAUL_NVRTC", folder));
        let settings = own.into_iter().chain(nvrtc).chain(settings.iter().copied());
        Job::start_with(ranks, settings, &[&["gpu"], words].concat()).unwrap()
    }
}

#[test]
fn nccl_sums_in_place_and_while_kernels_run() {
    let Some(fake) = Fake::new() else { return };
    let seed = seed().to_string();
    for (ranks, order, more) in [(2, "1", ""), (2, "2", "--bf16"), (4, "3", "")] {
        let words: Vec<&str> = [&*seed, more].into_iter().filter(|word| !word.is_empty()).collect();
        let seen = fake.start(ranks, &[("DRIVER_SEED", order)], &words).end();
        assert_eq!(seen.status, Some(0), "{ranks} ranks, {more}: {}", seen.stderr);
        let said = seen.stdout.matches("all as computed by one").count();
        assert_eq!(said, ranks, "{}", seen.stdout);
    }
}

/// The error of one rank ends the others, which wait for it on their GPUs.
#[test]
fn an_error_of_nccl_ends_all_ranks_with_its_message() {
    let Some(fake) = Fake::new() else { return };
    let at = 10 + seed() % 40;
    let settings = [("NCCL_FAULT_RANK", "1"), ("NCCL_FAIL", &*at.to_string())];
    let seen = fake.start(3, &settings, &["1"]).end();
    assert_eq!(seen.status, Some(1), "{}", seen.stderr);
    for words in ["ranks[1/3]: ", "remote process exited", "(the last error)", "LONGHAUL_NCCL=0"] {
        assert!(seen.stderr.contains(words), "no {words} in {}", seen.stderr);
    }
    seen.nobody_is_left();
}

#[test]
fn a_rank_that_dies_ends_those_that_wait_for_it_in_nccl() {
    let Some(fake) = Fake::new() else { return };
    let mut job = fake.start(3, &[], &["1", "--seconds", "300"]);
    job.signal(&[2], Signal::KILL);
    let seen = job.end();
    let named = format!("(pid {}) is gone; ending all ranks with status 75", seen.pids[&2]);
    assert!(seen.stderr.contains(&named), "{}", seen.stderr);
    seen.nobody_is_left();
}

/// All ranks have submitted the same sums, but one does not end: the network has failed.
#[test]
fn a_sum_that_never_ends_is_reported() {
    let Some(fake) = Fake::new() else { return };
    let count = fake.start(2, &[], &["1"]).end();
    assert_eq!(count.status, Some(0), "{}", count.stderr);
    // The first sums after the checks.
    let first = fake.log().lines().filter(|line| line.starts_with("rank 0: ")).count();
    let settings = [("NCCL_FAULT_RANK", "1"), ("NCCL_HANG", &*(first + 5).to_string())];
    let seen = fake.start(2, &settings, &["1", "--seconds", "300"]).end();
    assert_eq!(seen.status, Some(75), "{}", seen.stderr);
    assert!(seen.stderr.contains("the network has failed"), "{}", seen.stderr);
    seen.nobody_is_left();
}

/// A tensor whose allocation failed has no address that NCCL could use.
#[test]
fn no_memory_is_reported_as_such() {
    let Some(fake) = Fake::new() else { return };
    // The 16 MiB for uploads, and about one tensor more.
    let seen = fake.start(2, &[("DRIVER_MEMORY", "17300000")], &["1"]).end();
    assert_eq!(seen.status, Some(1), "{}", seen.stderr);
    assert!(seen.stderr.contains("has no memory for a tensor of"), "{}", seen.stderr);
    assert!(!seen.stderr.contains("NCCL"), "{}", seen.stderr);
}
