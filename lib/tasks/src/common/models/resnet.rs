use super::backbone::BackboneShape;
use super::conv_layer::{
    ConditionVector, ConvActivation, ConvLayer, ConvNorm, ConvStyle, to_cells, to_tokens,
};
use super::number;
use learn::forward::Forward;
use learn::nn::{Conv, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use unix::Result;

/// A residual network (He et al. 2016) on the token grid: a convolution, basic blocks
/// x ← f(x + norm(conv(f(norm(conv(x)))))) with the activation f, and a linear layer on each token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Resnet {
    /// Features per token inside the model.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// Number of blocks, each with two convolutions.
    #[serde(default = "number::<8>")]
    #[schemars(range(min = 1, max = 1024))]
    pub blocks: usize,
    /// Side of the convolution filters, in tokens; odd.
    #[serde(default = "number::<3>")]
    #[schemars(range(min = 1, max = 1023))]
    pub kernel_size: usize,
    /// Normalisation after each convolution of the blocks.
    #[serde(default)]
    pub norm: ConvNorm,
    /// Groups of features of `norm: group`; must divide `hidden`. Ignored otherwise.
    #[serde(default = "number::<8>")]
    #[schemars(range(min = 1, max = 65536))]
    pub groups: usize,
    /// Activation after the first convolution of a block and after the sum.
    #[serde(default)]
    pub activation: ConvActivation,
    /// Probability with which dropout zeroes a feature of a token between the convolutions of a block.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
}

/// The layers of a [`Resnet`].
#[derive(Clone, Debug)]
pub(crate) struct ResidualLayers {
    grid: [usize; 3],
    input: Conv,
    condition: ConditionVector,
    blocks: Vec<[ConvLayer; 2]>,
    activation: Activation,
    output: Linear,
}

impl ResidualLayers {
    pub(super) fn new(b: &mut Builder, c: &Resnet, shape: &BackboneShape) -> Self {
        let (filter, padding) = (shape.along(c.kernel_size), shape.padding);
        let (activation, margin) = (c.activation.into(), c.kernel_size / 2);
        if padding == Padding::Periodic && shape.axes().iter().any(|tokens| margin > *tokens) {
            b.refuse(format!(
                "model.backbone.kernel_size: filters of {} tokens wrap around the token grid {} more than once: lower \
                 kernel_size",
                c.kernel_size,
                shape.describe()
            ));
        }
        let &Resnet { norm, groups, dropout, .. } = c;
        let first = ConvStyle { filter, padding, norm, groups, activation, dropout };
        let second = ConvStyle { activation: Activation::Identity, dropout: 0.0, ..first };
        let sizes = [c.hidden; 2];
        Self {
            grid: shape.grid,
            input: Conv::same(b, "input", [shape.dim, c.hidden], filter, padding),
            condition: ConditionVector::new(b, shape, c.hidden),
            blocks: (0..c.blocks)
                .map(|i| {
                    b.scope(format!("blocks.{i}"), |b| {
                        let first = ConvLayer::new(b, 0, sizes, &first);
                        [first, ConvLayer::new(b, 1, sizes, &second)]
                    })
                })
                .collect(),
            activation,
            output: Linear::new(b, "output", c.hidden, shape.output),
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        let x = self.input.forward(forward, &to_cells(z, self.grid))?;
        let mut x = self.condition.add(forward, x, condition)?;
        for block in &self.blocks {
            let ([first, second], activation) = (block.clone(), self.activation);
            x = forward.block(&[&x], move |forward, vars| {
                let change = second.forward(forward, &first.forward(forward, &vars[0])?)?;
                let sum = forward.apply(Binary::Add, &[&vars[0], &change])?;
                forward.apply(activation, &[&sum])
            })?;
        }
        self.output.forward(forward, &to_tokens(&x))
    }
}
