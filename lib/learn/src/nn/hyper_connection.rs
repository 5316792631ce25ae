use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::ops::concat::Concat;
use tensor::ops::hyper_connection::{Coefficients, Depth, Form, Width};
use tensor::ops::normalization::Normalization;
use tensor::ops::reduce::Reduce;
use tensor::{Tensor, Var};
use unix::Result;

/// Initial value of the scales of the dynamic terms.
const SCALE: f64 = 0.01;

/// The residual connection of one branch with S residual streams ([`tensor::ops::hyper_connection`]). Parameters have the
/// names of the package hyper-connections and are used in their stored dtype.
///
/// ```ignore
/// let (input, coefficients) = connection.width(forward, &streams, None)?;
/// let output = branch(&input)?;
/// streams = connection.depth(forward, &streams, &coefficients, &output, None)?;
/// ```
#[derive(Clone, Debug)]
pub struct HyperConnection {
    form: Form,
    parameters: Vec<ParamId>,
}

impl HyperConnection {
    /// Creates the connection of `streams` streams (1 to 4) of `width` features. Initially, the branch reads mostly stream
    /// `index`, and coefficients do not depend on the streams.
    ///
    /// # Panics
    /// If `index` is not below `streams`.
    pub fn new(
        b: &mut Builder,
        name: &str,
        form: Form,
        [streams, width]: [usize; 2],
        index: usize,
    ) -> Self {
        assert!(index < streams, "stream {index} of {streams}");
        let mut alpha = vec![0.0_f32; streams * (streams + 1)];
        alpha[index * (streams + 1)] = 1.0;
        (0..streams).for_each(|s| alpha[s * (streams + 1) + s + 1] = 1.0);
        let scales: &[&str] = match form {
            Form::Plain => &["dynamic_alpha_scale", "dynamic_beta_scale"],
            Form::Manifold => &["pre_branch_scale", "residual_scale", "h_post_scale"],
        };
        let zero = Init::Constant(0.0);
        b.scope(name, |b| {
            let mut parameters = vec![
                b.scope("norm", |b| b.param("gamma", &[width], zero)),
                b.param("dynamic_alpha_fn", &[width, streams + 1], zero),
                b.value("static_alpha", Tensor::from_slice(&alpha, &[streams, streams + 1])),
                b.param("dynamic_beta_fn", &[width], zero),
                b.param("static_beta", &[streams], Init::Constant(1.0)),
            ];
            parameters.extend(scales.iter().map(|name| b.param(name, &[1], Init::Constant(SCALE))));
            Self { form, parameters }
        })
    }

    /// Returns the input of the branch [.., H] and the coefficients for [`HyperConnection::depth`], given the streams
    /// [.., S, H]. The input is normalized if `norm` has an adaptive normalization and its m.
    pub fn width(
        &self,
        forward: &Forward,
        streams: &Var,
        norm: Option<(Normalization, &Var)>,
    ) -> Result<(Var, Var)> {
        let parameters = self.parameters.iter().map(|id| forward.get_stored(*id));
        let inputs: Vec<&Var> = [streams].into_iter().chain(parameters).collect();
        let coefficients = forward.apply(Coefficients(self.form), &inputs)?;
        let inputs = [streams, &coefficients].into_iter().chain(norm.map(|(_, m)| m));
        let op = Width { norm: norm.map(|(norm, _)| norm) };
        let input = forward.apply(op, &inputs.collect::<Vec<_>>())?;
        Ok((input, coefficients))
    }

    /// Returns the streams [.., S, H] after the branch, given those before it and the output of the branch [.., H], which
    /// is scaled by 1 + g if `gain` has m [G, n·H] and the index of g among its vectors.
    pub fn depth(
        &self,
        forward: &Forward,
        streams: &Var,
        coefficients: &Var,
        output: &Var,
        gain: Option<(&Var, usize)>,
    ) -> Result<Var> {
        let inputs = [streams, coefficients, output].into_iter().chain(gain.map(|(m, _)| m));
        let op = Depth { gain: gain.map(|(_, vector)| vector) };
        forward.apply(op, &inputs.collect::<Vec<_>>())
    }

    /// Copies x [.., H] to each of `streams` streams [.., S, H].
    pub fn expand(forward: &Forward, x: &Var, streams: usize) -> Result<Var> {
        let (rows, width) = x.shape().split_at(x.shape().len() - 1);
        let one = x.reshape(&[rows, &[1], width].concat());
        forward.apply(Concat { axis: rows.len() }, &vec![&one; streams])
    }

    /// Returns the sum [.., H] of the streams [.., S, H].
    pub fn reduce(forward: &Forward, streams: &Var) -> Result<Var> {
        let axis = streams.shape().len() - 2;
        let shape = [&streams.shape()[..axis], &streams.shape()[axis + 1..]].concat();
        Ok(forward.apply(Reduce::Sum(axis), &[streams])?.reshape(&shape))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Dtype, Tape, constant};

    /// The sum of the streams after a branch f(u) = 3u, of a new connection, divided by x.
    fn factor(form: Form, streams: usize) -> f64 {
        let mut b = Builder::new(1);
        let connection =
            HyperConnection::new(&mut b, "connection", form, [streams, 5], streams - 1);
        let (params, tape) = (b.finish(), Tape::new());
        let forward = Forward::training(&tape, &params);
        let x = constant(Tensor::full(&[2, 3, 5], 2.0, Dtype::F32));
        let all = HyperConnection::expand(&forward, &x, streams).unwrap();
        let (input, c) = connection.width(&forward, &all, None).unwrap();
        let three = constant(Tensor::full(&[2, 3, 5], 3.0, Dtype::F32));
        let output =
            forward.apply(tensor::ops::binary::Binary::Multiply, &[&input, &three]).unwrap();
        let all = connection.depth(&forward, &all, &c, &output, None).unwrap();
        let sum = HyperConnection::reduce(&forward, &all).unwrap();
        assert_eq!(sum.shape(), [2, 3, 5]);
        let values = sum.value().to_f64();
        assert!(values.iter().all(|value| (value - values[0]).abs() < 1e-5));
        values[0] / 2.0
    }

    #[test]
    fn new_plain_connections_are_residual_and_new_manifolds_have_known_gains() {
        for streams in 1..=4 {
            let expected = streams as f64 * (1.0 + 3.0);
            assert!((factor(Form::Plain, streams) - expected).abs() < 1e-5);
        }
        // Two streams: a is σ(1) and σ(0), rows and columns of P add up to 1, β is 2σ(1).
        let sigmoid = 1.0 / (1.0 + (-1.0_f64).exp());
        let expected = 2.0 * (1.0 + 3.0 * (sigmoid + 0.5) * 2.0 * sigmoid);
        let found = factor(Form::Manifold, 2);
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
    }
}
