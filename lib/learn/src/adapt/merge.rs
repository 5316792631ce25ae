//! Merges LoRA updates into the weights.

use super::ENDINGS;
use std::collections::HashMap;
use tensor::Tensor;
use unix::{Error, Result};

/// Returns the parameters with each weight W that has A and B replaced by W + scale·B A, and without A and B. The sum
/// is computed in f64 and rounded to the dtype of W.
///
/// Errors: 65 when A or B of a weight is missing or has the wrong shape.
pub fn merged(params: &[(String, Tensor)], scale: f64) -> Result<Vec<(String, Tensor)>> {
    let known: HashMap<&str, &Tensor> = params.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut found = Vec::new();
    for (name, value) in params {
        if super::is_adapter(name) {
            continue;
        }
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let own = ENDINGS.map(|ending| known.get(format!("{module}{ending}").as_str()).copied());
        let value = match own {
            [None, None] => value.clone(),
            [Some(a), Some(b)] => sum(value, a, b, scale)
                .ok_or_else(|| Error::data(format!("{module}: lora_A and lora_B do not fit")))?,
            _ => return Err(Error::data(format!("{module}: lora_A or lora_B is missing"))),
        };
        found.push((name.clone(), value));
    }
    Ok(found)
}

/// Returns w + scale·b a for w [n, k], a [r, k] and b [n, r]; None when the shapes do not match.
fn sum(w: &Tensor, a: &Tensor, b: &Tensor, scale: f64) -> Option<Tensor> {
    let ([n, k], [r, of_a], [of_b, columns]) = (w.shape(), a.shape(), b.shape()) else {
        return None;
    };
    if (n, k, r) != (of_b, of_a, columns) || *k == 0 || *r == 0 {
        return None;
    }
    let (mut sum, a, b) = (w.to_f64(), a.to_f64(), b.to_f64());
    for (row, factors) in sum.chunks_exact_mut(*k).zip(b.chunks_exact(*r)) {
        for (factor, own) in factors.iter().zip(a.chunks_exact(*k)) {
            row.iter_mut().zip(own).for_each(|(x, a)| *x += scale * factor * a);
        }
    }
    Some(Tensor::from_slice(&sum, w.shape()).to_dtype(w.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_gets_its_update_and_others_stay() {
        let tensor = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape);
        let mut params = vec![
            ("x.weight".to_string(), tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])),
            ("x.bias".into(), tensor(&[7.0, 8.0], &[2])),
            ("x.lora_A.weight".into(), tensor(&[1.0, 0.0, -1.0], &[1, 3])),
            ("x.lora_B.weight".into(), tensor(&[10.0, 20.0], &[2, 1])),
        ];
        let found = merged(&params, 0.5).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].1.to_f64(), [6.0, 2.0, -2.0, 14.0, 5.0, -4.0]);
        assert_eq!(found[1].1.to_f64(), [7.0, 8.0]);
        params[3].1 = tensor(&[1.0; 3], &[3, 1]);
        assert!(merged(&params, 0.5).is_err());
        params.pop();
        assert!(merged(&params, 0.5).unwrap_err().to_string().contains("x: lora_A or lora_B"));
    }
}
