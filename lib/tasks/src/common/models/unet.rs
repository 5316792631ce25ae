use super::backbone::BackboneShape;
use super::conv_layer::{
    ConditionVector, ConvActivation, ConvLayer, ConvNorm, ConvStyle, to_cells, to_tokens,
};
use super::number;
use learn::forward::Forward;
use learn::nn::{Conv, ConvTranspose, Linear};
use learn::params::Builder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
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
    pub norm: ConvNorm,
    /// Groups of features of `norm: group`; must divide 2 * `hidden`. Ignored otherwise.
    #[serde(default = "number::<8>")]
    #[schemars(range(min = 1, max = 65536))]
    pub groups: usize,
    /// Activation after each normalisation.
    #[serde(default)]
    pub activation: ConvActivation,
    /// How the token grid is made finer on the way up.
    #[serde(default)]
    pub upsample: Upsample,
    /// Probability with which dropout zeroes a feature of a token after each activation.
    #[serde(default)]
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
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

impl ConvUnet {
    /// Returns the violation of `groups`, if any; its key is relative to `backbone`.
    pub(super) fn violation(&self) -> Option<(&'static str, String)> {
        self.norm.violation(self.groups, self.hidden.saturating_mul(2), "2 * hidden")
    }

    /// Returns the reason if the network does not fit the token grid of `shape`.
    fn problem(&self, shape: &BackboneShape) -> Option<String> {
        let (grid, levels) = (shape.describe(), self.levels);
        let factor = 1_usize << levels.min(usize::BITS as usize - 1);
        let halved = shape.axes();
        if let Some(side) = halved.iter().find(|side| !side.is_multiple_of(factor)) {
            let most = halved.iter().map(|side| side.trailing_zeros()).min().unwrap_or(0);
            let remedy = match most {
                0 => "use kind: resnet".to_string(),
                _ => format!("choose levels: {most} or less"),
            };
            return Some(format!(
                "model.backbone.levels: {levels} levels need a grid divisible by {factor}, but a side of the token \
                 grid {grid} is {side}; {remedy}, or change the grid of the data or the patch"
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
        // Instance normalisation of a single value always yields 0.
        let alone = coarsest.iter().product::<usize>() == 1;
        (alone && self.norm == ConvNorm::Instance).then(|| {
            format!(
                "model.backbone.levels: with {levels} levels the token grid {grid} is a single token at \
                 the bottom, where norm: instance makes every feature 0: lower levels or use norm: group"
            )
        })
    }
}

/// The layers of a [`ConvUnet`].
#[derive(Clone, Debug)]
pub(crate) struct ConvLayers {
    grid: [usize; 3],
    /// Reason why the layers cannot run on this grid, if any; the builder has reported it.
    problem: Option<String>,
    input: Conv,
    condition: ConditionVector,
    /// Levels from the finest grid to the coarsest.
    down: Vec<DoubleConv>,
    bottom: DoubleConv,
    /// Levels in the order of `down`.
    up: Vec<Up>,
    output: Linear,
    pool: Pool,
}

/// Two convolutions, each followed by normalisation, activation and dropout.
#[derive(Clone, Debug)]
struct DoubleConv([ConvLayer; 2]);

#[derive(Clone, Debug)]
struct Up {
    finer: Finer,
    convolutions: DoubleConv,
}

/// Up-sampling, which also halves the number of features.
#[derive(Clone, Debug)]
enum Finer {
    Transposed(ConvTranspose),
    Interpolated(Interpolate, Conv),
}

impl DoubleConv {
    /// Builds two convolutions, from `from` features to `to`.
    fn new(b: &mut Builder, style: &ConvStyle, [from, to]: [usize; 2]) -> Self {
        Self([ConvLayer::new(b, 0, [from, to], style), ConvLayer::new(b, 1, [to, to], style)])
    }

    fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        self.0[1].forward(forward, &self.0[0].forward(forward, x)?)
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
        let (filter, padding, halves) = (shape.along(c.kernel_size), shape.padding, shape.along(2));
        let &ConvUnet { norm, groups, dropout, .. } = c;
        let activation = c.activation.into();
        let style = &ConvStyle { filter, padding, norm, groups, activation, dropout };
        let double = |b: &mut Builder, name: &str, sizes: [usize; 2]| {
            b.scope(name, |b| DoubleConv::new(b, style, sizes))
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
                        let grid = [0, 1, 2].map(|axis| match halves[axis] {
                            1 => shape.grid[axis],
                            _ => shape.grid[axis] >> level,
                        });
                        let op = Interpolate { interpolation: Interpolation::Linear, grid };
                        let conv = Conv::same(b, "upsample", [from, to], filter, padding);
                        Finer::Interpolated(op, conv)
                    }
                },
                convolutions: DoubleConv::new(b, style, [2 * to, to]),
            })
        };
        Self {
            grid: shape.grid,
            problem,
            input: Conv::same(b, "input", [shape.dim, c.hidden], filter, padding),
            condition: ConditionVector::new(b, shape, c.hidden),
            down: (0..c.levels)
                .map(|i| double(b, &format!("down.{i}"), [width(i), width(i + 1)]))
                .collect(),
            bottom: double(b, "bottom", [width(c.levels), width(c.levels + 1)]),
            up: (0..c.levels).map(|level| up(b, level)).collect(),
            // Equivalent to a convolution with a filter of one token.
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
        let x = self.input.forward(forward, &to_cells(z, self.grid))?;
        let mut x = self.condition.add(forward, x, condition)?;
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
        for (level, (up, skip)) in self.up.iter().zip(&skips).enumerate().rev() {
            let (up, output) = (up.clone(), (level == 0).then(|| self.output.clone()));
            x = forward.block(&[&x, skip], move |forward, vars| {
                let finer = up.finer.forward(forward, &vars[0])?;
                let both = forward.apply(Concat { axis: 4 }, &[&finer, &vars[1]])?;
                let x = up.convolutions.forward(forward, &both)?;
                match &output {
                    Some(output) => output.forward(forward, &x),
                    None => Ok(x),
                }
            })?;
        }
        Ok(to_tokens(&x))
    }
}
