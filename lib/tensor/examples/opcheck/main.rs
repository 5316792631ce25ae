//! Benchmark of every op and update against what this machine or a GPU can do.
//!
//! Bounds are measured first, on the same threads or device: the rate of a copy between buffers larger than the caches,
//! and that of a large matrix product (on a device, by our own kernel). A call is at least as slow as its bytes at the
//! one rate and its operations at the other; `of_bound` is the larger of these times divided by the measured one. It
//! exceeds 1 if the data stay in cache, and is far below 1 for small cases, where call overhead dominates.
//!
//! Bytes are the minimum that must move: forward, inputs and output; backward, inputs, the gradient of the output and
//! the gradients of the inputs. Operations of a backward pass are those of one forward pass for each differentiated
//! operand of a product (two at most): recomputation does not count as work. An update has one pass, reported in the
//! columns of the forward pass.
//!
//! With `--model`, rows of ops also have the time that a model of a GPU computes (`model.rs`), which is not a measurement;
//! on the emulator they have nothing else. With `--ceilings`, bounds are computed from the rates in a file instead, such as
//! those of another library on the same card.
//!
//! A row that fails has the field `failed`; the rows after it are measured in another process (`rest.rs`), and the exit
//! status is 1.

mod large;
mod machine;
mod model;
mod rest;
mod updates;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use machine::{Machine, bytes, rounded};
use model::{GPUS, Model};
use serde_json::{Map, Value, json};
use tensor::check::{backward, draw, forward, inputs};
use tensor::op::{Case, Draw};
use tensor::{Device, DeviceChoice, Dtype, Tensor, kernel, ops, parallel};
use unix::cli::Output;
use unix::out::Out;
use unix::{Error, Exit, Result};
use updates::UPDATES;

/// Time every case of every op, and the updates, against this machine's rates
#[derive(Parser)]
#[command(name = "opcheck")]
struct Args {
    /// Only ops and updates whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    filter: String,
    /// Where to compute: cpu, cuda, cuda:N, emu (which times the emulator)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    /// Element type on a device; tf32 is f32 whose products are rounded to it
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "tf32", "bf16", "f16"],
          default_value = "f32")]
    element: String,
    /// Compute products of 16-bit matrices without wgmma, also on Hopper
    #[arg(long)]
    no_wgmma: bool,
    /// Let warpgroups of Hopper share every part of a product instead of taking parts in turns
    #[arg(long)]
    no_pingpong: bool,
    /// Sizes at which GPUs are compared, in place of those that tests run
    #[arg(long)]
    large: bool,
    /// Model the time of ops on this GPU, from the machine code of the kernels. On the emulator nothing runs
    #[arg(long, value_name = "GPU", value_parser = GPUS.each_ref().map(|gpu| gpu.name))]
    model: Option<String>,
    /// Compute bounds from the rates in this JSON file, copy_gb_s and TYPE_gflop_s, which are measured otherwise
    #[arg(long, value_name = "FILE")]
    ceilings: Option<PathBuf>,
    /// Leave out this many rows, such as those of an earlier call that was killed
    #[arg(long, value_name = "N", default_value_t = 0, overrides_with = "from")]
    from: usize,
    /// Leave out the rows of this op or update, such as one that hangs; can be repeated
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,
    /// Name each row before it is measured, so that one that hangs is known
    #[arg(long)]
    announce: bool,
    /// End at the first row that fails
    #[arg(long, hide = true)]
    single: bool,
    /// Only cases with fewer elements and operations than this
    #[arg(long, value_name = "N", default_value_t = usize::MAX)]
    below: usize,
    /// Number of threads, one for each processor by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    #[command(flatten)]
    output: Output,
}

fn main() -> ExitCode {
    unix::cli::main(body)
}

fn body(args: Args) -> Result<Exit> {
    if let Some(threads) = args.threads {
        parallel::start_threads(Some(usize::from(threads)))?;
    }
    let mut out = Out::stdout(args.output);
    let (device, why) = args.device.open()?;
    let element = match args.element.as_str() {
        "bf16" => Dtype::Bf16,
        "f16" => Dtype::F16,
        _ => Dtype::F32,
    };
    kernel::set_tf32(args.element == "tf32");
    kernel::set_wgmma(!args.no_wgmma);
    kernel::set_pingpong(!args.no_pingpong);
    let gpu = args.model.and_then(|name| GPUS.iter().find(|gpu| gpu.name == name));
    let model = gpu.map(Model::new);
    if model.is_some() && device == Device::Cpu {
        return Err(Error::usage(
            "--model needs --device emu or cuda: kernels do not run on the CPU",
        ));
    }
    let cases = if args.large { large::cases() } else { tested() };
    let cases = cases.into_iter().filter(|(_, case)| {
        let elements: usize =
            case.inputs.iter().map(|(shape, _)| shape.iter().product::<usize>()).sum();
        let runs = device == Device::Cpu || case.op.dtypes().contains(&element);
        let named = case.op.name().contains(&args.filter);
        named && runs && elements.max(case.operations) < args.below
    });
    if let Some(model) = model.as_ref().filter(|_| device == Device::Emu) {
        kernel::emu::set_architecture(model.architecture())?;
        for (options, case) in cases {
            let mut row = head(options, &case);
            row.extend(modelled(&case, model, device, element));
            out.row(&row)?;
        }
        out.finish()?;
        return Ok(Exit::Done);
    }
    let machine = match &args.ceilings {
        Some(file) => Machine::from_file(file, device, (element, &args.element))?,
        None => Machine::measure(device, element)?,
    };
    let (threads, copy, product) = (parallel::threads(), machine.copy, machine.product);
    let place = match device {
        Device::Cpu => format!("{threads} threads"),
        device => format!("{device} ({why}), {}", args.element),
    };
    out.item(
        &json!({"device": place, "copy_gb_s": copy / 1e9, "product_gflop_s": product / 1e9}),
        format!("{place}: copy {copy:.3e} bytes/s, product {product:.3e} operations/s"),
    )?;
    let named = |name: &str| name.contains(&args.filter) && machine.update_elements() < args.below;
    let updates = UPDATES.iter().filter(|update| named(update.name));
    let rows: Vec<Row> = cases
        .map(|(options, case)| Row { head: head(options, &case), work: Work::Case(case) })
        .chain(updates.map(|update| Row {
            head: updates::head(update, &machine),
            work: Work::Update(update),
        }))
        .collect();
    for (i, row) in rows.iter().enumerate().skip(args.from) {
        let mut fields = row.head.clone();
        if args.without.iter().any(|name| fields["name"] == name.as_str()) {
            continue;
        }
        if args.announce {
            let next = json!({"row": i, "next": fields["name"], "inputs": fields["inputs"]});
            out.item(&next, format!("row {i}: {} {}", fields["name"], fields["inputs"]))?;
        }
        match row.work.times(&machine) {
            Ok(times) => fields.extend(times),
            Err(why) => _ = fields.insert("failed".into(), why.to_string().into()),
        }
        if let (Work::Case(case), Some(model)) = (&row.work, &model) {
            fields.extend(modelled(case, model, device, element));
        }
        out.row(&fields)?;
        if fields.contains_key("failed") {
            let heads: Vec<_> = rows.iter().map(|row| &row.head).collect();
            let after = if args.single { 0 } else { rest::measure(&mut out, &heads, i + 1)? };
            out.finish()?;
            return Err(Error::new(Exit::Failure, format!("rows that failed: {}", 1 + after)));
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// A row of the output: the fields that name it, and what is measured for it.
struct Row {
    head: Map<String, Value>,
    work: Work,
}

enum Work {
    Case(Case),
    Update(&'static updates::Update),
}

impl Work {
    fn times(&self, machine: &Machine) -> Result<Map<String, Value>> {
        match self {
            Work::Case(case) => times(case, machine),
            Work::Update(update) => updates::times(update, machine),
        }
    }
}

/// Distinguishes a case from others, as fields of its row.
type Options = Map<String, Value>;

/// The cases of the tests, numbered.
fn tested() -> Vec<(Options, Case)> {
    let numbered = |(i, case)| ([("case".to_string(), json!(i))].into_iter().collect(), case);
    ops::ALL.iter().flat_map(|(_, cases)| cases().into_iter().enumerate().map(numbered)).collect()
}

/// The fields that name a case.
fn head(options: Options, case: &Case) -> Map<String, Value> {
    let shapes = case
        .inputs
        .iter()
        .map(|(shape, _)| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"));
    let mut row = Map::new();
    row.insert("name".into(), case.op.name().into());
    row.extend(options);
    row.insert("inputs".into(), shapes.collect::<Vec<_>>().join(" ").into());
    row
}

/// Modelled times of a case.
fn modelled(case: &Case, model: &Model, device: Device, dtype: Dtype) -> Map<String, Value> {
    let zeros = |(i, (shape, _)): (usize, &(Vec<usize>, Draw))| {
        Tensor::zeros_on(device, shape, case.op.input_dtype(i, dtype))
    };
    let x: Vec<Tensor> = case.inputs.iter().enumerate().map(zeros).collect();
    let ((out, saved), first) = kernel::trace(|| forward(case, &x));
    let given = Tensor::zeros_on(device, out.shape(), out.dtype());
    let ((), second) = kernel::trace(|| drop(backward(case, &x, &saved, given)));
    let mut fields = Map::new();
    for (pass, launches) in [("forward", &first), ("backward", &second)] {
        let (seconds, limit) = model.time(launches);
        fields.insert(format!("{pass}_modelled_us"), rounded(seconds * 1e6).into());
        fields.insert(format!("{pass}_limit"), limit.name().into());
    }
    fields
}

/// Measured times of a case.
fn times(case: &Case, machine: &Machine) -> Result<Map<String, Value>> {
    let (device, dtype) = (machine.device, machine.element);
    let x = case.inputs_in(&inputs(case, 1), dtype);
    let x: Vec<Tensor> = x.iter().map(|x| x.to_device(device)).collect::<Result<_>>()?;
    let (out, _) = forward(case, &x);
    let forward_time = machine.median(|| machine.timed(|| forward(case, &x)));
    let given = draw(out.shape(), &Draw::Normal, 1, 99).to_dtype(out.dtype()).to_device(device)?;
    let both = machine.median(|| {
        // As in training, the gradient is not shared, so an op may overwrite it.
        let mut dy: Vec<Tensor> = (0..machine.calls()).map(|_| given.copied()).collect();
        machine.timed(|| {
            let (_, saved) = forward(case, &x);
            backward(case, &x, &saved, dy.pop().unwrap_or_else(|| given.copied()))
        })
    });
    kernel::finish(device)?;

    let (read, written) = (bytes(&x), bytes([&out]));
    let is_differentiated = |i: usize| case.inputs[i].1.is_differentiated();
    let gradients =
        bytes(x.iter().enumerate().filter(|(i, _)| is_differentiated(*i)).map(|(_, x)| x));
    let operations = case.operations as f64;
    let operands = if (0..x.len()).all(is_differentiated) { 2.0 } else { 1.0 };
    let mut row = machine.fields("forward", forward_time, read + written, operations);
    let moved = 2.0 * (read + written) + gradients;
    row.extend(machine.fields("both", both, moved, (1.0 + operands) * operations));
    Ok(row)
}
