//! Packing attributes of an array: how its numbers are packed, and which numbers denote missing values.
//!
//! Names and rules follow the CF conventions 1.11 (sections 2.5.1 and 8.1) and the NetCDF Users Guide (appendix A);
//! equivalent names used by other programs are recognised as well. Missing values are read as NaN, which all checks
//! reject. The table in longhaul-files(5) lists all attributes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Conversion of stored numbers to values: value = stored * scale + offset, or NaN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Packing {
    scale: f64,
    offset: f64,
    /// Stored numbers that denote missing values.
    missing: Vec<f64>,
    /// Valid ranges of stored numbers and of values.
    stored: Limits,
    values: Limits,
    /// Number of distinct values of the integer type, and whether stored integers are unsigned rather than signed.
    sign: Option<(f64, bool)>,
}

/// The smallest and the largest valid number.
type Limits = [Option<f64>; 2];

/// The meaning of an attribute.
#[derive(Clone, Copy, PartialEq)]
enum Meaning {
    Scale,
    Offset,
    Missing,
    /// A valid limit: an index into [`Limits`], or `None` for both.
    Valid(Option<usize>),
    Unsigned,
    /// A scale or an offset under a name that no convention defines.
    OwnScale,
    OwnOffset,
    /// An encoding: the array does not hold the values themselves.
    Encoding,
}

/// Returns the meaning of an attribute name, ignoring case and separators.
fn meaning(name: &str) -> Option<Meaning> {
    let letters = name.chars().filter(char::is_ascii_alphanumeric);
    let letters: String = letters.map(|letter| letter.to_ascii_lowercase()).collect();
    Some(match letters.as_str() {
        "scalefactor" => Meaning::Scale,
        "addoffset" => Meaning::Offset,
        "fillvalue" | "missingvalue" | "nodata" | "nodatavalue" => Meaning::Missing,
        "validmin" => Meaning::Valid(Some(0)),
        "validmax" => Meaning::Valid(Some(1)),
        "validrange" => Meaning::Valid(None),
        "unsigned" => Meaning::Unsigned,
        "scale" | "slope" | "gain" | "scalingfactor" => Meaning::OwnScale,
        "offset" | "intercept" => Meaning::OwnOffset,
        "compress" | "matlabempty" | "matlabsparse" | "matlabclass" => Meaning::Encoding,
        _ => return None,
    })
}

/// Whether an attribute describes how its array is stored; this does not apply to a copy of the values.
pub(crate) fn is_of_storage(name: &str) -> bool {
    meaning(name).is_some()
}

/// Returns the numbers in an attribute; NaN for null, which stands for a non-finite number.
fn numbers(value: &Value) -> Option<Vec<f64>> {
    match value {
        Value::Null => Some(vec![f64::NAN]),
        Value::Bool(yes) => Some(vec![f64::from(u8::from(*yes))]),
        Value::Number(number) => Some(vec![number.as_f64()?]),
        Value::String(text) => Some(vec![text.trim().parse().ok()?]),
        Value::Array(values) => {
            Some(values.iter().map(numbers).collect::<Option<Vec<_>>>()?.concat())
        }
        Value::Object(_) => None,
    }
}

fn is_yes(value: &Value) -> bool {
    match value {
        Value::String(text) => text.eq_ignore_ascii_case("true"),
        value => numbers(value).is_some_and(|all| all.first().is_some_and(|one| *one == 1.0)),
    }
}

/// Whether an attribute has no effect: a scale of 1, an offset of 0, or the class of a plain MATLAB array.
fn is_neutral(meaning: Meaning, name: &str, value: &Value) -> bool {
    let is_all = |number: f64| {
        numbers(value).is_some_and(|all| !all.is_empty() && all.iter().all(|one| *one == number))
    };
    match meaning {
        Meaning::Scale | Meaning::OwnScale => is_all(1.0),
        Meaning::Offset | Meaning::OwnOffset => is_all(0.0),
        Meaning::Encoding if name.eq_ignore_ascii_case("MATLAB_class") => {
            let others = ["char", "cell", "struct", "function_handle", "string", "table"];
            value.as_str().is_none_or(|class| !others.contains(&class))
        }
        Meaning::Encoding => name.starts_with("MATLAB") && is_all(0.0),
        _ => false,
    }
}

/// Refuses packing attributes of a root or a group (`of`), because they do not say to which arrays they apply.
pub(super) fn refuse_outside(attributes: &Map<String, Value>, of: &str) -> Result<(), String> {
    let is_ambiguous = |(name, value): &(&String, &Value)| {
        let no_array = [Meaning::OwnScale, Meaning::OwnOffset, Meaning::Encoding];
        meaning(name).is_some_and(|meaning| {
            !no_array.contains(&meaning) && !is_neutral(meaning, name, value)
        })
    };
    match attributes.iter().find(is_ambiguous) {
        None => Ok(()),
        Some((name, value)) => Err(format!(
            "attribute `{name}` ({value}) of {of} does not say which arrays it is for; make it an attribute of \
             these arrays, or remove it"
        )),
    }
}

impl Default for Packing {
    fn default() -> Self {
        let (stored, values) = ([None; 2], [None; 2]);
        Self { scale: 1.0, offset: 0.0, missing: Vec::new(), stored, values, sign: None }
    }
}

impl Packing {
    /// Parses the attributes of an array; `fill` is the fill value in its format, and `integer` the size in bytes if
    /// the array stores integers. The error names an attribute that cannot be honoured.
    pub fn of(
        attributes: &Map<String, Value>,
        fill: Option<f64>,
        integer: Option<usize>,
    ) -> Result<Self, String> {
        let mut packing = Self::default();
        let mut missing: Vec<f64> = fill.into_iter().collect();
        let mut valid: Vec<([Option<f64>; 2], bool)> = Vec::new();
        for (name, value) in attributes {
            let Some(meaning) = meaning(name) else { continue };
            if is_neutral(meaning, name, value) {
                continue;
            }
            let wrong = |expected: &str| {
                format!("attribute `{name}` is {value}, but {expected}; correct or remove it")
            };
            let numbers = numbers(value).unwrap_or_default();
            let one = match numbers.as_slice() {
                [one] if one.is_finite() => Some(*one),
                _ => None,
            };
            let one_number = || wrong("one finite number is expected");
            match meaning {
                Meaning::Scale => {
                    packing.scale = one.filter(|one| *one != 0.0).ok_or_else(one_number)?;
                }
                Meaning::Offset => packing.offset = one.ok_or_else(one_number)?,
                Meaning::Missing if numbers.is_empty() => {
                    return Err(wrong("a number is expected"));
                }
                Meaning::Missing => missing.extend(numbers),
                Meaning::Valid(end) => {
                    let limits = match (end, numbers.as_slice()) {
                        (Some(0), [low]) => [Some(*low), None],
                        (Some(_), [high]) => [None, Some(*high)],
                        (None, [low, high]) => [Some(*low), Some(*high)],
                        (Some(_), _) => return Err(wrong("one number is expected")),
                        (None, _) => return Err(wrong("two numbers are expected")),
                    };
                    let is_float = |value: &Value| value.as_number().is_some_and(|n| n.is_f64());
                    let all_floats = match value {
                        Value::Array(all) => all.iter().all(is_float),
                        value => is_float(value),
                    };
                    valid.push((limits.map(|limit| limit.filter(|n| !n.is_nan())), all_floats));
                }
                Meaning::Unsigned => {
                    let bytes = integer.ok_or_else(|| wrong("the array does not hold integers"))?;
                    packing.sign = Some((2.0f64.powi(8 * bytes as i32), is_yes(value)));
                }
                Meaning::OwnScale | Meaning::OwnOffset => {
                    return Err(format!(
                        "attribute `{name}` ({value}) is not obeyed: packed numbers are described by \
                         `scale_factor` and `add_offset`; rename it if it means that, or remove it"
                    ));
                }
                Meaning::Encoding => {
                    return Err(format!(
                        "attribute `{name}` ({value}): it does not hold its values as plain numbers; store it \
                         uncompressed, as an array of numbers"
                    ));
                }
            }
        }
        let is_compressed = packing.scale != 1.0 || packing.offset != 0.0;
        for (limits, are_floats) in valid {
            // Limits of the unpacked type apply to values, all others to stored numbers.
            let of_values = is_compressed && are_floats && integer.is_some();
            let all = if of_values { &mut packing.values } else { &mut packing.stored };
            let rounds = of_values || integer.is_none();
            for (end, limit) in limits.into_iter().enumerate() {
                let Some(limit) = limit else { continue };
                let limit = if of_values { limit } else { with_sign(packing.sign, limit) };
                let rounded = f64::from(limit as f32);
                all[end] = Some(match end {
                    _ if !rounds => limit,
                    0 => limit.min(rounded),
                    _ => limit.max(rounded),
                });
            }
        }
        for number in missing.into_iter().filter(|number| !number.is_nan()) {
            packing.missing.push(with_sign(packing.sign, number));
            // An f32 array may contain an f64 marker rounded to f32.
            if integer.is_none() {
                packing.missing.push(f64::from(number as f32));
            }
        }
        Ok(packing)
    }

    /// Whether stored numbers equal the values.
    pub fn is_trivial(&self) -> bool {
        *self == Self::default()
    }

    /// Whether some stored numbers denote missing values.
    pub fn marks_missing(&self) -> bool {
        let limits = self.stored.iter().chain(&self.values);
        !self.missing.is_empty() || limits.flatten().next().is_some()
    }

    /// Converts a stored number to its value; NaN if it denotes a missing value.
    pub fn unpack(&self, stored: f64) -> f64 {
        let outside = |number: f64, [low, high]: Limits| {
            low.is_some_and(|low| number < low) || high.is_some_and(|high| number > high)
        };
        let stored = with_sign(self.sign, stored);
        if self.missing.contains(&stored) || outside(stored, self.stored) {
            return f64::NAN;
        }
        let value = stored * self.scale + self.offset;
        if outside(value, self.values) { f64::NAN } else { value }
    }
}

/// Reinterprets a stored integer as unsigned or signed, according to `sign`.
fn with_sign(sign: Option<(f64, bool)>, stored: f64) -> f64 {
    match sign {
        Some((count, true)) if stored < 0.0 => stored + count,
        Some((count, false)) if stored >= count / 2.0 => stored - count,
        _ => stored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn packing(attributes: Value, integer: Option<usize>) -> Result<Packing, String> {
        Packing::of(attributes.as_object().expect("an object"), None, integer)
    }

    /// Compares values, treating NaN as equal to NaN.
    fn assert_unpacks(attributes: Value, integer: Option<usize>, pairs: &[(f64, f64)]) {
        let packing = packing(attributes.clone(), integer).unwrap();
        for (stored, value) in pairs {
            let found = packing.unpack(*stored);
            let same = found == *value || found.is_nan() && value.is_nan();
            assert!(same, "{attributes}: {stored} became {found}, not {value}");
        }
    }

    #[test]
    fn attributes_are_obeyed_as_the_conventions_say() {
        let nan = f64::NAN;
        let era5 = json!({"scale_factor": 0.5, "add_offset": 280.0, "_FillValue": -32767,
                          "missing_value": [-32766, -32765], "units": "K"});
        let pairs = [(2.0, 281.0), (-32767.0, nan), (-32765.0, nan), (-32764.0, -16102.0)];
        assert_unpacks(era5, Some(2), &pairs);
        // Integer valid ranges apply to stored numbers, float valid ranges to values.
        let pairs = [(10.0, 0.1), (11.0, nan), (-1.0, nan), (0.0, 0.0)];
        assert_unpacks(json!({"scale_factor": 0.01, "valid_range": [0, 10]}), Some(2), &pairs);
        let pairs = [(10.0, 5.0), (12.0, nan), (-1.0, nan)];
        let of_values = json!({"scale_factor": 0.5, "valid_min": 0.0, "valid_max": 5.5});
        assert_unpacks(of_values, Some(2), &pairs);
        // An f32 array with an f64 marker and an f64 limit.
        let single = f64::from(-9999.9f32);
        assert_unpacks(
            json!({"missing_value": -9999.9}),
            None,
            &[(single, nan), (-9999.0, -9999.0)],
        );
        let single = f64::from(0.1f32);
        assert_unpacks(json!({"valid_max": 0.1}), None, &[(single, single), (0.11, nan)]);
        // Unsigned bytes in a format without unsigned types; the marker -1 is 255.
        let bytes = json!({"_Unsigned": "true", "_FillValue": -1, "scale_factor": 2.0});
        assert_unpacks(bytes, Some(1), &[(-2.0, 508.0), (-1.0, nan), (127.0, 254.0)]);
        let other = json!({"FillValue": 7, "NODATA_value": 8, "flag_values": [1, 2]});
        assert_unpacks(other, Some(4), &[(7.0, nan), (8.0, nan), (1.0, 1.0)]);
        // A non-finite marker has no effect.
        assert!(
            packing(json!({"_FillValue": null, "scale_factor": 1, "offset": 0}), None)
                .unwrap()
                .is_trivial()
        );
    }

    #[test]
    fn attributes_that_cannot_be_obeyed_are_refused_by_name() {
        for (attributes, integer) in [
            (json!({"scale_factor": [1.0, 2.0]}), None),
            (json!({"scale_factor": 0.0}), None),
            (json!({"add_offset": null}), None),
            (json!({"_FillValue": "AAAAAAAA+H8="}), None),
            (json!({"valid_range": [1.0]}), None),
            (json!({"_Unsigned": "true"}), None),
            (json!({"scale": 0.1}), Some(2)),
            (json!({"intercept": 3}), Some(2)),
            (json!({"compress": "lat lon"}), None),
            (json!({"MATLAB_empty": 1}), Some(8)),
            (json!({"MATLAB_class": "char"}), Some(2)),
        ] {
            let name = attributes.as_object().unwrap().keys().next().unwrap().clone();
            let error = packing(attributes, integer).unwrap_err();
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
        assert!(packing(json!({"MATLAB_class": "double"}), None).unwrap().is_trivial());
        let root = json!({"add_offset": 3.0});
        let error = refuse_outside(root.as_object().unwrap(), "the root").unwrap_err();
        assert!(error.contains("`add_offset` (3.0) of the root"), "{error}");
    }
}
