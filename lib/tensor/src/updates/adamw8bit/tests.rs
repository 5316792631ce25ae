use super::*;
use crate::check::draw;
use crate::op::Draw;
use crate::updates::decision::StepPolicy;

const RULE: AdamW8bit = AdamW8bit { learning_rate: 1e-2, betas: [0.9, 0.999], epsilon: 1e-8 };
const DECAY: f64 = 0.05;

/// The decision on step `t`, from 1, with gradients scaled by 0.5.
fn decision(t: u64) -> DeviceStepControl {
    let policy = StepPolicy {
        clip: f64::INFINITY,
        betas: RULE.betas,
        decay: 0.0,
        warmup: true,
        scaled: false,
        unit: 1.0,
    };
    let before = StepControl { steps: t - 1, ..StepControl::default() };
    DeviceStepControl::of(&policy.decide(&before, [0.0, 0.0], 2.0, RULE.learning_rate), 1.0)
}

struct State {
    value: Tensor,
    moments: [Tensor; 4],
}

impl State {
    fn new(len: usize) -> Self {
        let value = draw(&[len], &Draw::Uniform(-0.1, 0.1), 3, 0).to_dtype(Dtype::F32);
        let codes = || Tensor::zeros(&[len], Dtype::U8);
        let largest = || Tensor::zeros(&[count(len)], Dtype::F32);
        Self { value, moments: [codes(), codes(), largest(), largest()] }
    }

    #[cfg(feature = "emu")]
    fn to_device(&self, device: Device) -> Self {
        let to = |tensor: &Tensor| tensor.to_device(device).unwrap();
        Self { value: to(&self.value), moments: self.moments.each_ref().map(to) }
    }

    fn step(&mut self, t: u64, gradient: &Tensor) {
        let device = self.value.device();
        let parameter = Parameter {
            rate: 1.0,
            weight_decay: DECAY,
            gradient,
            value: &mut self.value,
            moments: self.moments.each_mut(),
        };
        RULE.apply_all(&decision(t).to_device(device).unwrap(), [parameter]);
    }

    /// m and v as the codes say, in f64.
    fn decoded(&self) -> [Vec<f64>; 2] {
        [0, 1].map(|i| {
            let codes = if i == 0 { signed() } else { unsigned() };
            let largest = self.moments[2 + i].read::<f32>();
            let of = |(at, code): (usize, &u8)| {
                f64::from(codes.value(*code)) * f64::from(largest[at / BLOCK])
            };
            self.moments[i].read::<u8>().iter().enumerate().map(of).collect()
        })
    }
}

/// Gradients whose sizes differ by orders of magnitude within a block, some of them 0.
fn gradient(len: usize, t: u64) -> Tensor {
    let sizes = draw(&[len], &Draw::Uniform(-4.0, 0.0), 9, t).to_f64();
    let signs = draw(&[len], &Draw::Normal, 10, t).to_f64();
    let of = |(i, (size, sign)): (usize, (&f64, &f64))| {
        if i % 7 == 3 { 0.0 } else { (sign * 10.0_f64.powf(*size)) as f32 }
    };
    let values: Vec<f32> = sizes.iter().zip(&signs).enumerate().map(of).collect();
    Tensor::from_slice(&values, &[len])
}

/// 100 steps of the formula in f64 from the codes that the state had before each step. The parameters are those of LoRA in
/// size. In f32 each step rounds them once, and the errors add up as a random walk.
#[test]
fn a_hundred_steps_follow_the_formula() {
    let len = 5 * BLOCK + 13;
    let mut state = State::new(len);
    let mut expected = state.value.to_f64();
    let [b1, b2] = RULE.betas;
    for t in 1..=100 {
        let g = gradient(len, t);
        let [m, v] = state.decoded();
        state.step(t, &g);
        let [rate, root] = [1.0 - b1.powi(t as i32), (1.0 - b2.powi(t as i32)).sqrt()];
        let [averages, squares] = state.decoded();
        for (i, g) in g.to_f64().iter().map(|g| 0.5 * g).enumerate() {
            let (m, v) = (b1 * m[i] + (1.0 - b1) * g, b2 * v[i] + (1.0 - b2) * g * g);
            expected[i] -= RULE.learning_rate / rate * m / (v.sqrt() / root + RULE.epsilon);
            expected[i] *= 1.0 - RULE.learning_rate * DECAY;
            if t % 20 == 1 {
                let [top_m, top_v] =
                    [2, 3].map(|k| f64::from(state.moments[k].read::<f32>()[i / BLOCK]));
                // The smallest code stands for all negative numbers that are closer to 0.
                let closest = |codes: &Codes, top: f64, x: f64| {
                    let errors =
                        codes.values().iter().map(|code| (f64::from(*code) * top - x).abs());
                    errors.fold(f64::INFINITY, f64::min) + 1e-6 * x.abs()
                };
                let allowed = closest(signed(), top_m, m) + 6e-7 * top_m;
                assert!(
                    (averages[i] - m).abs() <= allowed,
                    "m {i} at {t}: {} {m} of {top_m}, {allowed}",
                    averages[i]
                );
                assert!((squares[i] - v).abs() <= closest(unsigned(), top_v, v), "v {i} at {t}");
                assert!(averages[i] * m >= 0.0, "the sign of m {i} at {t}");
            }
        }
    }
    let worst = state.value.to_f64().into_iter().zip(&expected).map(|(a, b)| (a - b).abs());
    let worst = worst.fold(0.0, f64::max);
    assert!(worst <= 1e-6, "{worst}");
}

/// bitsandbytes 0.50.2: `create_dynamic_map(signed)`.
#[test]
fn codes_are_those_of_bitsandbytes() {
    let (signed, unsigned) = (signed().values(), unsigned().values());
    assert_eq!((signed[126], signed[127], signed[128]), (-5.500_000_4e-7, 0.0, 5.500_000_4e-7));
    assert_eq!((signed[0], signed[18], signed[255]), (-0.992_968_74, -0.739_843_7, 1.0));
    assert_eq!(unsigned[..3], [0.0, 3.250_000_3e-7, 7.75e-7]);
    assert_eq!((unsigned[9], unsigned[254]), (3.812_5e-5, 0.996_484_4));
    for codes in [super::signed(), super::unsigned()] {
        assert!(codes.values().is_sorted_by(|a, b| a < b));
        for code in 0..=255 {
            assert_eq!(codes.code(codes.value(code), 1.0), code);
            assert_eq!(codes.code(codes.value(code) * 3.0, 3.0), code);
        }
        assert_eq!([codes.code(7.0, 7.0), codes.code(1e-30, 1.0)], [255, codes.code(0.0, 0.0)]);
    }
    let tiny = super::signed().code_with_sign(-1e-12, 1.0);
    assert_eq!(tiny, 126);
}

/// The kernel and the CPU round the same operations, but a compiler may contract others: a code may be the next one.
#[cfg(feature = "emu")]
#[test]
fn the_kernel_follows_the_cpu() {
    for len in [1, 255, 4096, 4097, 3 * 4096 + 300] {
        let mut ours = State::new(len);
        let mut theirs = ours.to_device(Device::Emu);
        for t in 1..=4 {
            let g = gradient(len, t);
            ours.step(t, &g);
            theirs.step(t, &g.to_device(Device::Emu).unwrap());
        }
        let theirs = theirs.to_device(Device::Cpu);
        assert!(crate::check::difference(&theirs.value, &ours.value) < 1e-5, "{len}");
        let codes = |state: &State, i: usize| state.moments[i].read::<u8>().to_vec();
        for i in [0, 1] {
            let pairs = codes(&ours, i).into_iter().zip(codes(&theirs, i));
            let (same, other): (Vec<_>, Vec<_>) = pairs.partition(|(a, b)| a == b);
            assert!(other.iter().all(|(a, b)| a.abs_diff(*b) == 1), "{len}: {other:?}");
            assert!(other.len() * 1000 <= same.len(), "{len}: {} differ", other.len());
        }
    }
}
