//! Exports trained decoders as folders that transformers and PEFT load.
//!
//! Before a folder gets its name, its files are read back, and the logits of a sample are compared with those of the model as it
//! was trained. Without LoRA, and for an adapter alone, both are computed from the same numbers in the same order, and must be
//! equal. With LoRA merged, x Wᵀ + s·(x Aᵀ) Bᵀ becomes x (W + s·B A)ᵀ, whose weights and sums are rounded to f32 elsewhere:
//! a sum of k terms has a relative error of about √k·u (Higham and Mary 2019, "A new approach to probabilistic rounding error
//! analysis"), where u = 2⁻²⁴, in either form, and the errors of the 2 L blocks and of the head add up along the residual
//! stream. The tolerance is therefore 2·(2 L + 1)·√k·u times the largest logit, with the largest k of the model. The blocks of a
//! vision tower count as others, and its merger as one more.

mod config;

use super::batch::Labelled;
use super::config::Architecture;
use super::pretrained;
use super::sft::{Language, SftModel};
use super::trained::TrainedLanguage;
use super::vision::{Grid, Images};
use crate::common::transformers::export::{
    Comparison, Contents, ExportRequest, Exported, Format, text, tokenizer_config, tokens_of,
};
use crate::common::transformers::{Pretrained, adapter};
use crate::trained::Opener;
use config::{Ids, config_of};
use data::images::PROCESSOR_FILE;
use data::text::{TokenInfo, TokenSet};
use learn::adapt::{merged, peft};
use learn::foreign;
use learn::forward::Forward;
use learn::init::InitFrom;
use learn::params::{Builder, ParamSet, Storage};
use learn::trained::Parts;
use serde_json::{Value, json};
use std::path::Path;
use tensor::{Device, Dtype, Tape};
use unix::{Context, Error, Exit, Result, note, warn};

/// Conversations of the sample, and their tokens at most.
const SAMPLE: usize = 2;
const SAMPLE_TOKENS: usize = 64;

/// Writes the decoder of a checkpoint with these `parts` as the folder `to`, which must not exist.
///
/// Errors: 1 when the exported files are not the model that was trained, 2 for a model without LoRA; 66 when the tokens are
/// missing; 65 when they or the checkpoint are damaged or do not belong together; 73, 74.
pub(crate) fn export(request: &ExportRequest, parts: Parts, to: &Path) -> Result<Exported> {
    if request.format == Format::Encoder {
        return Err(Error::usage("--encoder-only: the model is a decoder; leave the option out"));
    }
    let (folder, set) = tokens_of(request, &parts)?;
    let info = set.info();
    let mode = Device::Cpu.into();
    let opener = Opener { weights: request.weights, mode, with: Vec::new() };
    let own = TrainedLanguage::restore(&parts, &opener, info, &folder)?;
    let config = own.config().clone();
    let sample = sample(&set, &config)?;
    let expected = logits(&own.trained.model, &own.trained.params, &sample)?;
    let params = &own.trained.params;
    let exact = request.format == Format::Adapter || config.lora.is_none();
    let (contents, frozen) = match request.format {
        Format::Adapter => {
            let lora = adapter::required(&parts, config.lora.as_ref())?;
            let names = params.trained.shapes().chain(params.frozen.shapes()).map(|(name, _)| name);
            let contents = adapter::contents(&parts, lora, names, ("CAUSAL_LM", &[]))?;
            let init: Option<InitFrom> = parts.section("init")?;
            if init.is_some_and(|init| init.storage == Some(Storage::Nf4)) {
                note!(
                    "the adapter was trained on weights that were quantised to NF4 (init.storage): load the base in 4 bits, \
                     with double quantisation, or as `ckpt quantize` writes it"
                );
            }
            (contents, params.frozen.clone())
        }
        Format::Model | Format::Encoder => {
            let dense = [params.trained.dense(), params.frozen.dense()].concat();
            let tensors = match &config.lora {
                Some(lora) => merged(&dense, lora.scale())?,
                None => dense,
            };
            let files = files(&own, &folder)?;
            (Contents { tensors, name: None, files }, ParamSet::default().frozen)
        }
    };
    // The parameters may fill much of the memory.
    drop((own, parts));
    let (bytes, compared) = contents.write(to, |inside| {
        let (model, mut params) = match request.format {
            Format::Adapter => {
                let (model, mut params) = with_adapter(inside, &config, info)?;
                params.frozen = frozen;
                (model, params)
            }
            Format::Model | Format::Encoder => complete(inside, info)?,
        };
        if unix::fail::flips("export.written")
            && let Some(tensor) = params.trained.tensors_mut().next()
        {
            tensor.write::<f32>().iter_mut().take(1).for_each(|x| *x = -*x);
        }
        let tolerance = |largest: f64| if exact { 0.0 } else { rounding(&config) * largest };
        compared(&expected, &logits(&model, &params, &sample)?, tolerance)
            .map(|found| Comparison {
                tokens: sample.iter().map(|own| own.ids.len()).sum(),
                ..found
            })
            .context(|| format!("{} is not written", to.display()))
    })?;
    Ok(Exported { bytes, compared: Some(compared) })
}

/// A sequence of the sample, with its images.
#[derive(Default)]
struct Sequence {
    ids: Vec<i32>,
    grids: Vec<Grid>,
    values: Vec<f32>,
}

/// The first tokens of the first conversations of a split but those of images, whose runs may be cut; and, for a vision tower, an
/// image of two tokens.
fn sample(set: &TokenSet, config: &SftModel) -> Result<Vec<Sequence>> {
    let image_token = config.vision.as_ref().map(|own| own.image_token_id as i32);
    let first = |i| {
        let texts = set.checked(i)?.ids.iter().filter(|id| Some(**id) != image_token);
        Ok(Sequence { ids: texts.take(SAMPLE_TOKENS).copied().collect(), ..Sequence::default() })
    };
    let mut all = (0..set.len().min(SAMPLE)).map(first).collect::<Result<Vec<_>>>()?;
    if let Some(vision) = &config.vision {
        let side = vision.spatial_merge_size;
        let grid = Grid { rows: side, columns: 2 * side };
        let image = [vision.image_token_id as i32; 2];
        // Pixels from -1 to 1.
        let values = (0..grid.patches() * vision.patch_values()).map(|i| (i as f32).sin());
        let text = all.first().and_then(|own| own.ids.first()).copied();
        all.push(Sequence {
            ids: text.into_iter().chain(image).chain(text).collect(),
            grids: vec![grid],
            values: values.collect(),
        });
    }
    Ok(all)
}

/// The logits at all tokens of the sample.
fn logits(model: &Language, params: &ParamSet, sample: &[Sequence]) -> Result<Vec<Vec<f32>>> {
    let tape = Tape::without_gradients();
    let forward = Forward::evaluation(&tape, params);
    let of = |Sequence { ids, grids, values }: &Sequence| {
        let own = Labelled { ids, counted: &[], images: Images { grids, values } };
        let batch = model.batch(&[own], Dtype::F32)?;
        let found = forward.to_param_dtype(&model.logits(&forward, &batch)?)?;
        let found = found.value().to_host()?.to_dtype(Dtype::F32);
        Ok(found.read::<f32>()[..ids.len() * found.width()].to_vec())
    };
    sample.iter().map(of).collect()
}

/// The complete model in a folder, read as any other.
fn complete(folder: &Path, info: &TokenInfo) -> Result<(Language, ParamSet)> {
    let request = Pretrained { folder: folder.into(), ..Pretrained::default() };
    let found = pretrained::configuration(&request)?;
    let config: SftModel = serde_json::from_value(found["model"].clone()).map_err(Error::bug)?;
    let init: InitFrom = serde_json::from_value(found["init"].clone()).map_err(Error::bug)?;
    if config.tokenizer_hash.as_ref() != Some(&info.tokenizer_hash) {
        return Err(Error::bug("the tokenizer that was written is not that of the tokens"));
    }
    let mut builder = Builder::replaced(0, Vec::new());
    let model = Language::new(&mut builder, &config, info.special.padding);
    builder.check()?;
    let mut params = builder.finish();
    init.apply(&mut params, false)?;
    Ok((model, params))
}

/// The model with the adapter in a folder; its frozen parameters are undefined.
fn with_adapter(
    folder: &Path,
    config: &SftModel,
    info: &TokenInfo,
) -> Result<(Language, ParamSet)> {
    let config = SftModel { lora: Some(peft::read(folder)?), ..config.clone() };
    let mut builder = Builder::replaced(0, Vec::new());
    let model = Language::new(&mut builder, &config, info.special.padding);
    builder.check()?;
    let mut params = builder.finish();
    let file = foreign::open(&folder.join(peft::WEIGHTS))?;
    let read = |entry: &foreign::TensorEntry| {
        let name = entry.name.strip_prefix(peft::PREFIX).unwrap_or(&entry.name);
        Ok((name.to_string(), file.read(entry, Dtype::F32)?))
    };
    params.trained.assign(&file.tensors().iter().map(read).collect::<Result<Vec<_>>>()?)?;
    Ok((model, params))
}

/// The difference between logits that rounding explains, as a fraction of the largest logit; see the top of this file.
fn rounding(config: &SftModel) -> f64 {
    let decoder = &config.decoder;
    let heads = decoder.num_attention_heads * decoder.head_size();
    let mut terms = heads.max(decoder.hidden_size).max(decoder.intermediate_size);
    let mut sums = 2 * decoder.num_hidden_layers + 1;
    if let Some(vision) = &config.vision {
        let square = vision.hidden_size * vision.spatial_merge_size * vision.spatial_merge_size;
        terms = terms.max(vision.intermediate_size).max(square);
        sums += 2 * vision.depth + 2;
    }
    2.0 * sums as f64 * (terms as f64).sqrt() * 2f64.powi(-24)
}

/// Compares the logits of the trained model with those `found` with the exported files. Errors: 1 when they differ by more than
/// `tolerance` permits, given the largest logit.
fn compared(
    expected: &[Vec<f32>],
    found: &[Vec<f32>],
    tolerance: impl Fn(f64) -> f64,
) -> Result<Comparison> {
    let lengths = |all: &[Vec<f32>]| all.iter().map(Vec::len).collect::<Vec<_>>();
    if lengths(expected) != lengths(found) {
        return Err(Error::bug("the exported files have logits of other tokens"));
    }
    let pairs = || expected.iter().flatten().zip(found.iter().flatten());
    let largest = pairs().fold(0.0, |most: f64, (a, _)| most.max(f64::from(a.abs())));
    let difference = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs();
    // The maximum of floats ignores NaN, which no tolerance permits.
    let largest_difference = match pairs().map(difference).find(|own| own.is_nan()) {
        Some(nan) => nan,
        None => pairs().map(difference).fold(0.0, f64::max),
    };
    let tolerance = tolerance(largest);
    if largest_difference.is_nan() || largest_difference > tolerance {
        return Err(Error::new(
            Exit::Failure,
            format!(
                "the files give logits that differ by up to {largest_difference:.3e} from those of the trained model, where \
                 rounding explains {tolerance:.1e} (the largest logit is {largest:.3e}); export again, and if it fails again, \
                 use --format safetensors and report the bug"
            ),
        ));
    }
    Ok(Comparison { tokens: 0, largest_logit: largest, largest_difference, tolerance })
}

/// config.json, the settings of generation, the tokenizer, the chat template, and the image processor if the model has a tower. Errors: 65 when no token ends an answer.
fn files(own: &TrainedLanguage, folder: &Path) -> Result<Vec<(&'static str, String)>> {
    let tokenizer = &own.chat.tokenizer;
    let special = tokenizer.special();
    let Some(eos) = special.eos.or(own.stops.first().copied()) else {
        return Err(Error::data(format!(
            "{}: the tokenizer has no eos_token, and the chat template ends no answer with a special token, so transformers \
             would never end one; set eos_token in tokenizer_config.json of the tokenizer, and run ds-prep tokenize again",
            folder.display()
        )));
    };
    let (bos, padding) = (special.bos, special.padding);
    let ids = Ids { bos, stops: &own.stops, padding, images: config::image_tokens(tokenizer)? };
    let names = [
        ("bos_token", special.bos),
        ("eos_token", Some(eos)),
        ("pad_token", Some(special.padding)),
        ("unk_token", special.unk),
    ];
    let longest = own.config().decoder.max_position_embeddings;
    let inputs = ["input_ids", "attention_mask"];
    let [mut of_tokenizer, _] = tokenizer_config(tokenizer, &names, &inputs, longest);
    // Classes of transformers have tokens of their own in place of those that are missing, but not of those that are null.
    for (key, _) in names.iter().filter(|(_, id)| id.is_none()) {
        of_tokenizer[key] = Value::Null;
    }
    if own.config().decoder.model_type == Architecture::Qwen2 {
        match tokenizer.is_of_qwen2() {
            true => of_tokenizer["tokenizer_class"] = json!("Qwen2Tokenizer"),
            false => warn!(
                "transformers 5 takes the tokenizer of every model of type qwen2 for a Qwen2Tokenizer, which would cut texts in \
                 another way than this one: load it with PreTrainedTokenizerFast, not with AutoTokenizer"
            ),
        }
    }
    let processor = own.chat.images.as_ref().filter(|_| own.reads_images());
    let processor = processor.map(|images| (PROCESSOR_FILE, images.processor.text()));
    let files = vec![
        ("config.json", text(&config_of(own.config(), &ids))?),
        ("generation_config.json", text(&ids.keys().into())?),
        ("tokenizer.json", tokenizer.json().to_string()),
        ("tokenizer_config.json", text(&of_tokenizer)?),
        ("chat_template.jinja", own.chat.template.source().to_string()),
    ];
    Ok(files.into_iter().chain(processor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_must_agree_within_the_tolerance() {
        let own = [vec![1.0, -4.0], vec![2.0f32]];
        let close = [vec![1.0, -4.001], vec![2.0f32]];
        let found = |other: &[Vec<f32>], part: f64| compared(&own, other, |most| part * most);
        let good = found(&close, 1e-3).unwrap();
        assert_eq!((good.largest_logit, good.tolerance), (4.0, 4e-3));
        assert!((good.largest_difference - 1e-3).abs() < 1e-6);
        assert_eq!(found(&own, 0.0).unwrap().largest_difference, 0.0);
        for wrong in [close, [vec![1.0, f32::NAN], vec![2.0]]] {
            let error = found(&wrong, 1e-4).unwrap_err();
            assert_eq!(error.exit, Exit::Failure);
            assert!(error.to_string().contains("rounding explains 4.0e-4"), "{error}");
        }
        assert_eq!(found(&own[..1], 1.0).unwrap_err().exit, Exit::Bug);
    }
}
