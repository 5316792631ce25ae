//! Hyper-connections compared with the package: `tests/golden/mmdit.py` computed the values.

use super::{Golden, agree};
use tensor::check::run;
use tensor::op::{Case, Draw, Op};
use tensor::ops::hyper_connection::{Coefficients, Depth, Form, Width};
use tensor::{Dtype, Tensor};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/mmdit.safetensors");

/// The names of the parameters in the package, in the order of [`Coefficients`].
const PLAIN: [&str; 7] = [
    "norm.gamma",
    "dynamic_alpha_fn",
    "static_alpha",
    "dynamic_beta_fn",
    "static_beta",
    "dynamic_alpha_scale",
    "dynamic_beta_scale",
];
const MANIFOLD: [&str; 8] = [
    "norm.gamma",
    "dynamic_alpha_fn",
    "static_alpha",
    "dynamic_beta_fn",
    "static_beta",
    "pre_branch_scale",
    "residual_scale",
    "h_post_scale",
];

fn case(op: impl Op, inputs: &[&Tensor]) -> Case {
    let inputs = inputs.iter().map(|x| (x.shape().to_vec(), Draw::Normal)).collect();
    Case { op: Box::new(op), inputs, operations: 0 }
}

/// The shapes of our parameters: the package has further axes of size 1.
fn shape(i: usize, streams: usize, width: usize) -> Vec<usize> {
    match i {
        0 | 3 => vec![width],
        1 => vec![width, streams + 1],
        2 => vec![streams, streams + 1],
        4 => vec![streams],
        _ => vec![1],
    }
}

fn check(form: Form, streams: usize, dtype: Dtype) {
    let golden = Golden::open(FILE);
    let (folder, names) = match form {
        Form::Plain => ("plain", &PLAIN[..]),
        Form::Manifold => ("manifold", &MANIFOLD[..]),
    };
    let value = |name: &str| golden.tensor(&format!("connection/{folder}/{streams}/{name}"));
    let [x, branch, dinput, dout] =
        ["streams", "branch", "dinput", "dout"].map(|name| value(name).to_dtype(dtype));
    let parameter = |kind: &str, i: usize| {
        value(&format!("{kind}/{}", names[i])).reshape(&shape(i, streams, x.width()))
    };
    let parameters: Vec<Tensor> =
        (0..names.len()).map(|i| parameter("value", i).to_dtype(dtype)).collect();

    let inputs: Vec<Tensor> = [&x].into_iter().chain(&parameters).cloned().collect();
    let coefficients = case(Coefficients(form), &inputs.iter().collect::<Vec<_>>());
    let (c, _) = tensor::check::forward(&coefficients, &inputs);
    let pair = [x.clone(), c.clone()];
    let (input, of_width) = run(&case(Width { norm: None }, &[&x, &c]), &pair, &dinput, None);
    let triple = [x.clone(), c.clone(), branch.clone()];
    let depth = case(Depth { gain: None }, &[&x, &c, &branch]);
    let (out, of_depth) = run(&depth, &triple, &dout, None);
    let what = |name: &str| format!("{folder}, {streams} streams: {name}");
    agree(&what("input"), &input, &value("input"));
    agree(&what("out"), &out, &value("out"));

    let sum = |i: usize| {
        let [a, b] = [&of_width[i], &of_depth[i]].map(|g| g.as_ref().unwrap().to_f64());
        a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<f64>>()
    };
    let dc = Tensor::from_slice(&sum(1), c.shape()).to_dtype(dtype);
    let (_, gradients) = run(&coefficients, &inputs, &dc, None);
    let gradients: Vec<Tensor> = gradients.into_iter().map(Option::unwrap).collect();
    let dx: Vec<f64> = sum(0).iter().zip(gradients[0].to_f64()).map(|(a, b)| a + b).collect();
    let dx = Tensor::from_slice(&dx, x.shape()).to_dtype(dtype);
    agree(&what("dstreams"), &dx, &value("dstreams"));
    agree(&what("dbranch"), of_depth[2].as_ref().unwrap(), &value("dbranch"));
    // The gradient of a scale is one number, which may be small by cancellation: it is compared in f64.
    let compared = if dtype == Dtype::F64 { names.len() } else { 5 };
    for (i, gradient) in gradients[1..=compared].iter().enumerate() {
        agree(&what(names[i]), gradient, &parameter("gradient", i));
    }
}

#[test]
fn connections_are_those_of_the_package() {
    for form in [Form::Plain, Form::Manifold] {
        // With one stream P is 1, and its gradients vanish.
        let least = if form == Form::Plain { 1 } else { 2 };
        for streams in least..=4 {
            for dtype in [Dtype::F64, Dtype::F32] {
                check(form, streams, dtype);
            }
        }
    }
}
