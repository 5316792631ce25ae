//! A program with many ranks, with one subcommand per guarantee of the collectives. The tests run it under mpirun.

mod check;
mod gpu;
mod speed;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use dist::{Bucket, Collective};
use tensor::{Device, Dtype, Tensor};
use unix::signal::Signals;
use unix::{Exit, Result};

/// Show what ranks can say to each other
#[derive(Parser)]
#[command(name = "ranks", version = "1.2.3 (abcdef123456)")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Compare every collective with the same computed by one rank
    Check {
        /// What the random numbers depend on
        seed: u64,
    },
    /// Say who is here, and whether MPI was started
    Who,
    /// Sum for so many seconds, ready to be interfered with; leave with 75 on faults
    Loop {
        /// How long
        seconds: f64,
        /// Milliseconds of computing between two sums, by rank; the last holds for the rest
        #[arg(long, value_delimiter = ',', default_value = "1")]
        compute: Vec<u64>,
        /// After this many sums rank 1 computes for ever
        #[arg(long)]
        stuck: Option<u64>,
        /// After this many sums rank 1 is busy for so many seconds
        #[arg(long)]
        busy: Option<u64>,
        /// After this many sums rank 1 returns an error
        #[arg(long)]
        fail: Option<u64>,
    },
    /// Wait for SIGUSR1 with our handler
    Signals,
    /// Each rank in another call
    Mismatch,
    /// Rank 1 never starts MPI
    Never,
    /// Compare NCCL's collectives on GPU 0 with the same computed by one rank
    Gpu {
        /// What the random numbers depend on
        seed: u64,
        /// Sum gradients in bf16
        #[arg(long)]
        bf16: bool,
        /// Afterwards, sum for so many seconds
        #[arg(long, default_value_t = 0.0)]
        seconds: f64,
    },
    /// All-reduce against the MPI library's own
    Speed {
        /// Most bytes
        #[arg(default_value_t = 64 << 20)]
        most: usize,
    },
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| {
        let signals = match args.verb {
            Verb::Signals => Some(Signals::install()?),
            _ => None,
        };
        if let Verb::Never = args.verb
            && std::env::var("OMPI_COMM_WORLD_RANK").is_ok_and(|rank| rank == "1")
        {
            say(format_args!("ready 1 {}", std::process::id()));
            std::thread::sleep(Duration::from_secs(3600));
        }
        let ranks = dist::open(|| Exit::Again)?;
        work(args.verb, &*ranks, signals).map_err(|error| ranks.abort(error))?;
        ranks.close()?;
        Ok(Exit::Done)
    })
}

fn work(verb: Verb, ranks: &dyn Collective, signals: Option<Signals>) -> Result<()> {
    match verb {
        Verb::Check { seed } => check::all(ranks, seed),
        Verb::Who => {
            let (rank, size, local) = (ranks.rank(), ranks.size(), ranks.local_rank());
            say(format_args!(
                "rank {rank} of {size}, {local} on {}, mpi {}",
                ranks.host(rank),
                mpi_runs()
            ));
            Ok(())
        }
        Verb::Loop { seconds, compute, stuck, busy, fail } => {
            let at = [stuck, busy, fail].map(|at| at.filter(|_| ranks.rank() == 1));
            sums(ranks, seconds, compute, at)
        }
        Verb::Signals => {
            let signals = signals.map_or_else(Signals::install, Ok)?;
            say(format_args!("ready {} {}", ranks.rank(), std::process::id()));
            let since = Instant::now();
            loop {
                std::thread::sleep(Duration::from_millis(5));
                // A rank that was signalled tells the others, so that all leave together.
                let over = since.elapsed() > Duration::from_secs(30);
                if any(ranks, over || signals.stop_requested().is_some())? {
                    break;
                }
            }
            say(format_args!("rank {} saw {:?}", ranks.rank(), signals.stop_requested()));
            Ok(())
        }
        Verb::Mismatch if ranks.rank() == 0 => ranks.broadcast(vec![1]).map(drop),
        Verb::Mismatch => ranks.all_gather_bytes(&[1]).map(drop),
        Verb::Never => Ok(()),
        Verb::Gpu { seed, bf16, seconds } => {
            gpu::all(ranks, seed, if bf16 { Dtype::Bf16 } else { Dtype::F32 })?;
            println!("rank {} of {}: all as computed by one", ranks.rank(), ranks.size());
            if seconds > 0.0 { gpu::sum_for(ranks, seconds) } else { Ok(()) }
        }
        Verb::Speed { most } => speed::table(ranks, most),
    }
}

/// Sums repeatedly, computing in between.
fn sums(
    ranks: &dyn Collective,
    seconds: f64,
    compute: Vec<u64>,
    [stuck, busy, fail]: [Option<u64>; 3],
) -> Result<()> {
    let buckets = [70_001, 33];
    let mut reducer = ranks.reducer(Device::Cpu, &buckets.map(Bucket::from))?;
    ranks.watch();
    say(format_args!("ready {} {}", ranks.rank(), std::process::id()));
    let compute = compute.get(ranks.rank()).or(compute.last()).copied().unwrap_or(0);
    let (since, mut count) = (Instant::now(), 0);
    let tensors = buckets.map(|n| Tensor::full(&[n], 1.0, tensor::Dtype::F32));
    loop {
        std::thread::sleep(Duration::from_millis(compute));
        if stuck == Some(count) {
            std::thread::sleep(Duration::from_secs(3600));
        }
        if let Some(busy) = busy.filter(|_| count == 3) {
            let _busy = ranks.busy(Duration::from_secs(2 * busy));
            std::thread::sleep(Duration::from_secs(busy));
        }
        if fail == Some(count) {
            return Err(unix::Error::new(Exit::Io, "the disk is full"));
        }
        for (bucket, tensor) in tensors.iter().enumerate() {
            reducer.submit(bucket, vec![tensor.clone()])?;
        }
        for bucket in 0..buckets.len() {
            let (sums, size) = (reducer.wait(bucket)?, ranks.size() as f32);
            assert!(sums[0].read::<f32>().iter().all(|x| *x == size), "sum {count}");
        }
        count += 1;
        if any(ranks, since.elapsed().as_secs_f64() > seconds)? {
            say(format_args!("rank {} summed {count} times", ranks.rank()));
            return Ok(());
        }
    }
}

/// Whether `here` is true on any rank.
fn any(ranks: &dyn Collective, here: bool) -> Result<bool> {
    Ok(ranks.all_gather_bytes(&[u8::from(here)])?.iter().any(|there| *there == [1]))
}

/// Prints a line to stdout in a single write.
fn say(line: std::fmt::Arguments) {
    let _ = std::io::stdout().write_all(format!("{line}\n").as_bytes());
}

fn mpi_runs() -> bool {
    let mut runs = 0;
    // SAFETY: may be called at any time; writes to the integer.
    unsafe { mpi::ffi::MPI_Initialized(&mut runs) };
    runs != 0
}
