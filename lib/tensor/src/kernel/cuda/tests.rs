//! Tests of the GPU code on a fake driver without a GPU (driver.c), which executes work as late, as early and in as
//! unusual an order as stream semantics allow. Each test runs in its own process, because a process opens a driver only
//! once.

use super::*;
use crate::kernel::{Arg, Grid, Source, finish, is_idle, read_async, waits};
use crate::{Device, Dtype, Tensor, args};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use test_support::require;

/// Set in the processes that use the fake driver.
const INSIDE: &str = "DRIVER_INSIDE";
const GPU: Device = Device::Cuda(0);

static SOURCE: Source = Source {
    name: "fake",
    text: "
        extern \"C\" __global__ void fake_add(float* x, int n, float value) {}
        extern \"C\" __global__ void fake_fault(float* x, int n, float value) {}
        extern \"C\" __global__ void fake_hang(float* x, int n, float value) {}
        struct alignas(64) TensorMap { unsigned long long opaque[16]; };
        extern \"C\" __global__ void fake_write_map(const __grid_constant__ TensorMap map, float* x) {}
    ",
    dtypes: &[Dtype::F32, Dtype::Bf16],
    only: None,
};

/// Adds `value` to all elements.
fn add(x: &mut Tensor, value: f32) {
    let n = x.len() as i32;
    SOURCE.launch(Dtype::F32, "fake_add", Grid::new(1, 256), args![x, n, value]);
}

/// Reruns a test of this file with the fake driver. `None` if NVRTC is missing.
fn with_driver(test: &str, variables: &[(&str, &str)]) -> Option<Output> {
    if !require(crate::kernel::compile::version().is_ok(), "NVRTC") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver/driver.c");
    let flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"];
    let made = Command::new("cc").args(flags).arg(&library).arg(&source).status().unwrap();
    assert!(made.success(), "{} does not compile", source.display());
    let mut path = folder.path().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &format!("kernel::cuda::tests::{test}"), "--nocapture"])
        .envs(variables.iter().copied());
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", path);
    command.env("LONGHAUL_KERNEL_CACHE", folder.path().join("kernels"));
    Some(command.output().unwrap())
}

/// Whether this process uses the fake driver; if not, reruns the test with several seeds.
fn inside(test: &str, variables: &[(&str, &str)]) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    for seed in ["1", "2", "3"] {
        let variables = [variables, &[("DRIVER_SEED", seed)]].concat();
        let Some(output) = with_driver(test, &variables) else { return false };
        let text = String::from_utf8_lossy(&output.stdout);
        let talk = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{test}, seed {seed}: {text}{talk}");
        assert!(text.contains("1 passed"), "{test}: {text}");
    }
    false
}

/// Returns values that differ between neighbouring elements and for which small sums are exact.
fn values(n: usize, shift: usize) -> Vec<f32> {
    (0..n).map(|i| ((i + shift) % 65521) as f32).collect()
}

#[test]
fn copies_keep_to_the_order_of_launches() {
    if !inside("copies_keep_to_the_order_of_launches", &[]) {
        return;
    }
    // A piece is 4 MiB: test less than one piece, exactly one, more pieces than are in flight, and an odd remainder.
    for (round, n) in [1, 1000, 1 << 20, (5 << 20) + 3, 7].into_iter().enumerate() {
        let host = values(n, round);
        let mut x = Tensor::from_slice(&host, &[n]).to_device(GPU).unwrap();
        add(&mut x, 1.0);
        let before = x.clone();
        add(&mut x, 2.0);
        // Uploaded into memory that kernels still use.
        let scratch = Tensor::from_slice(&values(n, 99), &[n]).to_device(GPU).unwrap();
        drop(scratch);
        let again = Tensor::from_slice(&host, &[n]).to_device(GPU).unwrap();
        let expect = |add: f32| host.iter().map(|x| x + add).collect::<Vec<f32>>();
        assert!(before.to_host().unwrap().read::<f32>() == expect(1.0), "{n}: a copy on the GPU");
        assert!(x.to_host().unwrap().read::<f32>() == expect(3.0), "{n}: after two launches");
        assert!(again.to_host().unwrap().read::<f32>() == expect(0.0), "{n}: in and out");
        let zeros = Tensor::zeros_on(GPU, &[n], Dtype::F32).to_host().unwrap();
        assert!(zeros.read::<f32>().iter().all(|x| *x == 0.0), "{n}: cleared");
    }
    finish(GPU).unwrap();
}

#[test]
fn a_value_that_is_wanted_later_waits_for_no_later_kernel() {
    if !inside("a_value_that_is_wanted_later_waits_for_no_later_kernel", &[]) {
        return;
    }
    let mut x = Tensor::from_slice(&values(100, 0), &[100]).to_device(GPU).unwrap();
    let expect = |add: f32| values(100, 0).iter().map(|x| x + add).collect::<Vec<f32>>();
    // Start more copies per round, read in either order or not at all.
    for round in 1..20 {
        let mut sent = Vec::new();
        for i in 0..round {
            add(&mut x, 1.0);
            sent.push((read_async(&x), i + 1));
            // The sent tensors' memory is overwritten before the copies are read.
            add(&mut Tensor::zeros_on(GPU, &[100], Dtype::F32), 5.0);
        }
        if round % 2 == 0 {
            sent.reverse();
        }
        if round % 3 == 0 {
            sent.pop();
        }
        for (late, added) in sent {
            assert!(late.wait().unwrap().read::<f32>() == expect(added as f32), "{round}");
        }
        add(&mut x, -round as f32);
    }
    // A kernel that never ends: the test fails if anything waits for it.
    let waited = waits();
    let late = read_async(&x);
    SOURCE.launch(Dtype::F32, "fake_hang", Grid::new(1, 32), args![&x, 1i32, 1.0f32]);
    add(&mut x, 1.0);
    assert!(late.wait().unwrap().read::<f32>() == expect(0.0));
    assert_eq!(waits(), waited);
    let many = Tensor::zeros_on(GPU, &[1025], Dtype::F32);
    assert!(read_async(&many).wait().unwrap_err().to_string().contains("for an async copy"));
}

#[test]
fn threads_share_a_gpu() {
    if !inside("threads_share_a_gpu", &[]) {
        return;
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for round in 0..8 {
                    let host = values(40_000 + 100 * thread, thread + round);
                    let mut x = Tensor::from_slice(&host, &[host.len()]).to_device(GPU).unwrap();
                    add(&mut x, 1.0);
                    let back = x.to_host().unwrap();
                    assert!(back.read::<f32>().iter().zip(&host).all(|(b, h)| *b == h + 1.0));
                }
            });
        }
    });
}

#[test]
fn a_graph_does_again_what_was_recorded() {
    if !inside("a_graph_does_again_what_was_recorded", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    let mut x = Tensor::from_slice(&values(100, 0), &[100]).to_device(GPU).unwrap();
    add(&mut x, 1.0);
    let work = |x: &mut Tensor| [1.0, 2.0].into_iter().for_each(|value| add(x, value));
    let (graphs, ()) = gpu.capture(|_| work(&mut x)).unwrap();
    let [graph] = &graphs[..] else { panic!("{graphs:?}") };
    graph.replay().unwrap();
    graph.replay().unwrap();
    let expect: Vec<f32> = values(100, 0).iter().map(|x| x + 7.0).collect();
    assert_eq!(x.to_host().unwrap().read::<f32>(), expect);
    // Segments can be submitted separately.
    let (graphs, cut) = gpu
        .capture(|capture| {
            add(&mut x, 0.25);
            capture.cut()?;
            work(&mut x);
            capture.cut()
        })
        .unwrap();
    cut.unwrap();
    let [first, second, nothing] = &graphs[..] else { panic!("{graphs:?}") };
    for graph in [first, first, nothing, second] {
        graph.replay().unwrap();
    }
    let expect: Vec<f32> = expect.iter().map(|x| x + 3.5).collect();
    assert_eq!(x.to_host().unwrap().read::<f32>(), expect);
    // Host transfers cannot be part of a graph, and the GPU still works after the attempt.
    let mut error = None;
    let done = gpu.capture(|_| error = Some(x.to_host().unwrap_err().to_string()));
    assert!(error.unwrap().contains("cannot be part of a graph"));
    drop(done);
    assert_eq!(x.to_host().unwrap().read::<f32>(), expect);
    // A graph is rejected if one of its launches failed during capture.
    let lacking = gpu.capture(|_| {
        add(&mut x, 1.0);
        SOURCE.launch(Dtype::F32, "fake_absent", Grid::new(1, 32), args![&x, 1i32, 1.0f32]);
    });
    assert!(lacking.unwrap_err().to_string().contains("there is no fake_absent"));
    let panicked = std::panic::catch_unwind(|| gpu.capture(|_| panic!("inside a graph")));
    assert!(panicked.is_err());
    assert_eq!(x.to_host().unwrap().read::<f32>(), expect);
}

#[test]
fn every_refusal_names_the_launch() {
    if !inside("every_refusal_names_the_launch", &[]) {
        return;
    }
    let gpu = Gpu::open(0).unwrap();
    assert_eq!((gpu.name(), gpu.architecture()), ("Fake H100", "sm_90a"));
    let mut x = Tensor::zeros_on(GPU, &[8], Dtype::F32);
    let refused = |kernel, grid: Grid, args: &[Arg], says: &[&str]| {
        SOURCE.launch(Dtype::F32, kernel, grid, args);
        let message = finish(GPU).unwrap_err().to_string();
        for words in says {
            assert!(message.contains(words), "no {words} in {message}");
        }
    };
    let grid = Grid::new(3, 64);
    let good = args![&x, 8i32, 1.0f32];
    refused(
        "fake_add",
        grid,
        args![&x, 8i32],
        &[
            "cuda:0: fake_add (f32, 3 x 1 x 1 blocks of 64 x 1 x 1",
            "[8, 4] bytes for parameters of [8, 4, 4]",
        ],
    );
    refused("fake_absent", grid, good, &["there is no fake_absent in fake.cu"]);
    refused(
        "fake_add",
        Grid::new(3, 2048),
        good,
        &["blocks of 2048 x 1 x 1 threads", "another error"],
    );
    refused(
        "fake_add",
        grid.shared(1 << 20),
        good,
        &["1048576 bytes of shared memory", "Fake H100 has 232448 bytes", "1024 of them static"],
    );
    // More shared memory than the 48 KiB that need no opt-in.
    SOURCE.launch(Dtype::F32, "fake_add", grid.shared(200 << 10), good);
    finish(GPU).unwrap();
    add(&mut x, 1.0);
    assert_eq!(x.to_host().unwrap().read::<f32>(), [2.0; 8]);
    // After a fault inside a kernel, all later operations fail.
    SOURCE.launch(Dtype::F32, "fake_fault", grid, args![&x, 8i32, 1.0f32]);
    let message = x.to_host().unwrap_err().to_string();
    for words in ["an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"] {
        assert!(message.contains(words), "no {words} in {message}");
    }
    assert!(x.to_host().is_err());
}

#[test]
fn a_kernel_gets_tensor_maps_by_value() {
    if !inside("a_kernel_gets_tensor_maps_by_value", &[]) {
        return;
    }
    // Three matrices of 5 lines of 40 elements, with 8 elements between lines.
    let x = Tensor::zeros_on(GPU, &[3 * 5 * 48], Dtype::Bf16);
    let mut words = Tensor::zeros_on(GPU, &[32], Dtype::I32);
    let (extents, boxes) = ([40, 5, 1, 3], [64, 128, 1, 1]);
    let map = |strides| Arg::tensor_map(&x, extents, strides, boxes);
    let args = [map([48, 8, 240]), Arg::from(&mut words)];
    SOURCE.launch(Dtype::Bf16, "fake_write_map", Grid::new(1, 32), &args);
    let address = args[0].value().bits();
    let expected = [9, address, 40, 5, 1, 3, 96, 16, 480, 64, 128, 1, 1];
    let halves = expected.iter().flat_map(|word| [*word as i32, (*word >> 32) as i32]);
    assert_eq!(words.to_host().unwrap().read::<i32>()[..26], halves.collect::<Vec<_>>());
    let args = [map([41, 8, 240]), Arg::from(&mut words)];
    SOURCE.launch(Dtype::Bf16, "fake_write_map", Grid::new(1, 32), &args);
    let message = finish(GPU).unwrap_err().to_string();
    for part in ["fake_write_map", "describing a tensor for copies of boxes", "[82, 16, 480]"] {
        assert!(message.contains(part), "no {part} in {message}");
    }
}

/// Drivers before CUDA 12.4 cannot query the parameters of a kernel, so they are read from the cubin.
#[test]
fn an_old_driver_refuses_wrong_arguments_too() {
    let test = "an_old_driver_refuses_wrong_arguments_too";
    if !inside(test, &[("DRIVER_VERSION", "12000")]) {
        return;
    }
    let x = Tensor::zeros_on(GPU, &[8], Dtype::F32);
    let wrong: [&[Arg]; 3] =
        [args![&x, 8i32], args![&x, 8i32, 1.0f64], args![&x, 8i32, 1.0f32, 2i32]];
    for args in wrong {
        SOURCE.launch(Dtype::F32, "fake_add", Grid::new(1, 64), args);
        let message = finish(GPU).unwrap_err().to_string();
        assert!(message.contains("for parameters of [8, 4, 4] bytes"), "{message}");
    }
    SOURCE.launch(Dtype::F32, "fake_add", Grid::new(1, 64), args![&x, 8i32, 1.0f32]);
    finish(GPU).unwrap();
}

#[test]
fn no_memory_is_told_with_what_there_is() {
    if !inside("no_memory_is_told_with_what_there_is", &[("DRIVER_MEMORY", "40000000")]) {
        return;
    }
    let x = Tensor::zeros_on(GPU, &[3_000_000], Dtype::F32);
    let (free, total) = Gpu::open(0).unwrap().memory().unwrap();
    assert!(total == 40_000_000 && free < total - 12_000_000);
    let _more = Tensor::zeros_on(GPU, &[30_000_000], Dtype::F32);
    let message = finish(GPU).unwrap_err().to_string();
    for words in
        ["cuda:0 has no memory", "out of memory (CUDA_ERROR_OUT_OF_MEMORY)", "of 40000000 are free"]
    {
        assert!(message.contains(words), "no {words} in {message}");
    }
    assert_eq!(x.to_host().unwrap().read::<f32>()[0], 0.0);
}

#[test]
fn a_gpu_is_idle_once_its_work_is_done_without_being_waited_for() {
    if !inside("a_gpu_is_idle_once_its_work_is_done_without_being_waited_for", &[]) {
        return;
    }
    let mut x = Tensor::zeros_on(GPU, &[100], Dtype::F32);
    (0..50).for_each(|_| add(&mut x, 1.0));
    // The driver makes at most one step in a query.
    let (before, busy) = (waits(), (0..10_000).position(|_| is_idle(GPU)).unwrap());
    assert!(busy > 0 && waits() == before, "{busy} queries");
    assert_eq!(x.to_host().unwrap().read::<f32>(), [50.0; 100]);
}

#[test]
fn exact_allocations_are_not_cached() {
    if !inside("exact_allocations_are_not_cached", &[("LONGHAUL_DEVICE_EXACT", "1")]) {
        return;
    }
    let held = || crate::kernel::memory::usage(GPU).held;
    let x = Tensor::zeros_on(GPU, &[1001], Dtype::F32);
    let empty = Tensor::zeros_on(GPU, &[0], Dtype::F32);
    assert_eq!(held(), 4016 + 16);
    drop((x, empty));
    assert_eq!(held(), 0);
    finish(GPU).unwrap();
}

#[test]
fn a_machine_that_will_not_do_is_told_of() {
    if std::env::var_os(INSIDE).is_some() {
        println!("{}", Gpu::open(0).unwrap_err());
        return;
    }
    let cases = [
        (("DRIVER_DEVICES", "0"), "no GPU: the CUDA driver finds none"),
        (
            ("DRIVER_VERSION", "11080"),
            "the CUDA driver supports CUDA 11.8, but 12.0 or newer is required",
        ),
        (("DRIVER_MAJOR", "7"), "has compute capability 7.0, but 8.0 or newer is required"),
    ];
    for (variable, says) in cases {
        let Some(output) = with_driver("a_machine_that_will_not_do_is_told_of", &[variable]) else {
            return;
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains(says), "{text}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_told_of_at_once() {
    let start = Instant::now();
    let error = Gpu::open(63).unwrap_err();
    assert_eq!(error.exit, Exit::Failure);
    let message = error.to_string();
    assert!(message.contains("no GPU: ") || message.contains("no cuda:63: "), "{message}");
    if message.contains("no CUDA driver") {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    }
    assert_eq!(Gpu::open(1000).unwrap_err().exit, Exit::Failure);
}
