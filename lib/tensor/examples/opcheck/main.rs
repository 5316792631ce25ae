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
//! on the emulator they have nothing else.

mod large;
mod machine;
mod model;

use std::process::ExitCode;

use clap::Parser;
use machine::{Machine, bytes, rounded};
use model::{GPUS, Model};
use serde_json::{Map, Value, json};
use tensor::check::{backward, draw, forward, inputs};
use tensor::op::{Case, Draw};
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::sum::add_all;
use tensor::updates::{
    Parameter, adafactor::Adafactor, adamw::AdamW, ema, lamb::Lamb, lion::Lion, muon::Muon, norm,
    norm::global_norm, sgd::Sgd,
};
use tensor::{Device, DeviceChoice, Dtype, Tensor, kernel, ops, parallel};
use unix::cli::Output;
use unix::out::Out;
use unix::{Error, Exit, Result};

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
    /// Model the time of ops on this GPU, from the machine code of the kernels: a100, h100. On the emulator nothing runs
    #[arg(long, value_name = "GPU", value_parser = GPUS.each_ref().map(|gpu| gpu.name))]
    model: Option<String>,
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
    let machine = Machine::measure(device, element)?;
    let (threads, copy, product) = (parallel::threads(), machine.copy, machine.product);
    let place = match device {
        Device::Cpu => format!("{threads} threads"),
        device => format!("{device} ({why}), {}", args.element),
    };
    out.item(
        &json!({"device": place, "copy_gb_s": copy / 1e9, "product_gflop_s": product / 1e9}),
        format!("{place}: copy {copy:.3e} bytes/s, product {product:.3e} operations/s"),
    )?;
    for (options, case) in cases {
        let mut row = op_row(options, &case, &machine)?;
        row.extend(model.iter().flat_map(|model| modelled(&case, model, device, element)));
        out.row(&row)?;
    }
    for update in UPDATES.iter().filter(|update| update.name.contains(&args.filter)) {
        if machine.update_elements() < args.below {
            out.row(&update_row(update, &machine)?)?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
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

fn op_row(options: Options, case: &Case, machine: &Machine) -> Result<Map<String, Value>> {
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
    let mut row = head(options, case);
    row.extend(machine.fields("forward", forward_time, read + written, operations));
    let moved = 2.0 * (read + written) + gradients;
    row.extend(machine.fields("both", both, moved, (1.0 + operands) * operations));
    Ok(row)
}

/// The tensors of an update of one parameter.
struct Work {
    value: Tensor,
    gradient: Tensor,
    moments: [Tensor; 2],
    /// One number for each row and for each column of the parameter.
    factors: [Tensor; 2],
    loss: Tensor,
    weight: Tensor,
    control: DeviceStepControl,
}

/// An update of one parameter, on the device of its tensors.
struct Update {
    name: &'static str,
    /// Elements read and written per element of the parameter.
    moves: usize,
    step: fn(&mut Work) -> Result<()>,
}

const LEARNING_RATE: f64 = 1e-6;
/// Rows of the parameter that updates are measured with.
const ROWS: usize = 16;
const RULE: StepPolicy = StepPolicy {
    clip: 1.0,
    betas: [0.9, 0.999],
    decay: 0.999,
    warmup: false,
    scaled: false,
    unit: 1.0,
};

const UPDATES: &[Update] = &[
    Update {
        name: "adafactor",
        moves: 5,
        step: |Work { value, gradient, factors: [rows, columns], control, .. }| {
            let (learning_rate, beta2_decay) = (LEARNING_RATE, -0.8);
            let (clip_threshold, epsilon) = (1.0, 1e-30);
            let adafactor = Adafactor { learning_rate, beta2_decay, clip_threshold, epsilon };
            let (rate, weight_decay, moments) = (1.0, 0.01, [rows, columns]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            adafactor.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "adamw",
        moves: 7,
        step: |Work { value, gradient, moments: [m, v], control, .. }| {
            let adamw = AdamW {
                learning_rate: LEARNING_RATE,
                betas: RULE.betas,
                epsilon: 1e-8,
                coupled: false,
            };
            let (rate, weight_decay, moments) = (1.0, 0.01, [m, v]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            adamw.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "decision",
        moves: 1,
        step: |Work { gradient, loss, weight, control, .. }| {
            let squares = norm::squares(gradient.device(), std::slice::from_ref(gradient));
            let [loss, weight] = [&*loss, weight].map(std::slice::from_ref);
            RULE.decide_on_device(control, loss, weight, &squares, LEARNING_RATE);
            Ok(())
        },
    },
    Update {
        name: "ema",
        moves: 3,
        step: |Work { value, moments: [average, _], control, .. }| {
            ema::apply_all(control, [(&*value, average)]);
            Ok(())
        },
    },
    Update {
        name: "lamb",
        moves: 10,
        step: |Work { value, gradient, moments: [m, v], control, .. }| {
            let (learning_rate, betas, epsilon) = (LEARNING_RATE, RULE.betas, 1e-6);
            let lamb = Lamb { learning_rate, betas, epsilon };
            let (rate, weight_decay, moments) = (1.0, 0.01, [m, v]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            lamb.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "lion",
        moves: 5,
        step: |Work { value, gradient, moments: [m, _], control, .. }| {
            let lion = Lion { learning_rate: LEARNING_RATE, betas: [0.9, 0.99] };
            let (rate, weight_decay, moments) = (1.0, 0.01, [m]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            lion.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "muon",
        moves: 24,
        step: |Work { value, gradient, moments: [momentum, _], control, .. }| {
            let muon = Muon { learning_rate: LEARNING_RATE, momentum: 0.95 };
            let (rate, weight_decay, moments) = (1.0, 0.01, [momentum]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            muon.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "norm",
        moves: 1,
        step: |Work { gradient, .. }| global_norm([&*gradient]).map(drop),
    },
    Update {
        name: "sgd",
        moves: 5,
        step: |Work { value, gradient, moments: [buffer, _], control, .. }| {
            let sgd = Sgd { learning_rate: LEARNING_RATE, momentum: 0.9 };
            let (rate, weight_decay, moments) = (1.0, 0.01, [buffer]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            sgd.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "sum",
        moves: 3,
        step: |Work { gradient, moments: [sum, _], .. }| {
            add_all([(sum, &*gradient)]);
            Ok(())
        },
    },
];

fn update_row(update: &Update, machine: &Machine) -> Result<Map<String, Value>> {
    let (device, elements) = (machine.device, machine.update_elements());
    let full = |n, x| Tensor::full(&[n], x, Dtype::F32).to_device(device);
    // A matrix, for the updates that treat matrices differently.
    let matrix = |x| full(elements, x).map(|t| t.reshape(&[ROWS, elements / ROWS]));
    let before = StepControl { applied: true, steps: 9, ..StepControl::default() };
    let before = RULE.decide(&before, [0.5, 0.1], 1.0, LEARNING_RATE);
    let mut work = Work {
        value: matrix(0.5)?,
        gradient: matrix(1e-6)?,
        moments: [matrix(0.2)?, matrix(0.3)?],
        factors: [full(ROWS, 0.2)?, full(elements / ROWS, 0.3)?],
        loss: full(1, 0.5)?,
        weight: full(1, 1.0)?,
        control: DeviceStepControl::of(&before, RULE.unit).to_device(device)?,
    };
    let mut outcome = Ok(());
    let time = machine.median(|| {
        machine.timed(|| {
            if let Err(error) = (update.step)(&mut work) {
                outcome = Err(error);
            }
        })
    });
    outcome?;
    kernel::finish(device)?;
    let moved = (update.moves * elements * Dtype::F32.bytes()) as f64;
    let mut row = Map::new();
    row.insert("name".into(), update.name.into());
    row.insert("inputs".into(), elements.to_string().into());
    row.extend(machine.fields("forward", time, moved, 0.0));
    Ok(row)
}
