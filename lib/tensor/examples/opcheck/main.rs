//! How fast every op and update is, against what this machine or a GPU can do.
//!
//! Bounds are measured first, on the same threads or device: the rate of a copy between buffers larger
//! than the caches, and that of a large matrix product (on a device our own kernel's). A call cannot beat the slower of its bytes at the
//! one rate and its operations at the other; `of_bound` is that time over the measured one. It is
//! above 1 where the data stay in cache, and far below for small cases, where calling is the cost.
//!
//! Bytes are the least that can move: inputs and output forward; the inputs and the output's
//! gradient again, and the gradients of the inputs, backward. Operations of a backward pass are
//! those of one forward pass for each differentiated operand of a product (two at most): what an op
//! computes again is not counted as work. An update has one pass, in the columns of the forward one.

mod large;
mod machine;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use machine::{Machine, bytes, median};
use serde_json::{Map, Value, json};
use tensor::check::{draw, inputs};
use tensor::op::{Case, Draw, Grads, Launch, Op, Saved};
use tensor::updates::decision::{Decision, Rule};
use tensor::updates::{adamw::AdamW, ema, norm::global_norm, sgd::Sgd};
use tensor::{Device, Dtype, Tape, Tensor, Var, Wanted, constant, kernel, ops, parallel};
use unix::cli::Output;
use unix::out::Out;
use unix::{Exit, Result};

/// Time every case of every op, and the updates, against this machine's rates
#[derive(Parser)]
#[command(name = "opcheck")]
struct Args {
    /// Only ops and updates whose name contains this
    #[arg(long, value_name = "NAME", default_value = "")]
    filter: String,
    /// Where to compute: cpu, cuda, cuda:N, emu (which times the emulator)
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Wanted,
    /// Element type on a device; tf32 is f32 whose products are rounded to it
    #[arg(long, value_name = "TYPE", value_parser = ["f32", "tf32", "bf16", "f16"],
          default_value = "f32")]
    element: String,
    /// Sizes at which GPUs are compared, in place of those that tests run
    #[arg(long)]
    large: bool,
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
    let cases = if args.large { large::cases() } else { tested() };
    for (options, case) in cases {
        let elements: usize =
            case.inputs.iter().map(|(shape, _)| shape.iter().product::<usize>()).sum();
        let runs = device == Device::Cpu || case.op.dtypes().contains(&element);
        let named = case.op.name().contains(&args.filter);
        if named && runs && elements.max(case.operations) < args.below {
            out.row(&op_row(options, case, &machine)?)?;
        }
    }
    for update in UPDATES.iter().filter(|update| update.name.contains(&args.filter)) {
        if ELEMENTS < args.below {
            out.row(&update_row(update, &machine)?)?;
        }
    }
    out.finish()?;
    Ok(Exit::Done)
}

/// What distinguishes a case from others, as fields of its row.
type Options = Map<String, Value>;

/// The cases of the tests, by their numbers.
fn tested() -> Vec<(Options, Case)> {
    let numbered = |(i, case)| ([("case".to_string(), json!(i))].into_iter().collect(), case);
    ops::ALL.iter().flat_map(|(_, cases)| cases().into_iter().enumerate().map(numbered)).collect()
}

/// The op of a case on a tape, which wants to own it.
struct Borrowed(Arc<Case>);

impl Op for Borrowed {
    fn name(&self) -> &'static str {
        self.0.op.name()
    }
    fn shape(&self, inputs: &[&[usize]]) -> Result<Vec<usize>, String> {
        self.0.op.shape(inputs)
    }
    fn constants(&self) -> &'static [usize] {
        self.0.op.constants()
    }
    fn forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        self.0.op.forward(inputs, out)
    }
    fn backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        self.0.op.backward(saved, dy, grads);
    }
    fn input_dtype(&self, i: usize, compute: Dtype) -> Dtype {
        self.0.op.input_dtype(i, compute)
    }
    fn output_dtype(&self, compute: Dtype) -> Dtype {
        self.0.op.output_dtype(compute)
    }
}

impl Launch for Borrowed {
    fn launch_forward(&self, inputs: &[&Tensor], out: &mut Tensor) -> Saved {
        self.0.op.launch_forward(inputs, out)
    }
    fn launch_backward(&self, saved: &Saved, dy: Tensor, grads: &mut Grads) {
        self.0.op.launch_backward(saved, dy, grads);
    }
}

fn op_row(options: Options, case: Case, machine: &Machine) -> Result<Map<String, Value>> {
    let case = Arc::new(case);
    let (device, element) = (machine.device, machine.element);
    let x = case.inputs_in(&inputs(&case, 1), element);
    let x: Vec<Tensor> = x.iter().map(|x| x.to_device(device)).collect::<Result<_>>()?;
    let differentiated =
        |i: usize| case.inputs[i].1.is_differentiated() && !case.op.constants().contains(&i);
    let run = |tape: &Tape| -> Result<Var> {
        let leaf = |(i, x): (usize, &Tensor)| match differentiated(i) {
            true => tape.leaf(x.clone()),
            false => constant(x.clone()),
        };
        let vars: Vec<Var> = x.iter().enumerate().map(leaf).collect();
        tape.apply(Borrowed(case.clone()), &vars.iter().collect::<Vec<_>>())
    };
    let out = run(&Tape::without_gradients())?;
    let forward = median(|| machine.timed(|| run(&Tape::without_gradients())));
    let dtype = out.value().dtype();
    let given = draw(out.shape(), &Draw::Normal, 1, 99).to_dtype(dtype).to_device(device)?;
    let both = median(|| {
        // As in training, nobody else holds the gradient: an op may write to it.
        let mut dy: Vec<Tensor> = (0..machine.calls()).map(|_| given.copied()).collect();
        machine.timed(|| {
            let tape = Tape::new();
            let dy = dy.pop().unwrap_or_else(|| given.copied());
            run(&tape).and_then(|out| tape.backward_from(&out, dy))
        })
    });
    kernel::finish(device)?;

    let (read, written) = (bytes(&x), bytes([out.value()]));
    let gradients = bytes(x.iter().enumerate().filter(|(i, _)| differentiated(*i)).map(|(_, x)| x));
    let operations = case.operations as f64;
    let operands = if (0..x.len()).all(differentiated) { 2.0 } else { 1.0 };
    let shapes = case
        .inputs
        .iter()
        .map(|(shape, _)| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"));
    let mut row = Map::new();
    row.insert("name".into(), case.op.name().into());
    row.extend(options);
    row.insert("inputs".into(), shapes.collect::<Vec<_>>().join(" ").into());
    row.extend(machine.fields("forward", forward, read + written, operations));
    let moved = 2.0 * (read + written) + gradients;
    row.extend(machine.fields("both", both, moved, (1.0 + operands) * operations));
    Ok(row)
}

/// An update of one parameter, with the tensors it works on.
struct Update {
    name: &'static str,
    /// Elements read and written for an element of the parameter.
    moves: usize,
    step: fn(&mut [Tensor; 4]),
}

const UPDATES: &[Update] = &[
    Update {
        name: "adamw",
        moves: 7,
        step: |[p, g, m, v]| {
            let (learning_rate, epsilon, weight_decay) = (1e-6, 1e-8, 0.01);
            let betas = [0.9, 0.999];
            let rule = Rule {
                clip: f64::INFINITY,
                betas,
                decay: 0.0,
                warmup: true,
                scaled: false,
                unit: 1.0,
            };
            let before = Decision { steps: 9, ..Decision::default() };
            let decision = rule.decide(&before, [0.0, 0.0], 1.0, learning_rate);
            AdamW { learning_rate, betas, epsilon, weight_decay }.apply(&decision, g, p, m, v);
        },
    },
    Update {
        name: "sgd",
        moves: 5,
        step: |[p, g, b, _]| {
            Sgd { learning_rate: 1e-6, momentum: 0.9, weight_decay: 0.01 }.apply(1.0, g, p, b);
        },
    },
    Update { name: "ema", moves: 3, step: |[p, a, ..]| ema::apply(0.999, p, a) },
    Update {
        name: "global_norm",
        moves: 1,
        step: |[_, g, ..]| {
            // On the host it cannot fail.
            let _ = black_box(global_norm([&*g]));
        },
    },
];

/// Elements of the parameter.
const ELEMENTS: usize = 10_000_000;

fn update_row(update: &Update, machine: &Machine) -> Result<Map<String, Value>> {
    let full = |x| Tensor::full(&[ELEMENTS], x, Dtype::F32).to_device(machine.device);
    let mut tensors = [full(0.5)?, full(0.1)?, full(0.2)?, full(0.3)?];
    let time = median(|| machine.timed(|| (update.step)(&mut tensors)));
    kernel::finish(machine.device)?;
    let moved = (update.moves * ELEMENTS * Dtype::F32.bytes()) as f64;
    let mut row = Map::new();
    row.insert("name".into(), update.name.into());
    row.insert("inputs".into(), ELEMENTS.to_string().into());
    row.extend(machine.fields("forward", time, moved, 0.0));
    Ok(row)
}
