//! The model that this task is built after, with the backbone of the package mmdit, as its checkpoints store it: the
//! same function as ours with sinusoidal times, without q/k norm, pooled latent and tied table, and with one token per
//! latent. It differs in the arrangement of its parameters:
//! - factors γ and gains g are used as they are and begin at 1; ours are 1 + γ and 1 + g;
//! - the gains of a block are the rows of one layer: attention of texts and of latents, then feed-forward networks;
//! - γ precedes β in the layer of each normalisation;
//! - some checkpoints have tables of tokens whose rows are rounded up to a multiple of 128.

use learn::foreign::{ForeignModel, Layout, Named, Piece};
use serde_json::Value;
use unix::{Error, Result};

use super::block::MODALITIES;

/// Rows of tables of tokens are rounded up to a multiple of this in some checkpoints.
const ROUNDED: usize = 128;

/// Checkpoints of the original.
pub static ORIGINAL: ForeignModel = ForeignModel {
    name: "the original of cycle-vae",
    marker: "text_encoder.token_embed.weight",
    layout,
    caution,
};

/// Beginnings of names here and there. M is the number of the modality.
const NAMES: [(&str, &str); 17] = [
    ("text.table.", "text_encoder.token_embed."),
    ("text.positions", "text_encoder.position_embed"),
    ("latent.in.", "latent_encoder.projection.0."),
    ("latent.in_norm.", "latent_encoder.projection.1."),
    ("latent.in_out.", "latent_encoder.projection.3."),
    ("latent.positions", "latent_encoder.position_embed"),
    ("time.text.in.", "conditioning.text_sigma_map.mlp.0."),
    ("time.text.out.", "conditioning.text_sigma_map.mlp.2."),
    ("time.latent.in.", "conditioning.latent_sigma_map.mlp.0."),
    ("time.latent.out.", "conditioning.latent_sigma_map.mlp.2."),
    ("time.both.in.", "conditioning.combine.0."),
    ("time.both.out.", "conditioning.combine.2."),
    ("norm.text.weight", "mmdit.norms.0.g"),
    ("norm.latent.weight", "mmdit.norms.1.g"),
    ("text_head.", "text_head."),
    ("latent_head.in.", "latent_head.0."),
    ("latent_head.out.", "latent_head.3."),
];
const NAMES_IN_BLOCKS: [(&str, &str); 6] = [
    ("qkv.", "joint_attn.to_qkv.M."),
    ("out.", "joint_attn.to_out.M."),
    ("up.", "feedforwards.M.ff.0.0."),
    ("down.", "feedforwards.M.ff.2."),
    ("attention_streams.", "attn_residual_fns.M."),
    ("mlp_streams.", "ff_residual_fns.M."),
];

fn layout(given: &[Named], own: &[Named]) -> Result<Layout> {
    let mut unknown = Vec::new();
    let mut layout = Layout::new();
    for (name, shape) in own {
        match pieces(given, name, shape) {
            Some(pieces) => layout.push(pieces),
            None => unknown.push(*name),
        }
    }
    if unknown.is_empty() {
        return Ok(layout);
    }
    Err(Error::data(format!(
        "it has no parameters like {}: --like must be a model with time_embedding: sinusoidal, qk_norm: false, \
         pooled_latent: false, tied: false and latent_tokens: 1",
        unknown[..unknown.len().min(4)].join(", ")
    )))
}

/// The pieces of a parameter; None if the original lacks it.
fn pieces(given: &[Named], name: &str, shape: &[usize]) -> Option<Vec<Piece>> {
    let Some(rest) = name.strip_prefix("blocks.") else {
        return Some(vec![piece(given, renamed(&NAMES, name)?, shape)]);
    };
    let [block, modality, rest] = rest.splitn(3, '.').collect::<Vec<_>>().try_into().ok()?;
    let modality = MODALITIES.iter().position(|own| *own == modality)?;
    let block = format!("mmdit.blocks.{block}.");
    let Some(end) = rest.strip_prefix("modulation.") else {
        let name = renamed(&NAMES_IN_BLOCKS, rest)?.replace(".M.", &format!(".{modality}."));
        return Some(vec![piece(given, block + &name, shape)]);
    };
    let hidden = shape.first()? / 6;
    let is_bias = end == "bias";
    let rows = |name: &str, vectors: usize, vector: usize, offset: f64| Piece {
        tensor: format!("{block}{name}.2.{end}"),
        shape: [&[vectors * hidden], &shape[1..]].concat(),
        rows: vector * hidden..(vector + 1) * hidden,
        offset: if is_bias { offset } else { 0.0 },
    };
    let branch = |norms: &str, branch: usize| {
        let norm = format!("{norms}.{modality}.to_cond");
        let gains = "to_post_branch_gammas";
        [
            rows(&norm, 2, 1, 0.0),
            rows(&norm, 2, 0, -1.0),
            rows(gains, 4, 2 * branch + modality, -1.0),
        ]
    };
    Some([branch("attn_layernorms", 0), branch("ff_layernorms", 1)].concat())
}

fn renamed(names: &[(&str, &str)], name: &str) -> Option<String> {
    names.iter().find_map(|(own, other)| Some(format!("{other}{}", name.strip_prefix(own)?)))
}

/// The tensor of a parameter, which may have further axes of size 1 in the file, and further rows if it has one for
/// each token.
fn piece(given: &[Named], name: String, shape: &[usize]) -> Piece {
    let without_ones =
        |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    let found = given.iter().find(|(other, _)| *other == name).map(|(_, shape)| *shape);
    let same = found.filter(|found| without_ones(found) == without_ones(shape));
    let mut piece = Piece::whole(name, same.unwrap_or(shape));
    let is_table =
        ["text_encoder.token_embed.", "text_head."].iter().any(|own| piece.tensor.starts_with(own));
    if let (true, [rows, ..]) = (is_table, &mut piece.shape[..])
        && found.and_then(|found| found.first()) == Some(&rows.next_multiple_of(ROUNDED))
    {
        *rows = rows.next_multiple_of(ROUNDED);
    }
    piece
}

fn caution(config: &Value) -> Option<String> {
    (config["loss"]["latent_target"] == "epsilon").then(|| {
        "loss.latent_target is epsilon: latents that are computed from nearly pure noise (t > 0.95) are not usable; a \
         model trained with target x0 gives them in one evaluation"
            .into()
    })
}
