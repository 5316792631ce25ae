use super::Linear;
use crate::forward::Forward;
use crate::params::{Builder, Init, ParamId};
use tensor::Var;
use tensor::ops::attention::{Attention, Layout};
use tensor::ops::normalization::{NormKind, Normalization};
use unix::Result;

/// ε of the query and key normalisation.
const EPSILON: f64 = 1e-6;

/// Multi-head self-attention with a joint query, key and value projection.
#[derive(Clone, Debug)]
pub struct MultiHead {
    qkv: Linear,
    out: Linear,
    heads: usize,
    /// Weights of the query and key normalisation.
    qk_norm: Option<[ParamId; 2]>,
}

impl MultiHead {
    /// Creates the layer for tokens with `width` features, a multiple of `heads`.
    pub fn new(b: &mut Builder, name: &str, width: usize, heads: usize, qk_norm: bool) -> Self {
        b.scope(name, |b| Self {
            qkv: Linear::new(b, "qkv", width, 3 * width),
            out: Linear::new(b, "out", width, width),
            heads,
            qk_norm: qk_norm.then(|| {
                ["q_norm", "k_norm"].map(|n| {
                    b.scope(n, |b| b.param("weight", &[width / heads], Init::Constant(1.0)))
                })
            }),
        })
    }

    /// Maps x [B, T, width] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let qkv = self.qkv.forward(forward, x)?;
        let qk_norm = self.qk_norm.map(|_| EPSILON);
        let op = Attention { qk_norm, ..Attention::new(self.heads, Layout::Packed) };
        let mixed = match self.qk_norm {
            Some([q, k]) => forward.apply(op, &[&qkv, forward.get(q), forward.get(k)])?,
            None => forward.apply(op, &[&qkv])?,
        };
        self.out.forward(forward, &mixed)
    }
}

/// Self-attention over groups of features that share their projections. Each group of `group` features takes its
/// queries and keys from its normalised features and its values from the unnormalised ones, and has `heads` heads.
#[derive(Clone, Debug)]
pub struct ChannelSeparatedAttention {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    q_norm: ParamId,
    k_norm: ParamId,
    group: usize,
    heads: usize,
}

impl ChannelSeparatedAttention {
    /// Creates the layer. The number of features must be a multiple of `group`, and `group` a multiple of `heads`.
    pub fn new(b: &mut Builder, name: &str, group: usize, heads: usize) -> Self {
        let norm = |b: &mut Builder, name: &str| {
            b.scope(name, |b| b.param("weight", &[group], Init::Constant(1.0)))
        };
        b.scope(name, |b| Self {
            q: Linear::new(b, "q", group, group),
            k: Linear::new(b, "k", group, group),
            v: Linear::new(b, "v", group, group),
            out: Linear::new(b, "out", group, group),
            q_norm: norm(b, "q_norm"),
            k_norm: norm(b, "k_norm"),
            group,
            heads,
        })
    }

    /// Maps x [B, T, H] to the same shape.
    pub fn forward(&self, forward: &Forward, x: &Var) -> Result<Var> {
        let shape = x.shape().to_vec();
        let groups = shape[2] / self.group;
        let x = x.reshape(&[shape[0] * shape[1] * groups, self.group]);
        let op = Normalization { kind: NormKind::Rms, epsilon: EPSILON };
        let norm = |weight: ParamId| forward.apply(op, &[&x, forward.get(weight)]);
        let q = self.q.forward(forward, &norm(self.q_norm)?)?.reshape(&shape);
        let k = self.k.forward(forward, &norm(self.k_norm)?)?.reshape(&shape);
        let v = self.v.forward(forward, &x)?.reshape(&shape);
        let op = Attention::new(groups * self.heads, Layout::Separate);
        let mixed = forward.apply(op, &[&q, &k, &v])?;
        let out = self.out.forward(forward, &mixed.reshape(x.shape()))?;
        Ok(out.reshape(&shape))
    }
}
