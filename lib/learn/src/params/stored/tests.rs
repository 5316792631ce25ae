use super::*;

fn weight() -> Vec<(String, Tensor)> {
    let values: Vec<f32> = (0..6 * 64).map(|i| (i as f32 * 0.7).sin()).collect();
    let weight = Value::Dense(Tensor::from_slice(&values, &[6, 64]));
    let Ok(Value::Nf4(weight)) = weight.stored_as(Storage::Nf4) else { panic!() };
    weight.entries("a.weight")
}

#[test]
fn what_is_written_is_read_back() {
    let bias = ("a.bias".to_string(), Tensor::scalar(1.0_f32));
    let found = grouped(&[weight(), vec![bias]].concat()).unwrap();
    let [(bias, Value::Dense(_)), (name, Value::Nf4(read))] = &found[..] else {
        panic!("{found:?}")
    };
    assert_eq!((bias.as_str(), name.as_str()), ("a.bias", "a.weight"));
    let again = read.clone().entries("a.weight");
    assert_eq!(again.len(), 6);
    for ((name, ours), (other, theirs)) in again.iter().zip(weight()) {
        assert_eq!((name, ours.as_bytes()), (&other, theirs.as_bytes()));
    }
}

#[test]
fn damaged_weights_are_refused_and_the_tensor_is_named() {
    let with = |i: usize, tensor: Tensor| {
        let mut all = weight();
        all[i].1 = tensor;
        grouped(&all).unwrap_err()
    };
    let without = |i: usize| {
        let mut all = weight();
        all.remove(i);
        grouped(&all).unwrap_err()
    };
    let of = |i: usize| weight()[i].1.clone();
    let state = |from: &str, to: &str| {
        let text = String::from_utf8(of(5).as_bytes().to_vec()).unwrap();
        assert!(text.contains(from), "{text}");
        let text = text.replace(from, to);
        with(5, Tensor::from_slice(text.as_bytes(), &[text.len()]))
    };
    let mut map = of(2);
    map.write::<f32>().swap(3, 4);
    let mut nested = of(4);
    nested.write::<f32>()[7] = f32::NAN;
    for (error, expected) in [
        (with(0, Tensor::zeros(&[191, 1], Dtype::U8)), "a.weight is u8 [191, 1]"),
        (with(1, Tensor::zeros(&[5], Dtype::U8)), "a.weight.absmax is u8 [5]"),
        (with(1, Tensor::zeros(&[6], Dtype::F32)), "needs u8 [6]"),
        (with(2, map), "a.weight.quant_map is not in ascending order"),
        (with(4, nested), "a.weight.nested_quant_map has values that are not finite"),
        (without(0), "a.weight is not"),
        (without(2), "a.weight.quant_map is not"),
        (without(4), "there is no a.weight.nested_quant_map"),
        (without(5), "no description"),
        (state("\"nf4\"", "\"fp4\""), "quant_type is \"fp4\""),
        (state("64,\"dtype\"", "128,\"dtype\""), "blocksize is 128"),
        (state("float32\",\"shape", "int8\",\"shape"), "dtype is \"int8\""),
        (state("[6,64]", "[6,65]"), "needs u8 [195, 1]"),
        (state("[6,64]", "[99999999999,99999999999]"), "too large"),
        (state("[6,64]", "[384]"), "only matrices"),
        (state("{", "["), "not a description"),
        (state("\"nested_blocksize\":256,", ""), "nested_offset are (None, Some"),
    ] {
        assert!(error.contains(expected), "{error}");
    }
}
