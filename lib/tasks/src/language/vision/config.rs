//! The configuration of a vision tower, and the config.json of a model of images and text.

use crate::common::transformers::{
    MAX_ROWS, UNSUPPORTED, VISION_LANGUAGE, WITHOUT_EFFECT, require_nf4,
};
use crate::language::config::{Architecture, DecoderConfig, OF_DECODERS, get, need};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::config::Violations;
use unix::foreign_keys::{Key, Keys, check};
use unix::{Error, Result};

/// The values of `model_type` for the text model and the vision tower.
const KINDS: [&str; 2] = ["qwen3_vl_text", "qwen3_vl_vision"];

/// The shape of a vision tower, with the names of transformers' `vision_config`, and how a decoder reads its features.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct VisionConfig {
    /// Number of blocks.
    pub depth: usize,
    /// Features of a patch.
    pub hidden_size: usize,
    /// Number of attention heads; must divide hidden_size into multiples of four features.
    pub num_heads: usize,
    /// Features of the hidden layer of each feed-forward network.
    pub intermediate_size: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Frames in a patch. An image is a film whose frames are all the same.
    pub temporal_patch_size: usize,
    /// Patches along each side of the square that becomes one token.
    pub spatial_merge_size: usize,
    /// Features of a token; must be hidden_size of the decoder.
    pub out_hidden_size: usize,
    /// Rows of the table of learned positions, a square number.
    pub num_position_embeddings: usize,
    /// The blocks after which features are added to the outputs of the first layers of the decoder, one layer for each.
    pub deepstack_visual_indexes: Vec<usize>,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
    /// Frequencies of a head of the decoder whose angles are those of time, height and width; their sum must be half the head
    /// size.
    pub mrope_section: [usize; 3],
    /// The token that stands for each token of an image.
    pub image_token_id: usize,
}

impl Default for VisionConfig {
    /// Qwen3-VL-2B.
    fn default() -> Self {
        Self {
            depth: 24,
            hidden_size: 1024,
            num_heads: 16,
            intermediate_size: 4096,
            patch_size: 16,
            temporal_patch_size: 2,
            spatial_merge_size: 2,
            out_hidden_size: 2048,
            num_position_embeddings: 2304,
            deepstack_visual_indexes: vec![5, 11, 17],
            initializer_range: 0.02,
            mrope_section: [24, 20, 20],
            image_token_id: 151_655,
        }
    }
}

impl VisionConfig {
    /// Features of an attention head; 0 without heads.
    pub fn head_size(&self) -> usize {
        self.hidden_size.checked_div(self.num_heads).unwrap_or(0)
    }

    /// Values of a patch of one frame: 3 colours of patch_size² pixels.
    pub fn patch_values(&self) -> usize {
        3 * self.patch_size * self.patch_size
    }

    /// Positions along each side of the table of learned positions.
    pub(super) fn positions_per_side(&self) -> usize {
        self.num_position_embeddings.isqrt()
    }

    /// Violations that the schema does not express, by key, of a tower before `decoder`.
    pub fn violations(&self, decoder: &DecoderConfig) -> Violations {
        let mut violations = Violations::new();
        let mut say = |key: &str, text: String| violations.push((key.into(), text));
        let sizes = [
            ("depth", self.depth, 0..=1024),
            ("hidden_size", self.hidden_size, 1..=65536),
            ("num_heads", self.num_heads, 1..=65536),
            ("intermediate_size", self.intermediate_size, 1..=1 << 20),
            ("patch_size", self.patch_size, 1..=1024),
            ("temporal_patch_size", self.temporal_patch_size, 1..=64),
            ("spatial_merge_size", self.spatial_merge_size, 1..=64),
            ("out_hidden_size", self.out_hidden_size, 1..=65536),
            ("num_position_embeddings", self.num_position_embeddings, 1..=MAX_ROWS),
        ];
        for (key, size, allowed) in sizes {
            if !allowed.contains(&size) {
                let (low, high) = (allowed.start(), allowed.end());
                say(key, format!("must be from {low} to {high}, not {size}"));
            }
        }
        // Rows and columns turn a quarter of the features each, in pairs.
        let head = self.head_size();
        if head * self.num_heads != self.hidden_size || !head.is_multiple_of(4) {
            let width = self.hidden_size;
            say(
                "num_heads",
                format!("must divide hidden_size, {width}, into multiples of 4 features"),
            );
        }
        let side = self.positions_per_side();
        if side * side != self.num_position_embeddings {
            say("num_position_embeddings", "must be a square number".into());
        }
        let after = &self.deepstack_visual_indexes;
        if after.iter().any(|block| *block >= self.depth) || !after.is_sorted_by(|a, b| a < b) {
            let text = format!("must be ascending numbers of blocks, less than {}", self.depth);
            say("deepstack_visual_indexes", text);
        }
        let (numbers, layers) = (after.len(), decoder.num_hidden_layers);
        if numbers > layers {
            let text = format!("has {numbers} numbers, but the decoder has {layers} layers");
            say("deepstack_visual_indexes", text);
        }
        let range = self.initializer_range;
        if !(range.is_finite() && range > 0.0) {
            say("initializer_range", format!("must be a positive number, not {range}"));
        }
        let (own, width) = (self.out_hidden_size, decoder.hidden_size);
        if own != width {
            let text = format!("must be hidden_size of the decoder, {width}, not {own}");
            say("out_hidden_size", text);
        }
        let half = decoder.head_size() / 2;
        let sum = self.mrope_section.iter().try_fold(0_usize, |sum, n| sum.checked_add(*n));
        if sum != Some(half) {
            let text = format!("must be three numbers whose sum is {half}, half the head size");
            say("mrope_section", text);
        }
        if self.image_token_id >= decoder.vocab_size {
            let text =
                format!("must be less than vocab_size of the decoder, {}", decoder.vocab_size);
            say("image_token_id", text);
        }
        violations
    }

    /// The configuration in the `keys` of `vision_config`. Errors: a key that is missing or has another type.
    fn of(
        keys: &Map<String, Value>,
        mrope_section: [usize; 3],
        image_token_id: usize,
    ) -> Result<Self, String> {
        Ok(Self {
            depth: need(keys, "depth")?,
            hidden_size: need(keys, "hidden_size")?,
            num_heads: need(keys, "num_heads")?,
            intermediate_size: need(keys, "intermediate_size")?,
            patch_size: need(keys, "patch_size")?,
            temporal_patch_size: need(keys, "temporal_patch_size")?,
            spatial_merge_size: need(keys, "spatial_merge_size")?,
            out_hidden_size: need(keys, "out_hidden_size")?,
            num_position_embeddings: need(keys, "num_position_embeddings")?,
            deepstack_visual_indexes: need(keys, "deepstack_visual_indexes")?,
            initializer_range: get(keys, "initializer_range")?.unwrap_or(0.02),
            mrope_section,
            image_token_id,
        })
    }
}

/// The decoder and the vision tower in the `keys` of the config.json at `path`. Keys by which sizes of models differ are required,
/// because their defaults differ between versions of transformers.
///
/// Errors: 65 when it lacks a key, or has settings that are not supported.
pub(in crate::language) fn parts(
    path: &Path,
    keys: &Map<String, Value>,
) -> Result<(DecoderConfig, VisionConfig)> {
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    check(path, keys, &[OF_WHOLE, UNSUPPORTED, WITHOUT_EFFECT].concat())?;
    require_nf4(keys).map_err(bad)?;
    let part = |key: &str, kind: &str, own: &Keys| -> Result<Map<String, Value>> {
        let part: Map<String, Value> = need(keys, key).map_err(bad)?;
        // The published files give the tower the type of the whole model.
        let is_known = |given: &Value| *given == kind || *given == VISION_LANGUAGE;
        if part.get("model_type").is_some_and(|given| !is_known(given)) {
            return Err(bad(format!("{key}.model_type: only {kind} is supported")));
        }
        check(path, &part, &[own, UNSUPPORTED, WITHOUT_EFFECT].concat())?;
        Ok(part)
    };
    let mut text = part("text_config", KINDS[0], &[OF_DECODERS, OF_TEXT].concat())?;
    let tower = part("vision_config", KINDS[1], OF_VISION)?;
    let in_part = |part: &'static str| move |what: String| bad(format!("{part}.{what}"));
    let sections = sections(&mut text).map_err(in_part("text_config"))?;
    // The whole model decides.
    let tied = keys.get("tie_word_embeddings").cloned().unwrap_or(json!(false));
    text.insert("tie_word_embeddings".into(), tied);
    let image_token = need(keys, "image_token_id").map_err(bad)?;
    let of_tower = VisionConfig::of(&tower, sections, image_token);
    Ok((
        DecoderConfig::of(&text, Architecture::Qwen3).map_err(in_part("text_config"))?,
        of_tower.map_err(in_part("vision_config"))?,
    ))
}

/// Takes `mrope_section` out of the parameters of the rotary embedding. Errors: it is missing, or its sections are not
/// interleaved.
fn sections(text: &mut Map<String, Value>) -> Result<[usize; 3], String> {
    let name =
        if text.contains_key("rope_parameters") { "rope_parameters" } else { "rope_scaling" };
    let rope = text.get_mut(name).and_then(Value::as_object_mut);
    let Some(rope) = rope else { return Err("rope_parameters is missing".into()) };
    if rope.remove("mrope_interleaved").is_some_and(|given| given != json!(true)) {
        return Err("rope_parameters.mrope_interleaved: only true is supported".into());
    }
    // Versions before 5 name the type so.
    if rope.get("type") == Some(&json!("mrope")) {
        rope.insert("type".into(), json!("default"));
    }
    let sections = need(rope, "mrope_section").map_err(|what| format!("rope_parameters.{what}"))?;
    rope.remove("mrope_section");
    Ok(sections)
}

const OF_WHOLE: &Keys = &[
    ("model_type", Key::Read),
    ("text_config", Key::Read),
    ("vision_config", Key::Read),
    ("image_token_id", Key::Read),
    ("tie_word_embeddings", Key::Read),
    ("quantization_config", Key::Read),
    ("video_token_id", Key::NoEffect),
    ("vision_start_token_id", Key::NoEffect),
    ("vision_end_token_id", Key::NoEffect),
    ("architectures", Key::NoEffect),
    ("id2label", Key::NoEffect),
    ("label2id", Key::NoEffect),
    ("problem_type", Key::NoEffect),
    ("pad_token_id", Key::NoEffect),
];

const OF_TEXT: &Keys = &[("attention_bias", Key::Read)];

const OF_VISION: &Keys = &[
    ("model_type", Key::Read),
    ("depth", Key::Read),
    ("hidden_size", Key::Read),
    ("num_heads", Key::Read),
    ("intermediate_size", Key::Read),
    ("patch_size", Key::Read),
    ("temporal_patch_size", Key::Read),
    ("spatial_merge_size", Key::Read),
    ("out_hidden_size", Key::Read),
    ("num_position_embeddings", Key::Read),
    ("deepstack_visual_indexes", Key::Read),
    ("initializer_range", Key::Read),
    ("hidden_act", Key::Only("\"gelu_pytorch_tanh\"")),
    ("in_channels", Key::Only("3")),
    ("rope_parameters", Key::Only(r#"{"rope_theta": 10000.0, "rope_type": "axial"}"#)),
    ("architectures", Key::NoEffect),
    ("id2label", Key::NoEffect),
    ("label2id", Key::NoEffect),
    ("problem_type", Key::NoEffect),
];
