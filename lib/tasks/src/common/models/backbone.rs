//! The available backbones: networks that process the tokens.

use super::autoencoder::{Autoencoder, AutoencoderLayers};
use super::fno::{Fno, FourierLayers};
use super::mlp::{Mlp, MlpLayers};
use super::pdet_stack::{PdetStack, Stack};
use super::pdet_unet::{PdetUnet, Unet};
use super::resnet::{ResidualLayers, Resnet};
use super::unet::{ConvLayers, ConvUnet};
use learn::forward::Forward;
use learn::nn::{Condition, Linear, Mixing};
use learn::params::{Builder, Init, ParamId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tensor::Var;
use tensor::ops::binary::Binary;
use tensor::ops::depthwise_conv::Padding;
use unix::Result;

/// The backbone that processes the tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BackboneConfig {
    /// A stack of blocks of equal width.
    PdetStack(PdetStack),
    /// A U-Net of blocks on a pyramid of token grids.
    PdetUnet(PdetUnet),
    /// A Fourier neural operator.
    Fno(Fno),
    /// An MLP on each token by itself.
    Mlp(Mlp),
    /// A convolutional U-Net.
    Unet(ConvUnet),
    /// A residual network of convolutions.
    Resnet(Resnet),
    /// A convolutional autoencoder.
    Autoencoder(Autoencoder),
}

impl BackboneConfig {
    /// Returns the violations in the values; keys are relative to `model`.
    pub fn violations(&self) -> Vec<(String, String)> {
        let (attention, kernel_size, remedy) = match self {
            BackboneConfig::PdetStack(c) => {
                (c.attention.violation(c.hidden), c.kernel_size, "use an odd side, or 0")
            }
            BackboneConfig::PdetUnet(c) => {
                (c.attention.violation(c.hidden), c.kernel_size, "use an odd side, or 0")
            }
            BackboneConfig::Unet(c) => (None, c.kernel_size, "use an odd side"),
            BackboneConfig::Resnet(c) => (None, c.kernel_size, "use an odd side"),
            BackboneConfig::Autoencoder(c) => return c.violations(),
            BackboneConfig::Fno(_) | BackboneConfig::Mlp(_) => return Vec::new(),
        };
        let mut violations = Vec::new();
        if let Some(problem) = attention {
            violations.push(("backbone.attention".into(), problem));
        }
        if kernel_size != 0 && kernel_size.is_multiple_of(2) {
            let text = format!("{kernel_size} is even: {remedy}");
            violations.push(("backbone.kernel_size".into(), text));
        }
        let convolutions = match self {
            BackboneConfig::Unet(c) => c.violation(),
            BackboneConfig::Resnet(c) => c.norm.violation(c.groups, c.hidden, "hidden"),
            _ => None,
        };
        if let Some((key, problem)) = convolutions {
            violations.push((format!("backbone.{key}"), problem));
        }
        if let BackboneConfig::PdetUnet(PdetUnet { depths, .. }) = self
            && (!(1..=32).contains(&depths.len()) || depths.iter().any(|depth| *depth > 1024))
        {
            let text = "needs 1 to 32 levels, each with at most 1024 blocks";
            violations.push(("backbone.depths".into(), text.into()));
        }
        violations
    }
}

/// Global mixing of tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Attention {
    /// No attention.
    #[default]
    None,
    /// Multi-head attention.
    MultiHead {
        /// Number of heads; must divide `hidden`.
        heads: usize,
        /// QK normalisation: normalise queries and keys in each head.
        #[serde(default = "yes")]
        qk_norm: bool,
    },
    /// Attention over groups of features that share their projections.
    ChannelSeparated {
        /// Features per group; must divide `hidden`.
        group: usize,
        /// Heads per group; must divide `group`.
        heads: usize,
    },
}

fn yes() -> bool {
    true
}

impl Attention {
    pub(crate) fn mixing(&self) -> Mixing {
        match *self {
            Attention::None => Mixing::None,
            Attention::MultiHead { heads, qk_norm } => Mixing::MultiHead { heads, qk_norm },
            Attention::ChannelSeparated { group, heads } => {
                Mixing::ChannelSeparated { group, heads }
            }
        }
    }

    /// Returns the violation if heads and groups do not divide `hidden`.
    fn violation(&self, hidden: usize) -> Option<String> {
        match *self {
            Attention::None => None,
            Attention::MultiHead { heads, .. } => (heads == 0 || !hidden.is_multiple_of(heads))
                .then(|| format!("{heads} heads do not divide hidden = {hidden}")),
            Attention::ChannelSeparated { group, heads } => (group == 0
                || heads == 0
                || !hidden.is_multiple_of(group)
                || !group.is_multiple_of(heads))
            .then(|| {
                format!(
                    "{heads} heads must divide group = {group}, which must divide hidden = {hidden}"
                )
            }),
        }
    }
}

/// The shapes with which a backbone is built.
pub(crate) struct BackboneShape {
    /// Features per input token.
    pub dim: usize,
    /// Features per output token.
    pub output: usize,
    /// Depth, rows and columns of the token grid; 1 for missing axes.
    pub grid: [usize; 3],
    /// Padding at the border of the domain.
    pub padding: Padding,
    pub condition: Condition,
}

impl BackboneShape {
    /// Number of tokens along each axis that the grid has.
    pub(super) fn axes(&self) -> &[usize] {
        let missing = self.grid[..2].iter().take_while(|tokens| **tokens == 1).count();
        &self.grid[missing..]
    }

    /// Returns `n` along each axis that the grid has, and 1 along the others.
    pub(super) fn along(&self, n: usize) -> [usize; 3] {
        let missing = 3 - self.axes().len();
        std::array::from_fn(|axis| if axis < missing { 1 } else { n })
    }

    /// Formats the token grid, e.g. `8 x 6`; a 1D grid has one row.
    pub(super) fn describe(&self) -> String {
        let first = usize::from(self.grid[0] == 1);
        self.grid[first..].iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
    }

    /// Returns rows and columns of the token grid for layers without a depth axis: planes are stacked along the rows.
    /// If there are several planes, the builder refuses the layer named by `planar`, which depends on token positions.
    pub(super) fn plane(&self, b: &mut Builder, planar: Option<&str>) -> [usize; 2] {
        let [depth, rows, columns] = self.grid;
        if let (2.., Some(what)) = (depth, planar) {
            b.refuse(format!(
                "model.backbone: {what} supports one or two axes, but the token grid is {}: use kind: unet, resnet, \
                 autoencoder, mlp, or pdet_stack with kernel_size: 0",
                self.describe()
            ));
        }
        [depth * rows, columns]
    }

    pub(crate) fn filter(&self, side: usize) -> Option<(usize, Padding)> {
        (side > 0).then_some((side, self.padding))
    }
}

/// The layers of a backbone.
#[derive(Clone, Debug)]
pub(crate) enum Backbone {
    Stack(Stack),
    Unet(Unet),
    Fourier(FourierLayers),
    Mlp(MlpLayers),
    Convolutions(Box<ConvLayers>),
    Residual(ResidualLayers),
    Autoencoder(AutoencoderLayers),
}

impl Backbone {
    pub fn new(b: &mut Builder, backbone: &BackboneConfig, shape: &BackboneShape) -> Self {
        match backbone {
            BackboneConfig::PdetStack(c) => Self::Stack(Stack::new(b, c, shape)),
            BackboneConfig::PdetUnet(c) => Self::Unet(Unet::new(b, c, shape)),
            BackboneConfig::Fno(c) => Self::Fourier(FourierLayers::new(b, c, shape)),
            BackboneConfig::Mlp(c) => Self::Mlp(MlpLayers::new(b, c, shape)),
            BackboneConfig::Unet(c) => Self::Convolutions(Box::new(ConvLayers::new(b, c, shape))),
            BackboneConfig::Resnet(c) => Self::Residual(ResidualLayers::new(b, c, shape)),
            BackboneConfig::Autoencoder(c) => {
                Self::Autoencoder(AutoencoderLayers::new(b, c, shape))
            }
        }
    }

    /// Maps x [B, T, dim] to [B, T, output].
    pub fn forward(&self, forward: &Forward, x: &Var, condition: Option<&Var>) -> Result<Var> {
        match self {
            Self::Stack(backbone) => backbone.forward(forward, x, condition),
            Self::Unet(backbone) => backbone.forward(forward, x, condition),
            Self::Fourier(backbone) => backbone.forward(forward, x, condition),
            Self::Mlp(backbone) => backbone.forward(forward, x, condition),
            Self::Convolutions(backbone) => backbone.forward(forward, x, condition),
            Self::Residual(backbone) => backbone.forward(forward, x, condition),
            Self::Autoencoder(backbone) => backbone.forward(forward, x, condition),
        }
    }
}

/// The first layer of a backbone: projects tokens to its width and adds position embeddings.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    linear: Linear,
    positions: Option<Positions>,
}

impl Input {
    pub fn new(b: &mut Builder, shape: &BackboneShape, hidden: usize, positions: bool) -> Self {
        Self {
            linear: Linear::new(b, "input", shape.dim, hidden),
            positions: positions.then(|| Positions::new(b, shape.grid, hidden)),
        }
    }

    /// Maps x [B, T, dim] to [B, T, hidden].
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let x = self.linear.forward(forward, x)?;
        match &self.positions {
            None => Ok(x),
            Some(positions) => positions.add_to(forward, &x),
        }
    }
}

/// Position embeddings: a learned vector for each plane, row and column of the token grid.
#[derive(Clone, Debug)]
struct Positions {
    /// [planes, hidden] if there are several planes, [rows, hidden] and [columns, hidden].
    vectors: Vec<ParamId>,
}

impl Positions {
    fn new(b: &mut Builder, grid: [usize; 3], hidden: usize) -> Self {
        let start = Init::Uniform(0.1);
        let axes = ["planes", "rows", "columns"].into_iter().zip(grid);
        let vectors = b.scope("positions", |b| {
            axes.skip(usize::from(grid[0] == 1))
                .map(|(name, tokens)| b.param(name, &[tokens, hidden], start))
                .collect()
        });
        Self { vectors }
    }

    /// Adds the vectors of its plane, row and column to each token of x [B, T, hidden].
    fn add_to(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let mut axes = self.vectors.iter().map(|vectors| forward.get(*vectors));
        let hidden = x.value().width();
        let Some(mut all) = axes.next().cloned() else { return Ok(x.clone()) };
        for axis in axes {
            let tokens = all.value().rows();
            let sum = forward.apply(Binary::Add, &[&all.reshape(&[tokens, 1, hidden]), axis])?;
            all = sum.reshape(&[tokens * axis.shape()[0], hidden]);
        }
        forward.apply(Binary::Add, &[x, &all])
    }
}
