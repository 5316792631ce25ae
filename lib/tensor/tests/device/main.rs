//! Every case of every op on a device that runs kernels, in every dtype, compared with the CPU in f64: on the emulator,
//! or with LONGHAUL_TEST_DEVICE=cuda on a GPU (`make gpu-test`). LONGHAUL_TEST_OPS=linear,conv selects ops, and
//! LONGHAUL_TEST_BELOW=N cases with fewer elements touched and operations than N.

mod cases;
mod derivatives;
#[cfg(feature = "emu")]
mod emulator;
mod functions;
#[cfg(feature = "emu")]
mod opcheck;
mod optimizers;
mod samples;
mod updates;

use cases::{each_case, size};
use tensor::check::{device_error, draw, inputs, run};
#[cfg(feature = "emu")]
use tensor::kernel::{emu, trace};
#[cfg(feature = "emu")]
use tensor::op::Case;
use tensor::op::Draw;
#[cfg(feature = "emu")]
use tensor::ops::ALL;
use tensor::{Device, DeviceChoice, Tensor};
use test_support::seed;
use unix::Result;

/// The largest case for the emulator, in elements touched and operations; larger cases are for GPUs and benchmarks.
const LARGEST: usize = 3_000_000;

fn device() -> Device {
    let name = std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "emu".into());
    let wanted: DeviceChoice = name.parse().unwrap();
    wanted.open().unwrap().0
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn kernels_agree_with_the_cpu_in_f64() {
    let (device, seed) = (device(), seed());
    each_case("kernels_agree_with_the_cpu_in_f64", device, |case, dtype| {
        // The emulator is slow: only small cases are repeated with several seeds.
        let seeds = if device != Device::Emu || size(case) < 5_000 { 3 } else { 1 };
        let each = (0..seeds).map(|i| device_error(case, dtype, device, seed.wrapping_add(i)));
        let error = each.reduce(|a, b| Ok(f64::max(a?, b?))).unwrap_or(Ok(0.0))?;
        Ok((error >= 1.0).then(|| format!("{error:.2} tolerances")))
    });
}

/// Wide heads need smaller tiles where a block has 99 KB of shared memory.
#[cfg(feature = "emu")]
#[test]
fn attention_fits_into_the_shared_memory_of_every_architecture() {
    let seed = seed();
    let wide = |case: &&Case| case.inputs[0].0.last().is_some_and(|width| *width > 64);
    let cases = ALL.iter().find(|(name, _)| *name == "attention").unwrap().1();
    let cases: Vec<&Case> = cases.iter().filter(wide).filter(|c| size(c) < LARGEST).collect();
    // 163 and 99 KB; all other tests have the 227 KB of sm_90a and sm_100.
    for architecture in ["sm_80", "sm_86"] {
        emu::set_architecture(architecture).unwrap();
        for case in &cases {
            for dtype in case.op.dtypes() {
                let error = device_error(case, *dtype, Device::Emu, seed).unwrap();
                assert!(error < 1.0, "{architecture} {dtype}: {error:.2} tolerances");
            }
        }
    }
    emu::set_architecture("sm_90a").unwrap();
}

/// No case, however large, asks for more shared memory than an architecture has.
#[cfg(feature = "emu")]
#[test]
fn launches_fit_into_the_shared_memory_of_every_architecture() {
    let cases: Vec<Case> = ALL.iter().flat_map(|(_, cases)| cases()).collect();
    for (case, dtype) in cases.iter().flat_map(|c| c.op.dtypes().iter().map(move |d| (c, *d))) {
        let empty = |shape: &[usize], dtype| Tensor::empty_on(Device::Emu, shape, dtype);
        let each = case.inputs.iter().enumerate();
        let x: Vec<Tensor> =
            each.map(|(i, (s, _))| empty(s, case.op.input_dtype(i, dtype))).collect();
        let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
        let dy = empty(&case.op.shape(&shapes).unwrap(), case.op.output_dtype(dtype));
        for (architecture, most) in emu::MOST_SHARED {
            emu::set_architecture(architecture).unwrap();
            let (_, launched) = trace(|| run(case, &x, &dy, None));
            let asked = launched.iter().map(|launch| launch.grid.shared as usize).max();
            let name = case.op.name();
            assert!(
                asked <= Some(most),
                "{name} {shapes:?} {dtype} on {architecture}: {asked:?} bytes"
            );
        }
    }
    emu::set_architecture("sm_90a").unwrap();
}

#[test]
#[cfg_attr(not(feature = "emu"), ignore = "needs the feature emu, or a GPU: make gpu-test")]
fn kernels_give_the_same_bits_every_time() {
    let (device, seed) = (device(), seed());
    let bits = |t: &Tensor| Ok(t.to_host()?.as_bytes().to_vec());
    each_case("kernels_give_the_same_bits_every_time", device, |case, dtype| {
        if device == Device::Emu && size(case) > LARGEST / 10 {
            return Ok(None);
        }
        let x = case.inputs_in(&inputs(case, seed), dtype);
        let shapes: Vec<&[usize]> = x.iter().map(Tensor::shape).collect();
        let shape = case.op.shape(&shapes).unwrap();
        let dtype_of_out = case.op.output_dtype(dtype);
        let dy = draw(&shape, &Draw::Normal, seed, 99).to_dtype(dtype_of_out).to_device(device)?;
        let x = x.iter().map(|x| x.to_device(device)).collect::<Result<Vec<Tensor>>>()?;
        // On the emulator, threads and blocks run in another order each time.
        let once = |order: u64| -> Result<(Vec<u8>, Vec<Vec<u8>>)> {
            tensor::kernel::emu::set_order(order);
            let (out, grads) = run(case, &x, &dy, None);
            Ok((bits(&out)?, grads.iter().flatten().map(bits).collect::<Result<_>>()?))
        };
        Ok((once(1)? != once(seed)?).then(|| "other bits".into()))
    });
}
