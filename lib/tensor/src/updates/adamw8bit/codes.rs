use std::sync::OnceLock;

/// Numbers of [-1, 1] or [0, 1] in ascending order that a byte encodes.
#[derive(Debug)]
pub struct Codes {
    values: [f32; 256],
    /// Halfway between a number and the next; the last is infinite.
    limits: [f32; 256],
}

/// The dynamic map of bitsandbytes with signs (Dettmers 2016, "8-bit approximations for parallelism in deep learning",
/// section 3): 0, 1, and for each power of ten from 10⁻⁶ to 1 twice as many evenly spaced numbers as for the one below.
pub fn signed() -> &'static Codes {
    static CODES: OnceLock<Codes> = OnceLock::new();
    CODES.get_or_init(|| Codes::dynamic(true))
}

/// The same without signs, and with twice as many numbers for each power.
pub fn unsigned() -> &'static Codes {
    static CODES: OnceLock<Codes> = OnceLock::new();
    CODES.get_or_init(|| Codes::dynamic(false))
}

impl Codes {
    /// The numbers of bitsandbytes' `create_dynamic_map`, to the bit: evenly spaced by `torch.linspace` in f32.
    fn dynamic(has_signs: bool) -> Self {
        let mut values = vec![0.0, 1.0];
        for i in 0..7 {
            let count: usize = if has_signs { 1 << i } else { 2 << i };
            let step = (1.0 - 0.1_f32) / count as f32;
            let bound = |k: usize| match k < count.div_ceil(2) {
                true => step.mul_add(k as f32, 0.1),
                false => step.mul_add(-((count - k) as f32), 1.0),
            };
            let power = 10.0_f64.powi(i - 6) as f32;
            for k in 0..count {
                let mean = power * ((bound(k) + bound(k + 1)) / 2.0);
                values.push(mean);
                if has_signs {
                    values.push(-mean);
                }
            }
        }
        values.sort_by(f32::total_cmp);
        let values: [f32; 256] = std::array::from_fn(|i| values[i]);
        let next = |i: usize| values.get(i + 1).copied().unwrap_or(f32::INFINITY);
        Self { values, limits: std::array::from_fn(|i| (values[i] + next(i)) / 2.0) }
    }

    /// All numbers.
    pub fn values(&self) -> &[f32; 256] {
        &self.values
    }

    /// The number with this code.
    pub fn value(&self, code: u8) -> f32 {
        self.values[usize::from(code)]
    }

    /// Returns the code of the number that is closest to x/largest, the smaller one of two; that of 0 if `largest` is 0.
    pub fn code(&self, x: f32, largest: f32) -> u8 {
        let x = if largest > 0.0 { x / largest } else { 0.0 };
        let mut code = 0;
        for step in [128, 64, 32, 16, 8, 4, 2, 1] {
            code += if x > self.limits[code + step - 1] { step } else { 0 };
        }
        code as u8
    }

    /// [`Codes::code`], but for a negative x the code of a negative number.
    pub fn code_with_sign(&self, x: f32, largest: f32) -> u8 {
        let code = self.code(x, largest);
        if x < 0.0 && self.value(code) >= 0.0 { code - 1 } else { code }
    }
}

/// Numbers and limits with signs, then without, for kernels.
pub(super) fn tables() -> [f32; 1024] {
    let (signed, unsigned) = (signed(), unsigned());
    let all = [signed.values, signed.limits, unsigned.values, unsigned.limits];
    std::array::from_fn(|i| all[i / 256][i % 256])
}
