//! A row for each update: optimizers, moving average, norm, sum, rows of a cache.

use super::machine::Machine;
use serde_json::{Map, Value};
use tensor::updates::decision::{DeviceStepControl, StepControl, StepPolicy};
use tensor::updates::sum::add_all;
use tensor::updates::{
    Parameter, adafactor::Adafactor, adamw::AdamW, adamw8bit, adamw8bit::AdamW8bit, append::append,
    ema, lamb::Lamb, lion::Lion, muon::Muon, norm, norm::global_norm, sgd::Sgd,
};
use tensor::{Dtype, Tensor, kernel};
use unix::Result;

/// The tensors of an update of one parameter.
struct Work {
    value: Tensor,
    gradient: Tensor,
    moments: [Tensor; 2],
    /// Averages in 8 bits.
    codes: [Tensor; 2],
    /// The largest magnitudes of their blocks.
    largest: [Tensor; 2],
    /// One number for each row and for each column of the parameter.
    factors: [Tensor; 2],
    /// Rows for a cache, their first place and their number, and the cache.
    rows: [Tensor; 4],
    loss: Tensor,
    weight: Tensor,
    control: DeviceStepControl,
}

/// An update of one parameter, on the device of its tensors.
pub struct Update {
    pub name: &'static str,
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

pub const UPDATES: &[Update] = &[
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
        name: "adamw8bit",
        moves: 4,
        step: |Work {
                   value, gradient, codes: [m, v], largest: [top_m, top_v], control, ..
               }| {
            let (learning_rate, betas, epsilon) = (LEARNING_RATE, RULE.betas, 1e-8);
            let adamw = AdamW8bit { learning_rate, betas, epsilon };
            let (rate, weight_decay, moments) = (1.0, 0.01, [m, v, top_m, top_v]);
            let parameter = Parameter { rate, weight_decay, gradient, value, moments };
            adamw.apply_all(control, [parameter]);
            Ok(())
        },
    },
    Update {
        name: "append",
        moves: 2,
        step: |Work { rows: [x, start, count, cache], .. }| append(x, start, count, cache),
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

/// The fields that name an update.
pub fn head(update: &Update, machine: &Machine) -> Map<String, Value> {
    let mut row = Map::new();
    row.insert("name".into(), update.name.into());
    row.insert("inputs".into(), machine.update_elements().to_string().into());
    row
}

/// Its times.
pub fn times(update: &Update, machine: &Machine) -> Result<Map<String, Value>> {
    let (device, elements) = (machine.device, machine.update_elements());
    let full = |n, x| Tensor::full(&[n], x, Dtype::F32).to_device(device);
    // A matrix, for the updates that treat matrices differently.
    let matrix = |x| full(elements, x).map(|t| t.reshape(&[ROWS, elements / ROWS]));
    let codes = || Tensor::full(&[elements], 200.0, Dtype::U8).to_device(device);
    let largest = || full(adamw8bit::count(elements), 0.3);
    let rows = |x| full(elements, x).map(|t| t.reshape(&[ROWS, 1, elements / ROWS]));
    let index = |x: i32| Tensor::from_slice(&[x; ROWS], &[ROWS]).to_device(device);
    let before = StepControl { applied: true, steps: 9, ..StepControl::default() };
    let before = RULE.decide(&before, [0.5, 0.1], 1.0, LEARNING_RATE);
    let mut work = Work {
        value: matrix(0.5)?,
        gradient: matrix(1e-6)?,
        moments: [matrix(0.2)?, matrix(0.3)?],
        codes: [codes()?, codes()?],
        largest: [largest()?, largest()?],
        factors: [full(ROWS, 0.2)?, full(elements / ROWS, 0.3)?],
        rows: [rows(0.5)?, index(0)?, index(1)?, rows(0.1)?],
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
    Ok(machine.fields("forward", time, moved, 0.0))
}
