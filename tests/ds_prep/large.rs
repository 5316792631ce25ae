//! Long imports: they resume after a kill, and their memory does not grow with the file.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::run;
use data::fields::field::Field;
use rustix::process::{Pid, Signal, kill_process};

const TRAJECTORIES: usize = 384;
const FRAMES: usize = 8;
const POINTS: usize = 16384;
/// Values per trajectory, half a MiB.
const LEN: usize = FRAMES * POINTS;
/// The file has 192 MiB; a process that imports it may use a third of that.
const MEMORY: u64 = 64 << 20;

/// A sparse NumPy file of f32: the first value of each trajectory is its index plus 1, all others are 0.
fn source(path: &Path) {
    let file = holes(path, "f4", 4 * (TRAJECTORIES * LEN) as u64);
    for n in 0..TRAJECTORIES {
        file.write_all_at(&(n as f32 + 1.0).to_le_bytes(), 128 + 4 * (n * LEN) as u64).unwrap();
    }
}

/// A sparse NumPy file with this many bytes of zeros.
fn holes(path: &Path, numbers: &str, bytes: u64) -> File {
    let mut header = format!(
        "{{'descr': '<{numbers}', 'fortran_order': False, 'shape': ({TRAJECTORIES}, {FRAMES}, {POINTS}), }}"
    );
    header.push_str(&" ".repeat(117 - header.len()));
    let header = [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), b"\n"].concat();
    let file = File::create(path).unwrap();
    file.write_all_at(&header, 0).unwrap();
    file.set_len(128 + bytes).unwrap();
    file
}

fn import(folder: &Path) -> Child {
    import_with(folder, &[])
}

fn import_with(folder: &Path, words: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ds-prep"));
    command.args(["import", "large_nu0.1.npy", "-o", "in", "--threads", "2", "--json"]).args(words);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Peak memory of a process in bytes; `None` once it has ended.
fn peak(child: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10)
}

/// Peak memory of an import with these arguments, which is made anew. If the test is scheduled too rarely to observe
/// the process, it tries again.
fn most_memory(folder: &Path, words: &[&str]) -> u64 {
    for _ in 0..20 {
        let _ = fs::remove_file(folder.join("in/large_nu0.1.hdf5")); // of the one before
        let (mut child, mut most) = (import_with(folder, words), 0);
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            most = most.max(peak(&child).unwrap_or(0));
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "{status}");
        if most > 0 {
            return most;
        }
    }
    panic!("it was always over before it was looked at");
}

/// The number of durable trajectories according to the record of an unfinished import.
fn durable(record: &Path) -> usize {
    let text = fs::read_to_string(record).unwrap_or_default();
    let number =
        |line: &str| line.strip_prefix("{\"trajectories\":")?.strip_suffix('}')?.parse().ok();
    text.lines().filter_map(number).next_back().unwrap_or(0)
}

/// A running import with at least `least` durable trajectories. If the test is delayed and the import finishes first,
/// it tries again.
fn under_way(folder: &Path, least: usize) -> Child {
    let record = folder.join("in/.large_nu0.1.hdf5.partial.jsonl");
    let deadline = Instant::now() + Duration::from_secs(300);
    let mut child = import(folder);
    while durable(&record) < least {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            fs::remove_file(folder.join("in/large_nu0.1.hdf5")).unwrap();
            child = import(folder);
        }
        assert!(Instant::now() < deadline, "too slow, or always too fast");
        std::thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Calls `interrupt` on running imports until one was interrupted before its end.
fn interrupted(folder: &Path, least: usize, interrupt: impl Fn(&mut Child)) -> Child {
    let made = folder.join("in/large_nu0.1.hdf5");
    let record = folder.join("in/.large_nu0.1.hdf5.partial.jsonl");
    for _ in 0..20 {
        let mut child = under_way(folder, least);
        interrupt(&mut child);
        if !made.exists() && durable(&record) < TRAJECTORIES * 9 / 10 {
            return child;
        }
        if made.exists() {
            assert_eq!(Field::open(&made).unwrap().trajectories(), TRAJECTORIES, "half of a file");
        }
        let _ = child.kill(); // it has ended
        let _ = child.wait();
        fs::remove_dir_all(folder.join("in")).unwrap();
    }
    panic!("it was always over before it was interrupted");
}

#[test]
fn a_killed_import_resumes_and_memory_does_not_grow_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    source(&folder.join("large_nu0.1.npy"));
    let made = folder.join("in/large_nu0.1.hdf5");
    let record = folder.join("in/.large_nu0.1.hdf5.partial.jsonl");
    let mut killed = interrupted(folder, TRAJECTORIES * 6 / 10, |child| {
        child.kill().unwrap();
        child.wait().unwrap();
    });
    assert!(!killed.wait().unwrap().success());
    let done = durable(&record);
    assert!(!made.exists() && done < TRAJECTORIES, "{done}");
    // As if the process had died in the middle of a line.
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, format!("{text}{{\"trajec")).unwrap();

    let output = run(folder, "", &["import", "large_nu0.1.npy", "-o", "in"]);
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    let goes_on = format!("resuming after {done} of {TRAJECTORIES} trajectories");
    assert!(output.stderr.contains(&goes_on), "{}", output.stderr);
    let names: Vec<_> =
        fs::read_dir(folder.join("in")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["large_nu0.1.hdf5"], "what was left is gone");
    let field = Field::open(&made).unwrap();
    let mut values = vec![0.0; LEN];
    for n in 0..TRAJECTORIES {
        field.read(n, &mut values).unwrap();
        assert!(values[0] == n as f32 + 1.0 && values[1..].iter().all(|v| *v == 0.0), "{n}");
    }

    // Repeated without interruption, it yields the same file with little memory.
    let before = fs::read(&made).unwrap();
    let most = most_memory(folder, &[]);
    assert!(most < MEMORY, "{most} bytes");
    assert!(fs::read(&made).unwrap() == before, "another file than after a kill");
}

#[test]
fn another_type_or_order_of_axes_takes_no_more_memory_either() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    holes(&folder.join("large_nu0.1.npy"), "f8", 8 * (TRAJECTORIES * LEN) as u64);
    for words in [&[][..], &["--axes", "nxt"]] {
        let most = most_memory(folder, words);
        assert!(most < MEMORY, "{words:?}: {most} bytes");
    }
}

#[test]
fn a_concurrent_import_is_refused_and_another_plan_starts_anew() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    source(&folder.join("large_nu0.1.npy"));
    let record = folder.join("in/.large_nu0.1.hdf5.partial.jsonl");
    let mut child = interrupted(folder, 1, |child| {
        kill_process(Pid::from_child(child), Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let state = || fs::read_to_string(&stat).unwrap_or_default();
        while !state().contains(") T ") && !state().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let words = ["import", "large_nu0.1.npy", "-o", "in"];
    let busy = run(folder, "", &words);
    assert_eq!(busy.status, Some(75), "{}", busy.stderr);
    assert!(busy.stderr.contains("another process is writing it"), "{}", busy.stderr);
    // TERM stays pending until the suspended process is continued.
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    kill_process(Pid::from_child(&child), Signal::CONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(75));
    assert!(record.exists(), "kept for the next start");

    let few = run(folder, "", &[&words[..], &["--samples", "3"]].concat());
    assert_eq!((few.status, few.stderr.contains("resuming")), (Some(0), false), "{}", few.stderr);
    assert_eq!(Field::open(&folder.join("in/large_nu0.1.hdf5")).unwrap().trajectories(), 3);
    assert!(!record.exists());
}
