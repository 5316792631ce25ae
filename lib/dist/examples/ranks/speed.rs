//! All-reduce of f32 compared with the MPI library's own, in pairs of measurements, by size.

use dist::Collective;
use std::time::Instant;
use tensor::{Device, Dtype, Tensor};
use unix::Result;

/// Pairs of measurements per size; medians are reported.
const PAIRS: usize = 15;

/// Rank 0 prints a row for each size from 1 KB to `most` bytes: microseconds and GB/s (bytes of one rank's vector over
/// time) of MPI_Allreduce; of our sum of tensors that are allocated in the window, like gradients (it overlaps with the
/// backward pass); and of our sum of tensors that are copied into the window.
pub fn table(ranks: &dyn Collective, most: usize) -> Result<()> {
    if ranks.rank() == 0 {
        println!(
            "{:>10} {:>22} {:>22} {:>22} {:>7} {:>7}",
            "bytes", "MPI_Allreduce", "in the window", "of tensors", "ratio", "ratio"
        );
    }
    let mut bytes = 1 << 10;
    while bytes <= most {
        row(ranks, bytes)?;
        bytes *= 2;
    }
    Ok(())
}

fn row(ranks: &dyn Collective, bytes: usize) -> Result<()> {
    let elements = bytes / size_of::<f32>();
    let repeats = (1 << 22) / bytes.max(1 << 12) + 1;
    let (own, mut sum) = (vec![1.0_f32; elements], vec![0.0_f32; elements]);
    let tensors = [Tensor::full(&[elements], 1.0, Dtype::F32)];
    let mut reducer = ranks.reducer(Device::Cpu, &[elements.into()])?;
    let shapes = [vec![elements]];
    let mut took = [const { Vec::new() }; 3];
    for _ in 0..=PAIRS {
        took[0].push(time(ranks, repeats, || mpi_all_reduce(&own, &mut sum))?);
        let mut sum = || {
            let buffers = reducer.buffers(0, &shapes)?;
            reducer.submit(0, buffers.unwrap_or_else(|| tensors.to_vec()))?;
            reducer.wait(0).map(drop)
        };
        took[1].push(time(ranks, repeats, &mut sum)?);
        let mut sum =
            || reducer.submit(0, tensors.to_vec()).and_then(|_| reducer.wait(0)).map(drop);
        took[2].push(time(ranks, repeats, &mut sum)?);
    }
    let [mpi, window, tensors] = took.map(|mut all| {
        all.remove(0); // pages and connections
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    });
    if ranks.rank() == 0 {
        let cell = |seconds: f64| {
            format!("{:.2} µs {:.2} GB/s", seconds * 1e6, bytes as f64 / seconds / 1e9)
        };
        let (a, b, c) = (cell(mpi), cell(window), cell(tensors));
        println!(
            "{bytes:>10} {a:>22} {b:>22} {c:>22} {:>7.2} {:>7.2}",
            mpi / window,
            mpi / tensors
        );
    }
    Ok(())
}

/// Seconds per call on the slowest rank, over `repeats` consecutive calls.
fn time(
    ranks: &dyn Collective,
    repeats: usize,
    mut call: impl FnMut() -> Result<()>,
) -> Result<f64> {
    ranks.all_gather_bytes(&[])?;
    let since = Instant::now();
    for _ in 0..repeats {
        call()?;
    }
    let seconds = since.elapsed().as_secs_f64() / repeats as f64;
    let all = ranks.all_gather_bytes(&seconds.to_le_bytes())?;
    let all = all.iter().filter_map(|bytes| Some(f64::from_le_bytes(*bytes.first_chunk()?)));
    Ok(all.fold(0.0, f64::max))
}

/// The MPI library's own all-reduce.
fn mpi_all_reduce(own: &[f32], sum: &mut [f32]) -> Result<()> {
    use mpi::ffi;
    // SAFETY: the vectors and the constants are valid. No other thread calls the library meanwhile.
    let status = unsafe {
        ffi::MPI_Allreduce(
            own.as_ptr().cast(),
            sum.as_mut_ptr().cast(),
            own.len() as i32,
            ffi::RSMPI_FLOAT,
            ffi::RSMPI_SUM,
            ffi::RSMPI_COMM_WORLD,
        )
    };
    if status == 0 { Ok(()) } else { Err(unix::Error::bug(format!("MPI_Allreduce: {status}"))) }
}
