//! An axis: maps values to positions and chooses the ticks.

/// An axis with its ticks.
#[derive(Clone, Debug, Default)]
pub struct Axis {
    label: String,
    start: f64,
    end: f64,
    logarithmic: bool,
    quiet: bool,
    whole: bool,
    /// Names at 0, 1, ..., in place of numbers.
    names: Vec<String>,
}

impl Axis {
    /// Creates a linear axis over at least `start..=end`.
    pub fn linear(label: &str, start: f64, end: f64) -> Self {
        let ordered = start.is_finite() && end.is_finite() && start < end;
        let (start, end) = if ordered { (start, end) } else { (0.0, 1.0) };
        Self { label: label.into(), start, end, ..Self::default() }
    }

    /// Creates a logarithmic axis that covers all positive `values` with a margin.
    pub fn logarithmic(label: &str, values: impl IntoIterator<Item = f64>) -> Self {
        let positive = values.into_iter().filter(|v| *v > 0.0 && v.is_finite());
        let (low, high) =
            positive.fold((f64::MAX, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let (low, high) = if high > 0.0 { (low, high) } else { (0.1, 1.0) };
        let margin = (high / low).powf(0.06).max(1.2);
        let (start, end) = (low / margin, high * margin);
        Self { label: label.into(), start, end, logarithmic: true, ..Self::default() }
    }

    /// Creates an axis that covers `values` with a margin: logarithmic if they are positive and span a factor of 5 or
    /// more.
    pub fn covering(label: &str, values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if low > 0.0 && high >= 5.0 * low {
            return Self::logarithmic(label, [low, high]);
        }
        // A constant needs a range as well.
        let margin = (0.05 * (high - low)).max(0.01 * high.abs()).max(1e-12);
        Self::linear(label, low - margin, high + margin)
    }

    /// Creates a linear axis with a tick and a name at each of 0, 1, ...
    pub fn categories(label: &str, names: Vec<String>) -> Self {
        Self { names: names.clone(), ..Self::linear(label, -0.5, names.len() as f64 - 0.5) }
    }

    /// Raises the lower end of the axis to `low`.
    pub fn from(mut self, low: f64) -> Self {
        self.start = self.start.max(low);
        self
    }

    /// Restricts the ticks of a linear axis to whole numbers.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Removes label and tick labels, for a panel next to one with the same axis.
    pub fn quiet(mut self) -> Self {
        self.label.clear();
        self.quiet = true;
        self
    }

    /// The label.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// The values at its start and end.
    pub fn ends(&self) -> (f64, f64) {
        (self.start, self.end)
    }

    /// The number of names; 0 unless it is a category axis.
    pub fn names(&self) -> usize {
        self.names.len()
    }

    /// Whether a value is within the axis; false for NaN.
    pub fn contains(&self, value: f64) -> bool {
        (self.start..=self.end).contains(&value)
    }

    /// Returns the position of a value: 0 at the start and 1 at the end, clamped to this range; NaN if it has no
    /// position.
    pub fn position(&self, value: f64) -> f64 {
        let position = match self.logarithmic {
            true => (value / self.start).ln() / (self.end / self.start).ln(),
            false => (value - self.start) / (self.end - self.start),
        };
        position.clamp(-0.0, 1.0)
    }

    /// Returns the ticks with a label, as value and text.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let named = |(at, name): (usize, &String)| (at as f64, name.clone());
        let mut ticks = match self.logarithmic {
            _ if !self.names.is_empty() => self.names.iter().enumerate().map(named).collect(),
            true => self.logarithmic_ticks(),
            false => self.linear_ticks(),
        };
        if self.quiet {
            ticks.iter_mut().for_each(|(_, text)| text.clear());
        }
        ticks
    }

    /// Returns the minor ticks, which have no label.
    pub fn minor_ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            return Vec::new();
        }
        let all = self.decades().flat_map(|d| (2..10).map(move |m| f64::from(m) * power_of_ten(d)));
        all.filter(|v| self.contains(*v)).collect()
    }

    fn linear_ticks(&self) -> Vec<(f64, String)> {
        let rough = (self.end - self.start) / 5.0;
        let rough = if self.whole { rough.max(1.0) } else { rough };
        let decade = power_of_ten(rough.log10().floor() as i32);
        let round = [1.0, 2.0, 5.0, 10.0].map(|m| m * decade);
        let step = round.into_iter().find(|s| *s >= rough * 0.999).unwrap_or(rough);
        let digits = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
        let (first, last) = ((self.start / step - 1e-9).ceil(), (self.end / step + 1e-9).floor());
        let count = (last - first).max(0.0) as usize;
        // Long numbers would overlap the label of the axis.
        let long = digits > 5 || self.start.abs().max(self.end.abs()) >= 1e6;
        let tick = |i: usize| {
            let value = (first + i as f64) * step;
            (value, if long { plain(value) } else { number(value, digits) })
        };
        (0..=count).map(tick).collect()
    }

    fn logarithmic_ticks(&self) -> Vec<(f64, String)> {
        let wide = (self.end / self.start).log10() > 2.0;
        let multiples: &[f64] = if wide { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let stride = ((self.end / self.start).log10() / 6.0).ceil().max(1.0) as i32;
        let tick = |d: i32, m: f64| {
            let text = match (wide || !(-3..4).contains(&d), m) {
                (false, _) => number(m * power_of_ten(d), (-d).max(0) as usize),
                (true, 1.0) => format!("10{}", superscript(d)),
                (true, _) => format!("{m}·10{}", superscript(d)),
            };
            (m * power_of_ten(d), text)
        };
        self.decades()
            .filter(|d| d.rem_euclid(stride) == 0)
            .flat_map(|d| multiples.iter().map(move |m| tick(d, *m)))
            .filter(|(v, _)| self.contains(*v))
            .collect()
    }

    fn decades(&self) -> std::ops::RangeInclusive<i32> {
        self.start.log10().floor() as i32..=self.end.log10().ceil() as i32
    }
}

fn power_of_ten(exponent: i32) -> f64 {
    // Parsing a decimal literal rounds to the nearest f64; powi does not always.
    format!("1e{exponent}").parse().unwrap_or(f64::NAN)
}

/// Formats a number with a typographic minus sign.
pub fn number(value: f64, digits: usize) -> String {
    let text = format!("{value:.digits$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.chars().all(|c| c == '0' || c == '.') => zero.into(),
        Some(rest) => format!("−{rest}"),
        None => text,
    }
}

/// Formats a number with up to four significant digits, without trailing zeros.
pub fn plain(value: f64) -> String {
    if !(1e-4..1e4).contains(&value.abs()) {
        return short(value);
    }
    let digits = (3 - value.abs().log10().floor() as i32).max(0) as usize;
    let text = number(value, digits);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

/// Formats a number with three significant digits.
pub fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let exponent = value.abs().log10().floor() as i32;
    if (-3..5).contains(&exponent) {
        return number(value, (2 - exponent).max(0) as usize);
    }
    format!("{}·10{}", number(value / power_of_ten(exponent), 2), superscript(exponent))
}

fn superscript(number: i32) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    let digits = number.unsigned_abs().to_string();
    let digits = digits.bytes().map(|digit| DIGITS[usize::from(digit - b'0')]);
    (number < 0).then_some('⁻').into_iter().chain(digits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(axis: &Axis) -> Vec<String> {
        axis.ticks().into_iter().map(|(_, text)| text).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(texts(&Axis::linear("", 0.0, 1.0)), ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]);
        assert_eq!(texts(&Axis::linear("", -1.3, 2.1)), ["−1", "0", "1", "2"]);
        assert_eq!(texts(&Axis::linear("", 0.0, 16.0)), ["0", "5", "10", "15"]);
        assert_eq!(texts(&Axis::linear("", 0.9, 3.1).whole()), ["1", "2", "3"]);
        assert_eq!(texts(&Axis::logarithmic("", [3e-5, 0.2])), ["10⁻⁴", "10⁻³", "10⁻²", "10⁻¹"]);
        assert_eq!(texts(&Axis::logarithmic("", [0.02, 0.3])), ["0.02", "0.05", "0.1", "0.2"]);
        assert_eq!(texts(&Axis::logarithmic("", [4e-6, 1e-5])), ["5·10⁻⁶", "10⁻⁵"]);
        assert_eq!(texts(&Axis::categories("", vec!["a".into(), "b".into()])), ["a", "b"]);
    }

    #[test]
    fn axes_without_values_are_valid() {
        let axis = Axis::logarithmic("", [1e-2, 1.0]);
        assert!((axis.position(0.1) - 0.5).abs() < 1e-12);
        assert!(Axis::linear("", 3.0, 3.0).position(0.25) == 0.25);
        assert!(!Axis::logarithmic("", [0.0, f64::NAN]).ticks().is_empty());
        assert!(!Axis::linear("", f64::NAN, 1.0).ticks().is_empty());
    }

    #[test]
    fn short_numbers_have_three_digits() {
        let cases = [
            (0.012345, "0.0123"),
            (1.5, "1.50"),
            (-0.25, "−0.250"),
            (1.234e-5, "1.23·10⁻⁵"),
            (0.0, "0"),
            (123.4, "123"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
        for (value, text) in [(0.04, "0.04"), (2.0, "2"), (1234.0, "1234"), (-0.333333, "−0.3333")]
        {
            assert_eq!(plain(value), text);
        }
    }
}
