use super::*;
use crate::safetensors::MappedTensors;
use std::fs::File;

/// bitsandbytes' weights, by tests/golden/nf4.py.
fn golden() -> MappedTensors {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/nf4.safetensors");
    // SAFETY: nothing writes to the file during the test.
    unsafe { MappedTensors::open(&File::open(path).unwrap()) }.unwrap()
}

fn tensor(file: &MappedTensors, name: &str) -> Tensor {
    let entry = file.header().get(name).unwrap_or_else(|| panic!("{name}"));
    let mut tensor = Tensor::empty(&entry.shape, entry.dtype.dtype().unwrap());
    tensor.as_bytes_mut().copy_from_slice(file.bytes(entry));
    tensor
}

const CASES: [&str; 6] = ["bf16", "f16", "f32", "zeros", "ties", "odd"];

#[test]
fn codes_and_scales_are_those_of_bitsandbytes_to_the_bit() {
    let file = golden();
    for case in CASES {
        let weight = tensor(&file, &format!("{case}/weight"));
        let (_, pieces) = quantise(&weight, false);
        for (piece, name) in pieces.iter().zip(["codes", "scales", "numbers"]) {
            let expected = tensor(&file, &format!("{case}/plain/{name}"));
            assert_eq!(piece.as_bytes(), expected.as_bytes(), "{case}: {name}");
        }
        let of = |name: &str| tensor(&file, &format!("{case}/nested/{name}"));
        // The mean is summed in f64 here.
        let (layout, nested) = quantise(&weight, true);
        let (ours, theirs) = (layout.offset.unwrap(), of("offset").item() as f32);
        assert!((ours - theirs).abs() <= 1e-6 * theirs.abs(), "{case}: {ours}, {theirs}");
        let [codes, largest] = quantised_scales(pieces[1].read(), theirs);
        // Times 0, every code is the same scale.
        if largest.read::<f32>()[0] > 0.0 {
            assert_eq!(codes.as_bytes(), of("scales").as_bytes(), "{case}");
        }
        assert_eq!(largest.as_bytes(), of("largest").as_bytes(), "{case}");
        assert_eq!(nested[4].as_bytes(), of("map").as_bytes());
    }
}

#[test]
fn dequantised_values_are_those_of_bitsandbytes_to_the_bit() {
    let file = golden();
    for case in CASES {
        let weight = tensor(&file, &format!("{case}/weight"));
        for kind in ["plain", "nested"] {
            let of = |name: &str| tensor(&file, &format!("{case}/{kind}/{name}"));
            let names: &[&str] = match kind {
                "plain" => &["codes", "scales", "numbers"],
                _ => &["codes", "scales", "numbers", "largest", "map"],
            };
            let pieces: Vec<Tensor> = names.iter().map(|name| of(name)).collect();
            let offset = (kind == "nested").then(|| of("offset").item() as f32);
            let shape = [0, 1].map(|axis| weight.shape()[axis]);
            let layout = Nf4 { shape, dtype: weight.dtype(), offset };
            let shapes: Vec<_> =
                pieces.iter().map(|piece| (piece.shape().to_vec(), piece.dtype())).collect();
            assert_eq!(layout.pieces(), shapes, "{case}, {kind}");
            let found = layout.dequantised(&pieces.iter().collect::<Vec<_>>(), weight.dtype());
            assert_eq!(found.as_bytes(), of("weight").as_bytes(), "{case}, {kind}");
        }
    }
}

/// Quantising what was dequantised changes nothing: each number has its own code, and the largest keeps the scale.
#[test]
fn quantising_twice_is_quantising_once() {
    let weight = tensor(&golden(), "f32/weight");
    let (layout, once) = quantise(&weight, false);
    let (_, twice) =
        quantise(&layout.dequantised(&once.iter().collect::<Vec<_>>(), Dtype::F32), false);
    assert_eq!(once[0].as_bytes(), twice[0].as_bytes());
    assert_eq!(once[1].as_bytes(), twice[1].as_bytes());
}
