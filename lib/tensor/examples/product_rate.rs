//! Rates of matrix products on the CPU in f32 and with operands rounded to bf16 (`tensor::product::bf16`), for comparison with
//! other programs: the counterpart of `tests/peers/bf16.py`.
//!
//! Reads requests from standard input, one a line, and answers each with a JSON object on a line. `M N K f32` and `M N K bf16`:
//! the milliseconds of y = x Wᵀ for x [M, K] and W [N, K] in f32, with all rounding and packing of both. `peaks`: GFLOP/s of the
//! multiplications and additions of a loop on registers, with 512 bits, on one thread, by instruction (`vfmadd231ps`,
//! `vdpbf16ps`, `tdpbf16ps`), of those that the processor has; and the instructions that products use (`level`).

use clap::Parser;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;
use tensor::check::draw;
use tensor::op::Draw;
use tensor::ops::activation::Activation;
use tensor::ops::linear::Linear;
use tensor::product::bf16;
use tensor::{Dtype, Tape, Var, constant, parallel};
use unix::{Error, Exit, Result};

/// Time matrix products, as requests on standard input say
#[derive(Parser)]
#[command(name = "product_rate")]
struct Args {
    /// Number of threads
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    unix::cli::main(|args: Args| {
        parallel::start_threads(Some(args.threads))?;
        parallel::inside(serve)?;
        Ok(Exit::Done)
    })
}

fn serve() -> Result<()> {
    let mut operands = HashMap::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| Error::bug(format!("standard input: {error}")))?;
        let answer = match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["peaks"] => json!({"peaks": peaks(), "level": bf16::level()?.name()}),
            [m, n, k, dtype @ ("f32" | "bf16")] => {
                let sizes = [m, n, k].map(str::parse::<usize>);
                let [Ok(m), Ok(n), Ok(k)] = sizes else { return Err(unknown(&line)) };
                let [x, w] = operands.entry([m, n, k]).or_insert_with(|| {
                    [(m, 0), (n, 1)].map(|(rows, i)| {
                        constant(draw(&[rows, k], &Draw::Normal, 1, i).to_dtype(Dtype::F32))
                    })
                });
                let rounding = (dtype == "bf16").then(bf16::Rounding::begin);
                let found = milliseconds(x, w)?;
                drop(rounding);
                json!({"ms": found})
            }
            _ => return Err(unknown(&line)),
        };
        println!("{answer}");
    }
    Ok(())
}

fn unknown(request: &str) -> Error {
    Error::usage(format!("{request}: a request is `M N K f32`, `M N K bf16` or `peaks`"))
}

fn milliseconds(x: &Var, w: &Var) -> Result<f64> {
    let op = Linear { bias: false, activation: Activation::Identity };
    let start = Instant::now();
    let out = Tape::without_gradients().apply(op, &[x, w])?;
    let found = 1e3 * start.elapsed().as_secs_f64();
    drop(out);
    Ok(found)
}

/// GFLOP/s of each instruction.
fn peaks() -> Map<String, Value> {
    let mut found = Map::new();
    #[cfg(target_arch = "x86_64")]
    registers::measure(&mut |name, rate| {
        found.insert(name.into(), json!((rate * 10.0).round() / 10.0));
    });
    found
}

/// Loops on registers, whose values are zeros. Inline assembly, so that the compiler cannot shorten them.
#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::asm;
    use std::time::Instant;
    use tensor::product::bf16::Level;

    const LOOPS: usize = 2_000_000;

    type Loop = unsafe fn();

    /// A loop over 12 independent instructions with 512 bits.
    macro_rules! loop_of {
        ($instruction:literal) => {
            asm!(
                // The upper halves are cleared as well.
                "vxorps ymm30, ymm30, ymm30", "vxorps ymm31, ymm31, ymm31",
                "2:",
                concat!($instruction, " zmm0, zmm30, zmm31"),
                concat!($instruction, " zmm1, zmm30, zmm31"),
                concat!($instruction, " zmm2, zmm30, zmm31"),
                concat!($instruction, " zmm3, zmm30, zmm31"),
                concat!($instruction, " zmm4, zmm30, zmm31"),
                concat!($instruction, " zmm5, zmm30, zmm31"),
                concat!($instruction, " zmm6, zmm30, zmm31"),
                concat!($instruction, " zmm7, zmm30, zmm31"),
                concat!($instruction, " zmm8, zmm30, zmm31"),
                concat!($instruction, " zmm9, zmm30, zmm31"),
                concat!($instruction, " zmm10, zmm30, zmm31"),
                concat!($instruction, " zmm11, zmm30, zmm31"),
                "dec {left}", "jnz 2b",
                left = inout(reg) LOOPS => _,
                out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _, out("zmm4") _, out("zmm5") _,
                out("zmm6") _, out("zmm7") _, out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
                out("zmm30") _, out("zmm31") _,
                options(nomem, nostack),
            )
        };
    }

    /// The operand of `ldtilecfg`: palette 1, and eight tiles of 16 rows of 64 bytes.
    #[repr(C, align(64))]
    struct Configuration([u8; 64]);

    #[target_feature(enable = "avx512f")]
    unsafe fn fused() {
        // SAFETY: only registers that the statement names change.
        unsafe { loop_of!("vfmadd231ps") };
    }

    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn pairs() {
        // SAFETY: as above.
        unsafe { loop_of!("vdpbf16ps") };
    }

    unsafe fn tiles() {
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = 64;
            configuration.0[48 + tile] = 16;
        }
        // SAFETY: the caller guarantees AMX, which the process may use; the configuration is valid, and is only read.
        unsafe {
            asm!(
                "ldtilecfg [{configuration}]",
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm6", "tilezero tmm7",
                "2:",
                "tdpbf16ps tmm0, tmm6, tmm7",
                "tdpbf16ps tmm1, tmm6, tmm7",
                "tdpbf16ps tmm2, tmm6, tmm7",
                "tdpbf16ps tmm3, tmm6, tmm7",
                "dec {left}", "jnz 2b",
                "tilerelease",
                configuration = in(reg) &configuration, left = inout(reg) LOOPS => _,
                options(readonly, nostack),
            );
        }
    }

    pub fn measure(note: &mut dyn FnMut(&str, f64)) {
        let has = |level: Level| level.is_there();
        // Multiplications and additions of an instruction.
        let all = [
            ("vfmadd231ps", is_x86_feature_detected!("avx512f"), fused as Loop, 12 * 2 * 16),
            ("vdpbf16ps", has(Level::Avx512), pairs, 12 * 2 * 32),
            ("tdpbf16ps", has(Level::Amx), tiles, 4 * 2 * 16 * 16 * 32),
        ];
        for (name, _, run, operations) in all.into_iter().filter(|(_, is_there, ..)| *is_there) {
            let seconds = (0..5).map(|_| {
                let start = Instant::now();
                // SAFETY: the processor has the instruction.
                unsafe { run() };
                start.elapsed().as_secs_f64()
            });
            let least = seconds.fold(f64::INFINITY, f64::min);
            note(name, (LOOPS * operations) as f64 / least / 1e9);
        }
    }
}
