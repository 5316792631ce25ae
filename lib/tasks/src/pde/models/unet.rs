use super::backbone::BackboneShape;
use super::number;
use learn::forward::Forward;
use learn::nn::{Condition, Conv, ConvTranspose, GroupNorm, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::binary::Binary;
use tensor::ops::concat::Concat;
use tensor::ops::depthwise_conv::Padding;
use tensor::ops::interpolate::{Interpolate, Interpolation};
use tensor::ops::pool::{Pool, Pooling};
use unix::{Error, Result};

/// A convolutional U-Net (Ronneberger et al. 2015): on the way down each level doubles the features and halves the
/// token grid, on the way up the reverse, with a skip connection at each level. The token grid must be divisible by 2
/// to the power of `levels` along each axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConvUnet {
    /// Features after the first convolution; the coarsest grid has 2^(levels + 1) times as many.
    #[schemars(range(min = 1, max = 65536))]
    pub hidden: usize,
    /// How often the token grid is halved.
    #[schemars(range(min = 1, max = 16))]
    pub levels: usize,
    /// Side of the convolution filters, in tokens; odd.
    #[serde(default = "number::<3>")]
    #[schemars(range(min = 1, max = 1023))]
    pub kernel_size: usize,
    /// Normalisation after each convolution of the levels.
    #[serde(default)]
    pub norm: UnetNorm,
    /// Groups of features of `norm: group`; must divide 2 * `hidden`. Ignored otherwise.
    #[serde(default = "number::<8>")]
    #[schemars(range(min = 1, max = 65536))]
    pub groups: usize,
    /// Activation after each normalisation.
    #[serde(default)]
    pub activation: UnetActivation,
    /// How the token grid is made finer on the way up.
    #[serde(default)]
    pub upsample: Upsample,
    /// Probability with which dropout zeroes a feature of a token after each activation.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
}

/// Normalisation in a [`ConvUnet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnetNorm {
    /// Of each feature of a sample over the grid, without weight and bias.
    #[default]
    Instance,
    /// Of groups of features of a sample over the grid, with weight and bias.
    Group,
    /// None.
    None,
}

/// Activation in a [`ConvUnet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UnetActivation {
    /// max(x, 0).
    #[default]
    Relu,
    /// max(x, x/100).
    LeakyRelu,
    /// x·Φ(x).
    Gelu,
    /// x·σ(x).
    Silu,
    /// Hyperbolic tangent.
    Tanh,
}

/// Up-sampling in a [`ConvUnet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Upsample {
    /// A transposed convolution with stride 2 and a filter of 2 tokens.
    #[default]
    Transposed,
    /// Linear interpolation, then a convolution with a filter of `kernel_size` tokens.
    Interpolate,
}

impl From<UnetActivation> for Activation {
    fn from(activation: UnetActivation) -> Self {
        match activation {
            UnetActivation::Relu => Activation::Relu,
            UnetActivation::LeakyRelu => Activation::LeakyRelu,
            UnetActivation::Gelu => Activation::Gelu,
            UnetActivation::Silu => Activation::Silu,
            UnetActivation::Tanh => Activation::Tanh,
        }
    }
}

impl ConvUnet {
    /// Violations in the values, except `kernel_size`; keys are relative to `backbone`.
    pub(super) fn violation(&self) -> Option<(&'static str, String)> {
        let (groups, width) = (self.groups, self.hidden.saturating_mul(2));
        let divides = groups > 0 && width.is_multiple_of(groups);
        (self.norm == UnetNorm::Group && !divides).then(|| {
            ("groups", format!("{groups} groups do not divide 2 * hidden = {width} features"))
        })
    }

    /// What does not work on the token grid of `shape`.
    fn problem(&self, shape: &BackboneShape) -> Option<String> {
        let ([rows, columns], levels) = (shape.grid, self.levels);
        let factor = 1_usize << levels.min(usize::BITS as usize - 1);
        let halved = if rows == 1 { vec![columns] } else { vec![rows, columns] };
        if let Some(side) = halved.iter().find(|side| !side.is_multiple_of(factor)) {
            return Some(format!(
                "model.backbone.levels: {levels} levels need a grid divisible by {factor}, but a side of the token \
                 grid {rows} x {columns} is {side}: lower levels, or change the grid of the data or the patch"
            ));
        }
        let coarsest: Vec<usize> = halved.iter().map(|side| side / factor).collect();
        let margin = self.kernel_size / 2;
        if shape.padding == Padding::Periodic && coarsest.iter().any(|side| margin > *side) {
            return Some(format!(
                "model.backbone.kernel_size: filters of {} tokens wrap around the coarsest grid {coarsest:?} of \
                 {levels} levels more than once: lower kernel_size or levels",
                self.kernel_size
            ));
        }
        // The norm of a single number is 0, whatever the number.
        let alone = coarsest.iter().product::<usize>() == 1;
        (alone && self.norm == UnetNorm::Instance).then(|| {
            format!(
                "model.backbone.levels: with {levels} levels the token grid {rows} x {columns} is a single token at \
                 the bottom, where norm: instance makes every feature 0: lower levels or use norm: group"
            )
        })
    }
}

/// The layers of a [`ConvUnet`].
#[derive(Clone, Debug)]
pub(crate) struct ConvLayers {
    grid: [usize; 2],
    /// Why the layers cannot run on this grid; the builder reports it.
    problem: Option<String>,
    input: Conv,
    /// From the condition to a vector that is added to every token.
    condition: Option<Linear>,
    /// From the finest grid to the coarsest.
    down: Vec<DoubleConv>,
    bottom: DoubleConv,
    /// In the order of `down`.
    up: Vec<Up>,
    output: Linear,
    pool: Pool,
}

/// Two convolutions, each followed by normalisation, activation and dropout.
#[derive(Clone, Debug)]
struct DoubleConv {
    layers: [(Conv, Option<GroupNorm>); 2],
    activation: Activation,
    dropout: f64,
}

#[derive(Clone, Debug)]
struct Up {
    finer: Finer,
    convolutions: DoubleConv,
}

/// Up-sampling, which halves the features.
#[derive(Clone, Debug)]
enum Finer {
    Transposed(ConvTranspose),
    Interpolated(Interpolate, Conv),
}

impl DoubleConv {
    /// From `from` features to `to`.
    fn new(
        b: &mut Builder,
        c: &ConvUnet,
        (filter, padding): ([usize; 2], Padding),
        [from, to]: [usize; 2],
    ) -> Self {
        let activation = c.activation.into();
        let layer = |b: &mut Builder, i: usize, from: usize| {
            let conv = Conv::same(b, &format!("conv.{i}"), [from, to], filter, padding);
            let norm = match c.norm {
                UnetNorm::None => None,
                UnetNorm::Instance => Some(GroupNorm::instance(to)),
                UnetNorm::Group => Some(GroupNorm::new(b, &format!("norm.{i}"), to, c.groups)),
            };
            (conv, norm.map(|norm| norm.then(activation)))
        };
        Self { layers: [layer(b, 0, from), layer(b, 1, to)], activation, dropout: c.dropout }
    }

    fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let mut x = x.clone();
        for (conv, norm) in &self.layers {
            x = conv.forward(forward, &x)?;
            x = match norm {
                Some(norm) => norm.forward(forward, &x)?,
                None => forward.apply(self.activation, &[&x])?,
            };
            x = forward.dropout(&x, self.dropout)?;
        }
        Ok(x)
    }
}

impl Finer {
    fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        match self {
            Self::Transposed(conv) => conv.forward(forward, x),
            Self::Interpolated(op, conv) => conv.forward(forward, &forward.apply(*op, &[x])?),
        }
    }
}

impl ConvLayers {
    pub(super) fn new(b: &mut Builder, c: &ConvUnet, shape: &BackboneShape) -> Self {
        let problem = c.problem(shape);
        if let Some(problem) = &problem {
            b.refuse(problem);
        }
        // On a line there is one row, and nothing along the columns of a filter.
        let along = |n: usize| [if shape.grid[0] == 1 { 1 } else { n }, n];
        let (filter, halves) = ((along(c.kernel_size), shape.padding), along(2));
        let double = |b: &mut Builder, name: &str, sizes: [usize; 2]| {
            b.scope(name, |b| DoubleConv::new(b, c, filter, sizes))
        };
        let width = |level: usize| c.hidden << level;
        let up = |b: &mut Builder, level: usize| {
            let [from, to] = [width(level + 2), width(level + 1)];
            b.scope(format!("up.{level}"), |b| Up {
                finer: match c.upsample {
                    Upsample::Transposed => {
                        Finer::Transposed(ConvTranspose::patches(b, "upsample", [from, to], halves))
                    }
                    Upsample::Interpolate => {
                        let grid = [0, 1].map(|axis| match halves[axis] {
                            1 => shape.grid[axis],
                            _ => shape.grid[axis] >> level,
                        });
                        let op = Interpolate { interpolation: Interpolation::Linear, grid };
                        let conv = Conv::same(b, "upsample", [from, to], filter.0, filter.1);
                        Finer::Interpolated(op, conv)
                    }
                },
                convolutions: DoubleConv::new(b, c, filter, [2 * to, to]),
            })
        };
        Self {
            grid: shape.grid,
            problem,
            input: Conv::same(b, "input", [shape.dim, c.hidden], filter.0, filter.1),
            condition: match shape.condition {
                Condition::Fixed => None,
                Condition::Adaptive(width) => Some(Linear::new(b, "condition", width, c.hidden)),
            },
            down: (0..c.levels)
                .map(|i| double(b, &format!("down.{i}"), [width(i), width(i + 1)]))
                .collect(),
            bottom: double(b, "bottom", [width(c.levels), width(c.levels + 1)]),
            up: (0..c.levels).map(|level| up(b, level)).collect(),
            // A convolution with a filter of one token.
            output: Linear::new(b, "output", width(1), shape.output),
            pool: Pool { pooling: Pooling::Max, window: halves, stride: halves },
        }
    }

    pub(super) fn forward(
        &self,
        forward: &Forward,
        z: &Var,
        condition: Option<&Var>,
    ) -> Result<Var> {
        if let Some(problem) = &self.problem {
            return Err(Error::config(problem));
        }
        let ([rows, columns], [batch, tokens, dim]) = (self.grid, [0, 1, 2].map(|i| z.shape()[i]));
        let mut x = self.input.forward(forward, &z.reshape(&[batch, rows, columns, dim]))?;
        if let (Some(linear), Some(condition)) = (&self.condition, condition) {
            let vector = linear.forward(forward, condition)?;
            let vector = vector.reshape(&[batch, 1, 1, x.shape()[3]]);
            x = forward.apply(Binary::Add, &[&x, &vector])?;
        }
        let block = |convolutions: &DoubleConv, x: &Var| {
            let convolutions = convolutions.clone();
            forward.block(&[x], move |forward, vars| convolutions.forward(forward, &vars[0]))
        };
        let mut skips = Vec::new();
        for level in &self.down {
            let skip = block(level, &x)?;
            x = forward.apply(self.pool, &[&skip])?;
            skips.push(skip);
        }
        x = block(&self.bottom, &x)?;
        for (up, skip) in self.up.iter().zip(&skips).rev() {
            let up = up.clone();
            x = forward.block(&[&x, skip], move |forward, vars| {
                let finer = up.finer.forward(forward, &vars[0])?;
                let both = forward.apply(Concat { axis: 3 }, &[&finer, &vars[1]])?;
                up.convolutions.forward(forward, &both)
            })?;
        }
        let x = x.reshape(&[batch, tokens, x.shape()[3]]);
        self.output.forward(forward, &x)
    }
}
