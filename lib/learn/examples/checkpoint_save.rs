//! The cost of a checkpoint, in one run and on one disk: how long it blocks training, compared with a memcpy of the
//! same bytes by as many threads, and how long until it is hashed and durable, compared with `dd` and O_DIRECT.
//! Verifying it by reading it back comes after that, concurrently with training; `processor_ms` is the CPU time of
//! everything, over all threads.
//!
//! `checkpoint_save [--megabytes N] [--repeats N] [--threads N] [--folder DIR]` prints one JSON object: medians;
//! `stall_of_memcpy` and `write_of_dd` are the ratios. The counterpart is tests/peers/torch_save.py.

use learn::checkpoint::{KeepRules, Saver, State};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tensor::Tensor;
use unix::{Error, Result};

/// The value of the option `--name`.
fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|word| *word != format!("--{name}")).nth(1)
}

fn number(name: &str, default: usize) -> usize {
    argument(name).and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn main() -> Result<()> {
    tensor::parallel::start_threads(Some(number("threads", 2)))?;
    let parent = argument("folder").map_or_else(|| PathBuf::from("."), PathBuf::from);
    let folder = parent.join(format!("checkpoint-bench-{}", std::process::id()));
    std::fs::create_dir(&folder).map_err(|cause| Error::create(&folder, cause))?;
    let measured = tensor::parallel::inside(|| measure(&folder));
    std::fs::remove_dir_all(&folder).map_err(|cause| Error::io(&folder, cause))?;
    println!("{}", measured?);
    Ok(())
}

/// Parameters, their average and two moments, in many sizes, like those of a model.
fn state(bytes: usize, update: u64) -> State {
    let mut state = State { update, task: "bench".into(), ..State::default() };
    for stem in ["model", "ema", "optim-0-of-1", "optim-1-of-1"] {
        let (mut left, mut tensors) = (bytes / 4 / 4, Vec::new());
        for size in [1 << 20, 1 << 18, 1 << 10, 3].into_iter().cycle() {
            let n = left.min(size);
            if n == 0 {
                break;
            }
            let values: Vec<f32> = (0..n).map(|i| (i as f32 + update as f32).sin()).collect();
            tensors.push((format!("tensor.{}", tensors.len()), Tensor::from_slice(&values, &[n])));
            left -= n;
        }
        state.tensors.insert(stem.into(), tensors);
    }
    state
}

fn measure(folder: &Path) -> Result<serde_json::Value> {
    let (megabytes, repeats) = (number("megabytes", 256), number("repeats", 9));
    let bytes = megabytes << 20;
    let rules =
        KeepRules { last: 1, best: 0, every: 0, metric: String::new(), ..KeepRules::default() };
    let mut saver = Saver::new(&folder.join("ckpt"), rules, 1)?;
    saver.reserve(&state(bytes, 0))?;
    saver.finish()?;
    let mut target = vec![2_u8; bytes];
    let (mut memcpy, mut stall, mut dd) = (vec![], vec![], vec![]);
    let (mut saved, mut verified, mut processor) = (vec![], vec![], vec![]);
    for update in 1..=repeats as u64 {
        // The bytes of the state itself, once before and once after, so that caches affect both equally.
        let state = state(bytes, update);
        let before = copy(&state, &mut target);
        let (started, computed) = (Instant::now(), processor_time());
        saver.save(state.clone())?;
        stall.push(started.elapsed().as_secs_f64());
        let done = saver.finish()?.ok_or_else(|| Error::bug("no save ran"))?;
        processor.push(processor_time() - computed);
        memcpy.push((before + copy(&state, &mut target)) / 2.0);
        saved.push(done.durable.as_secs_f64());
        verified.push((done.took - done.durable).as_secs_f64());
        dd.push(direct_write(&folder.join("dd"), megabytes)?);
    }
    let [memcpy, stall, dd] = [memcpy, stall, dd].map(median);
    let [saved, verified, processor] = [saved, verified, processor].map(median);
    Ok(serde_json::json!({
        "bytes": bytes,
        "memcpy_ms": 1e3 * memcpy,
        "stall_ms": 1e3 * stall,
        "stall_of_memcpy": stall / memcpy,
        "durable_ms": 1e3 * saved,
        "read_back_ms": 1e3 * verified,
        "processor_ms": 1e3 * processor,
        "dd_direct_ms": 1e3 * dd,
        "write_of_dd": dd / saved,
    }))
}

/// CPU time of all threads of this process in seconds.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Seconds for a plain copy of all tensors, half of the bytes by each of two threads, like the snapshot.
fn copy(state: &State, mut target: &mut [u8]) -> f64 {
    let threads = tensor::parallel::threads();
    let share = target.len().div_ceil(threads);
    let mut work: Vec<Vec<(&[f32], &mut [u8])>> = (0..threads).map(|_| Vec::new()).collect();
    let mut done = 0;
    for (_, tensor) in state.tensors.values().flatten() {
        let source = tensor.read::<f32>();
        let (to, rest) = target.split_at_mut(4 * source.len());
        work[(done / share).min(threads - 1)].push((source, to));
        done += 4 * source.len();
        target = rest;
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        for part in work {
            scope.spawn(move || {
                for (from, to) in part {
                    to.copy_from_slice(bytemuck::cast_slice(from));
                }
            });
        }
    });
    started.elapsed().as_secs_f64()
}

/// Seconds that `dd` takes to write as many megabytes, bypassing the page cache, and sync them to disk.
fn direct_write(path: &Path, megabytes: usize) -> Result<f64> {
    let started = Instant::now();
    let status = Command::new("dd")
        .arg("if=/dev/zero")
        .arg(format!("of={}", path.display()))
        .args(["bs=4M", "oflag=direct", "conv=fsync"])
        .arg(format!("count={}", megabytes.div_ceil(4)))
        .stderr(Stdio::null())
        .status()
        .map_err(|cause| Error::io(path, cause))?;
    let took = started.elapsed().as_secs_f64();
    std::fs::remove_file(path).map_err(|cause| Error::io(path, cause))?;
    if status.success() { Ok(took) } else { Err(Error::io(path, format!("dd: {status}"))) }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
