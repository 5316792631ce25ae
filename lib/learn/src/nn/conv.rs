use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::depthwise_conv::{self, Padding};
use unix::Result;

/// Depthwise convolution over the token grid.
#[derive(Clone, Debug)]
pub struct DepthwiseConv {
    weight: ParamId,
    bias: ParamId,
    op: depthwise_conv::DepthwiseConv,
}

impl DepthwiseConv {
    /// A filter of `side` taps along each axis that has more than one token. Weights are initialised uniformly in
    /// ±1/√taps.
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

    /// x [B, tokens, channels] -> the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        forward.apply(self.op, &[x, forward.get(self.weight), forward.get(self.bias)])
    }
}
