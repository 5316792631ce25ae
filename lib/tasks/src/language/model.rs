//! The decoders of Qwen3 (Qwen Team 2025), Qwen2 (Yang et al. 2024) and Llama (Touvron et al. 2023): token embeddings,
//! then layers of causal grouped-query attention (Ainslie et al. 2023) with rotary positions (Su et al. 2021) and SwiGLU
//! (Shazeer 2020), each after an RMS normalization and within a residual connection.
//!
//! Parameters have the names that transformers gives them: `model.layers.0.self_attn.q_proj.weight` and so on.

use super::batch::IGNORE;
use super::config::{Architecture, DecoderConfig};
use learn::forward::Forward;
use learn::nn::{Linear, RmsNorm};
use learn::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::attention::{Attention, Layout, Mask};
use tensor::ops::binary::Binary;
use tensor::ops::linear_cross_entropy::LinearCrossEntropy;
use tensor::ops::rotary::Rotary;
use tensor::ops::swiglu::SwiGlu;
use unix::Result;

/// Sequences of tokens, padded at the end to the longest.
#[derive(Clone, Debug)]
pub struct Sequences {
    /// Token ids, i32 [B, T]; those from the length of a sequence on are padding.
    pub ids: Var,
    /// Cosines and sines of the positions ([`Rope::table`](super::Rope::table)), [B, T, D], or [T, D] if all sequences
    /// share them, where D is the head size; f32, or f64 if the parameters are f64.
    pub angles: Var,
    /// Length of each sequence, i32 [B].
    pub lengths: Var,
}

/// What the first layer of a decoder reads, and what is added later.
pub(super) struct Inputs {
    /// Inputs of the first layer, [B, T, H].
    pub(super) x: Var,
    /// Angles and lengths, see [`Sequences`].
    pub(super) angles: Var,
    pub(super) lengths: Var,
    /// What is added to the outputs of the first layers, [B, T, H] for each (DeepStack: Meng et al. 2024).
    pub(super) after: Vec<Var>,
}

/// A decoder with its head.
#[derive(Clone, Debug)]
pub struct Decoder {
    embeddings: ParamId,
    layers: Vec<Layer>,
    norm: RmsNorm,
    /// The matrix of the head [V, H]: that of the embeddings if they are tied.
    head: ParamId,
}

#[derive(Clone, Debug)]
pub(super) struct Layer {
    input_norm: RmsNorm,
    /// Queries, keys and values.
    qkv: [Linear; 3],
    /// Normalizations of the heads of queries and keys.
    qk_norm: Option<[RmsNorm; 2]>,
    output: Linear,
    norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
    heads: usize,
    kv_heads: usize,
    /// Dropout of the attention probabilities.
    dropout: f64,
}

impl Decoder {
    /// Builds the decoder. For layer-wise learning-rate decay, layer l of L, counted from 0, has depth L - l and the
    /// embeddings have depth L + 1.
    pub fn new(b: &mut Builder, config: &DecoderConfig) -> Self {
        Self::within(b, "model", config)
    }

    /// The same, where the names of all parameters but the head begin with `scope`.
    pub(super) fn within(b: &mut Builder, scope: &str, config: &DecoderConfig) -> Self {
        let (width, epsilon) = (config.hidden_size, config.rms_norm_eps);
        let (layers, init) = (config.num_hidden_layers, Init::Normal(config.initializer_range));
        let table = |b: &mut Builder, name: &str| {
            b.scope(name, |b| b.param("weight", &[config.vocab_size, width], init))
        };
        let (embeddings, layers, norm) = b.scope(scope, |b| {
            let embeddings = b.at_depth(layers as u32 + 1, |b| table(b, "embed_tokens"));
            let layer = |b: &mut Builder, number: usize| {
                let build = |b: &mut Builder| Layer::new(b, config);
                b.at_depth((layers - number) as u32, |b| b.scope(format!("layers.{number}"), build))
            };
            let layers = (0..layers).map(|number| layer(b, number)).collect();
            (embeddings, layers, RmsNorm::new(b, "norm", width, epsilon))
        });
        let head = if config.tie_word_embeddings { embeddings } else { table(b, "lm_head") };
        Self { embeddings, layers, norm, head }
    }

    /// The last hidden states after their normalization, [B, T, H]; those of padding have no meaning.
    pub fn forward(&self, forward: &Forward, sequences: &Sequences) -> Result<Var> {
        self.states(forward, &self.inputs(forward, sequences)?)
    }

    /// The embeddings of sequences.
    pub(super) fn inputs(&self, forward: &Forward, sequences: &Sequences) -> Result<Inputs> {
        let Sequences { ids, angles, lengths } = sequences.clone();
        let x = forward.embedding(self.embeddings, &ids)?;
        Ok(Inputs { x, angles, lengths, after: Vec::new() })
    }

    /// The last hidden states after their normalization, [B, T, H].
    pub(super) fn states(&self, forward: &Forward, inputs: &Inputs) -> Result<Var> {
        let Inputs { angles, lengths, .. } = inputs;
        let states = self.through(forward, inputs, |_, layer, x| {
            let body = layer.clone();
            forward.block(&[x, angles, lengths], move |forward, inputs| {
                body.forward(forward, [&inputs[0], &inputs[1], &inputs[2]])
            })
        })?;
        self.norm.forward(forward, &states)
    }

    /// The last hidden states before their normalization, [B, T, H]. `attend` is called for each layer, with its number, instead of
    /// attention within the sequences; it maps queries, keys and values to [B, T, heads·D]. Layers are not recomputed.
    pub(super) fn states_with(
        &self,
        forward: &Forward,
        inputs: &Inputs,
        mut attend: impl FnMut(usize, &Layer, [Var; 3]) -> Result<Var>,
    ) -> Result<Var> {
        self.through(forward, inputs, |number, layer, x| {
            layer.forward_with(forward, [x, &inputs.angles], |qkv| attend(number, layer, qkv))
        })
    }

    /// Applies all layers by `apply`, and adds what follows them.
    fn through(
        &self,
        forward: &Forward,
        inputs: &Inputs,
        mut apply: impl FnMut(usize, &Layer, &Var) -> Result<Var>,
    ) -> Result<Var> {
        let mut x = inputs.x.clone();
        for (number, layer) in self.layers.iter().enumerate() {
            x = apply(number, layer, &x)?;
            if let Some(added) = inputs.after.get(number) {
                x = forward.apply(Binary::Add, &[&x, added])?;
            }
        }
        Ok(x)
    }

    /// Logits [.., V] for hidden states [.., H] of [`Self::states_with`].
    pub(super) fn logits_of(&self, forward: &Forward, states: &Var) -> Result<Var> {
        self.logits(forward, &self.norm.forward(forward, states)?)
    }

    /// Logits of the next token [.., V] for hidden states [.., H].
    pub fn logits(&self, forward: &Forward, states: &Var) -> Result<Var> {
        Linear::sharing(self.head).forward(forward, states)
    }

    /// Sum over rows of the cross entropy of the next token, [1], without the logits in memory, for hidden states [.., H]
    /// and the next token of each of them, i32 [..]; rows with the target -100 are ignored. On a GPU they cost as much as
    /// the others: select the others first.
    pub fn loss(&self, forward: &Forward, states: &Var, targets: &Var) -> Result<Var> {
        let (width, rows) = (states.value().width(), states.value().rows());
        let op = LinearCrossEntropy { ignore: IGNORE, smoothing: 0.0 };
        let (states, targets) = (states.reshape(&[rows, width]), targets.reshape(&[rows]));
        forward.apply(op, &[&states, forward.get(self.head), &targets])
    }
}

impl Layer {
    fn new(b: &mut Builder, config: &DecoderConfig) -> Self {
        let (width, epsilon) = (config.hidden_size, config.rms_norm_eps);
        let (inner, head) = (config.intermediate_size, config.head_size());
        let (heads, kv_heads) = (config.num_attention_heads, config.kv_heads());
        let init = Init::Normal(config.initializer_range);
        let linear =
            |b: &mut Builder, name: &str, inputs: usize, outputs: usize, bias: bool| match bias {
                true => Linear::with_init(b, name, inputs, outputs, init, Init::Constant(0.0)),
                false => Linear::without_bias(b, name, inputs, outputs, init),
            };
        let is_qwen2 = config.model_type == Architecture::Qwen2;
        let (of_qkv, of_output) = match is_qwen2 {
            true => (true, false),
            false => (config.attention_bias, config.attention_bias),
        };
        let input_norm = RmsNorm::new(b, "input_layernorm", width, epsilon);
        let (qkv, qk_norm, output) = b.scope("self_attn", |b| {
            let outputs = [("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)];
            let qkv = outputs.map(|(name, heads)| linear(b, name, width, heads * head, of_qkv));
            let qk_norm = (config.model_type == Architecture::Qwen3)
                .then(|| ["q_norm", "k_norm"].map(|name| RmsNorm::new(b, name, head, epsilon)));
            (qkv, qk_norm, linear(b, "o_proj", heads * head, width, of_output))
        });
        let norm = RmsNorm::new(b, "post_attention_layernorm", width, epsilon);
        let [gate, up, down] = b.scope("mlp", |b| {
            [("gate_proj", width, inner), ("up_proj", width, inner), ("down_proj", inner, width)]
                .map(|(name, inputs, outputs)| linear(b, name, inputs, outputs, config.mlp_bias))
        });
        let dropout = config.attention_dropout;
        Self { input_norm, qkv, qk_norm, output, norm, gate, up, down, heads, kv_heads, dropout }
    }

    /// Maps x [B, T, H] to the same shape, with causal attention within each sequence.
    fn forward(&self, forward: &Forward, [x, angles, lengths]: [&Var; 3]) -> Result<Var> {
        self.forward_with(forward, [x, angles], |qkv| self.attend(forward, &qkv, lengths))
    }

    /// Maps x [B, T, H] to the same shape. `attend` maps queries, keys and values [B, T, ..] to [B, T, heads·D].
    fn forward_with(
        &self,
        forward: &Forward,
        [x, angles]: [&Var; 2],
        attend: impl FnOnce([Var; 3]) -> Result<Var>,
    ) -> Result<Var> {
        let normalized = self.input_norm.forward(forward, x)?;
        let attended = attend(self.projections(forward, [&normalized, angles])?)?;
        let mixed = self.output.forward(forward, &attended)?;
        let x = forward.apply(Binary::Add, &[x, &mixed])?;
        let normalized = self.norm.forward(forward, &x)?;
        let (gate, up) =
            (self.gate.forward(forward, &normalized)?, self.up.forward(forward, &normalized)?);
        let gated = forward.apply(SwiGlu, &[&gate, &up])?;
        forward.apply(Binary::Add, &[&x, &self.down.forward(forward, &gated)?])
    }

    /// Rotated queries [B, T, heads·D] and keys [B, T, kv_heads·D], and values like keys.
    fn projections(&self, forward: &Forward, [x, angles]: [&Var; 2]) -> Result<[Var; 3]> {
        let rotated = |which: usize, heads: usize| {
            let y = self.qkv[which].forward(forward, x)?;
            match &self.qk_norm {
                Some(norms) => {
                    let (weight, epsilon) = norms[which].parts(forward);
                    let op = Rotary { heads, norm: Some(epsilon) };
                    forward.apply(op, &[&y, angles, weight])
                }
                None => forward.apply(Rotary { heads, norm: None }, &[&y, angles]),
            }
        };
        let (q, k) = (rotated(0, self.heads)?, rotated(1, self.kv_heads)?);
        Ok([q, k, self.qkv[2].forward(forward, x)?])
    }

    /// Causal attention within each sequence: [B, T, heads·D].
    pub(super) fn attend(
        &self,
        forward: &Forward,
        [q, k, v]: &[Var; 3],
        lengths: &Var,
    ) -> Result<Var> {
        let dropped = forward.next_dropout(self.dropout, q.shape()[0]);
        let dropout = dropped.as_ref().map(|(dropout, _)| *dropout);
        let op = Attention { dropout, ..self.attention(true) };
        let counter = dropped.iter().map(|(_, counter)| counter);
        let inputs: Vec<&Var> = [q, k, v, lengths].into_iter().chain(counter).collect();
        forward.apply(op, &inputs)
    }

    /// Attention of one query per sequence, [B, 1, heads·D], to the first of the keys and values in a cache, [B, S,
    /// kv_heads·D] each; `lengths` i32 [B] is their number. In evaluation mode.
    pub(super) fn attend_cached(
        &self,
        forward: &Forward,
        q: &Var,
        [keys, values]: [&Var; 2],
        lengths: &Var,
    ) -> Result<Var> {
        forward.apply(self.attention(false), &[q, keys, values, lengths])
    }

    fn attention(&self, causal: bool) -> Attention {
        let mask = Mask { causal, padding: true };
        let kv_heads = self.kv_heads;
        Attention { kv_heads, mask, ..Attention::new(self.heads, Layout::Separate) }
    }
}
