//! A block of the MMDiT: tokens of texts and latents have separate weights and attend to each other.

use super::config::{ConnectionKind, CycleVaeModel};
use learn::forward::Forward;
use learn::nn::{HyperConnection, Linear};
use learn::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::activation::Activation;
use tensor::ops::attention::{Attention, Layout};
use tensor::ops::concat::Concat;
use tensor::ops::hyper_connection::Form;
use tensor::ops::narrow::Narrow;
use tensor::ops::normalization::{NormKind, Normalization};
use tensor::ops::residual::Residual;
use unix::Result;

/// ε of the adaptive normalisations (PyTorch's default).
const EPSILON: f64 = 1e-5;
/// ε of the query and key normalisation.
const QK_EPSILON: f64 = 1e-6;
/// Vectors of a condition for each modality: shift, scale and gain of the attention, then of the feed-forward network.
const VECTORS: usize = 6;

/// The two modalities.
pub const MODALITIES: [&str; 2] = ["text", "latent"];

/// The weights of a block for one modality.
#[derive(Clone, Debug)]
struct Modality {
    /// From the condition to [`VECTORS`] vectors.
    modulation: Linear,
    qkv: Linear,
    out: Linear,
    /// Weights of the query and key normalisation.
    qk_norm: Option<[ParamId; 2]>,
    up: Linear,
    down: Linear,
    /// The connections of the attention and of the feed-forward network to the residual streams.
    connections: Option<[HyperConnection; 2]>,
}

/// A block. With the tokens x of each modality and the vectors β, γ, g of the condition, for the attention and then for
/// the feed-forward network: x += (1 + g) ∘ branch((1 + γ) ∘ norm(x) + β) (Esser et al. 2024, figure 2, with gains that
/// begin at 1). With hyper-connections, branches read and write several residual streams instead of adding to x.
#[derive(Clone, Debug)]
pub struct JointBlock {
    modalities: [Modality; 2],
    heads: usize,
}

impl Modality {
    fn new(b: &mut Builder, config: &CycleVaeModel, number: usize) -> Self {
        let (hidden, inner) = (config.hidden, config.heads * config.head_size());
        Self {
            modulation: Linear::zeroed(b, "modulation", config.condition(), VECTORS * hidden),
            qkv: Linear::without_bias(b, "qkv", hidden, 3 * inner, Init::linear(hidden)),
            out: Linear::without_bias(b, "out", inner, hidden, Init::linear(inner)),
            qk_norm: config.qk_norm.then(|| {
                ["q_norm", "k_norm"].map(|name| {
                    let size = config.head_size();
                    b.scope(name, |b| b.param("weight", &[size], Init::Constant(1.0)))
                })
            }),
            up: Linear::new(b, "up", hidden, config.mlp_ratio * hidden).then(Activation::Gelu),
            down: Linear::new(b, "down", config.mlp_ratio * hidden, hidden),
            connections: config.hyper_connections.map(|own| {
                let form = match own.kind {
                    ConnectionKind::Plain => Form::Plain,
                    ConnectionKind::Manifold => Form::Manifold,
                };
                // Branches begin by reading the streams in turn (Zhu et al. 2024).
                [(0, "attention_streams"), (1, "mlp_streams")].map(|(branch, name)| {
                    let first = (2 * number + branch) % own.streams;
                    HyperConnection::new(b, name, form, [own.streams, hidden], first)
                })
            }),
        }
    }

    /// Returns the input of a branch [B, T, H], 0 for the attention and 1 for the feed-forward network, after its adaptive
    /// norm, and the coefficients with which the output joins the residual streams x. Shift and scale are vectors `first`
    /// and `first + 1` of `m`.
    fn enter(
        &self,
        forward: &Forward,
        branch: usize,
        x: &Var,
        (m, first): (&Var, usize),
    ) -> Result<(Var, Option<Var>)> {
        let kind = NormKind::Adaptive { shift: first, scale: first + 1 };
        let norm = Normalization { kind, epsilon: EPSILON };
        let Some(connections) = &self.connections else {
            return Ok((forward.apply(norm, &[x, m])?, None));
        };
        let (input, coefficients) = connections[branch].width(forward, x, Some((norm, m)))?;
        Ok((input, Some(coefficients)))
    }

    /// Returns the residual streams after a branch with the output `output` [B, T, H], before its gain: vector `vector`
    /// of `m`.
    fn join(
        &self,
        forward: &Forward,
        branch: usize,
        (x, coefficients): (&Var, Option<&Var>),
        output: &Var,
        (m, vector): (&Var, usize),
    ) -> Result<Var> {
        match self.connections.as_ref().zip(coefficients) {
            Some((all, own)) => all[branch].depth(forward, x, own, output, Some((m, vector))),
            None => forward.apply(Residual::Gated { gain: vector }, &[x, output, m]),
        }
    }
}

impl JointBlock {
    /// Registers the parameters of block `number`, counted from 0.
    pub fn new(b: &mut Builder, config: &CycleVaeModel, number: usize) -> Self {
        let modalities = MODALITIES.map(|name| b.scope(name, |b| Modality::new(b, config, number)));
        Self { modalities, heads: config.heads }
    }

    /// Maps the tokens of texts and of latents, [B, T, H] or with hyper-connections [B, T, S, H], given the condition
    /// [B, C] after its activation.
    pub fn forward(
        &self,
        forward: &Forward,
        tokens: [Var; 2],
        condition: &Var,
    ) -> Result<[Var; 2]> {
        if !forward.recomputes() {
            return self.layers(forward, tokens, condition);
        }
        // A recomputed block has a single output.
        let join = |forward: &Forward, [text, latent]: &[Var; 2]| {
            forward.apply(Concat { axis: 1 }, &[text, latent])
        };
        let (block, texts) = (self.clone(), tokens[0].shape()[1]);
        let joined = join(forward, &tokens)?;
        let joined = forward.block(&[&joined, condition], move |forward, inputs| {
            let tokens = split(forward, &inputs[0], texts)?;
            join(forward, &block.layers(forward, tokens, &inputs[1])?)
        })?;
        split(forward, &joined, texts)
    }

    fn layers(&self, forward: &Forward, mut tokens: [Var; 2], condition: &Var) -> Result<[Var; 2]> {
        let texts = tokens[0].shape()[1];
        let m = self.modalities.each_ref().map(|own| own.modulation.forward(forward, condition));
        let [m_text, m_latent] = m;
        let m = [m_text?, m_latent?];
        let (mut packed, mut coefficients) = (Vec::new(), Vec::new());
        for (own, (x, m)) in self.modalities.iter().zip(tokens.iter().zip(&m)) {
            let (input, own_coefficients) = own.enter(forward, 0, x, (m, 0))?;
            packed.push(own.qkv.forward(forward, &input)?);
            coefficients.push(own_coefficients);
        }
        let weights = self.modalities.iter().filter_map(|own| own.qk_norm).flatten();
        let weights: Vec<&Var> = weights.map(|id| forward.get(id)).collect();
        let qk_norm = (!weights.is_empty()).then_some(QK_EPSILON);
        let op = Attention { qk_norm, ..Attention::new(self.heads, Layout::Joined) };
        let inputs: Vec<&Var> = packed.iter().chain(weights).collect();
        let mixed = split(forward, &forward.apply(op, &inputs)?, texts)?;
        let all =
            self.modalities.iter().zip(&m).zip(tokens.iter_mut().zip(&mixed).zip(&coefficients));
        for ((own, m), ((x, mixed), coefficients)) in all {
            let output = own.out.forward(forward, mixed)?;
            *x = own.join(forward, 0, (x, coefficients.as_ref()), &output, (m, 2))?;
            let (input, coefficients) = own.enter(forward, 1, x, (m, 3))?;
            let hidden = own.up.forward(forward, &input)?;
            let output = own.down.forward(forward, &hidden)?;
            *x = own.join(forward, 1, (x, coefficients.as_ref()), &output, (m, 5))?;
        }
        Ok(tokens)
    }
}

/// Divides [B, texts + latents, ..] into the tokens of texts and of latents.
fn split(forward: &Forward, x: &Var, texts: usize) -> Result<[Var; 2]> {
    let latents = x.shape()[1] - texts;
    let part = |start, length| forward.apply(Narrow { axis: 1, start, length }, &[x]);
    Ok([part(0, texts)?, part(texts, latents)?])
}
