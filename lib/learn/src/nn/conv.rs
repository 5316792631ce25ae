use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::depthwise_conv::{self, Padding};
use tensor::ops::{conv, conv_transpose};
use unix::Result;

/// Depthwise convolution over the token grid.
#[derive(Clone, Debug)]
pub struct DepthwiseConv {
    weight: ParamId,
    bias: ParamId,
    op: depthwise_conv::DepthwiseConv,
}

impl DepthwiseConv {
    /// Creates a layer with a kernel of `side` taps along each axis that has more than one token. Weights are
    /// initialised uniformly in ±1/√taps.
    pub fn new(
        b: &mut Builder,
        name: &str,
        channels: usize,
        grid: [usize; 2],
        side: usize,
        padding: Padding,
    ) -> Self {
        let filter = grid.map(|tokens| if tokens == 1 { 1 } else { side });
        let taps = filter[0] * filter[1];
        b.scope(name, |b| Self {
            weight: b.param("weight", &[taps, channels], Init::Uniform(1.0 / (taps as f64).sqrt())),
            bias: b.param("bias", &[channels], Init::Constant(0.0)),
            op: depthwise_conv::DepthwiseConv { grid, filter, padding },
        })
    }

    /// Maps x [B, tokens, channels] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        forward.apply(self.op, &[x, forward.get(self.weight), forward.get(self.bias)])
    }
}

/// Kernel shape [first, (depth,) rows, columns, last]; the depth is omitted if it is 1.
fn filter_shape(first: usize, [depth, rows, columns]: [usize; 3], last: usize) -> Vec<usize> {
    match depth {
        1 => vec![first, rows, columns, last],
        _ => vec![first, depth, rows, columns, last],
    }
}

/// Convolution over a grid, channels last.
#[derive(Clone, Debug)]
pub struct Conv {
    weight: ParamId,
    bias: ParamId,
    op: conv::Conv,
}

impl Conv {
    /// Creates a convolution from `channels` to `filters` channels on the same grid, with odd kernel sizes. Weights and
    /// bias are initialised uniformly in ±1/√(channels · taps) (PyTorch's default).
    pub fn same(
        b: &mut Builder,
        name: &str,
        [channels, filters]: [usize; 2],
        filter: [usize; 3],
        padding: Padding,
    ) -> Self {
        let init = Init::linear(channels * filter.iter().product::<usize>());
        b.scope(name, |b| Self {
            weight: b.param("weight", &filter_shape(filters, filter, channels), init),
            bias: b.param("bias", &[filters], init),
            op: conv::Conv::same(filter, padding),
        })
    }

    /// Sets the stride.
    pub fn strided(mut self, stride: [usize; 3]) -> Self {
        self.op.stride = stride;
        self
    }

    /// Maps x [B, depth, rows, columns, channels] to [B, .., filters]; the depth axis is optional.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        forward.apply(self.op, &[x, forward.get(self.weight), forward.get(self.bias)])
    }
}

/// Transposed convolution that upsamples a grid, channels last.
#[derive(Clone, Debug)]
pub struct ConvTranspose {
    weight: ParamId,
    bias: ParamId,
    op: conv_transpose::ConvTranspose,
}

impl ConvTranspose {
    /// Creates a transposed convolution from `channels` to `filters` channels that maps every cell to a patch of
    /// `stride` cells. Weights and bias are initialised uniformly in ±1/√(filters · taps) (PyTorch's default, whose
    /// fan-in counts the output channels).
    pub fn patches(
        b: &mut Builder,
        name: &str,
        [channels, filters]: [usize; 2],
        stride: [usize; 3],
    ) -> Self {
        let init = Init::linear(filters * stride.iter().product::<usize>());
        b.scope(name, |b| Self {
            weight: b.param("weight", &filter_shape(channels, stride, filters), init),
            bias: b.param("bias", &[filters], init),
            op: conv_transpose::ConvTranspose::patches(stride),
        })
    }

    /// Maps x [B, depth, rows, columns, channels] to [B, depth · stride, .., filters]; the depth axis is optional.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        forward.apply(self.op, &[x, forward.get(self.weight), forward.get(self.bias)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initial_values_have_the_bounds_of_pytorch() {
        let mut b = Builder::new(1);
        Conv::same(&mut b, "conv", [10, 20], [1, 3, 5], Padding::Zero);
        ConvTranspose::patches(&mut b, "finer", [40, 25], [1, 2, 3]);
        Conv::same(&mut b, "volume", [2, 20], [5, 3, 5], Padding::Zero);
        let params = b.finish();
        let entries = params.trained.entries();
        let found: Vec<(&str, &[usize])> =
            entries.iter().map(|(name, tensor)| (name.as_str(), tensor.shape())).collect();
        let expected: [(&str, &[usize]); 6] = [
            ("conv.weight", &[20, 3, 5, 10]),
            ("conv.bias", &[20]),
            ("finer.weight", &[40, 2, 3, 25]),
            ("finer.bias", &[25]),
            ("volume.weight", &[20, 5, 3, 5, 2]),
            ("volume.bias", &[20]),
        ];
        assert_eq!(found, expected);
        // torch.nn.Conv2d, ConvTranspose2d and Conv3d with these sizes: ±1/√150, where 150 = 10·3·5 = 25·2·3 = 2·5·3·5.
        for (name, tensor) in entries {
            let largest = tensor.to_f64().into_iter().map(f64::abs).fold(0.0, f64::max);
            let bound = 1.0 / 150f64.sqrt();
            assert!((0.7..1.0).contains(&(largest / bound)), "{name}: {largest}");
        }
    }
}
