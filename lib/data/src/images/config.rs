//! The settings of an image processor, in `processor_config.json` or `preprocessor_config.json` of transformers.

use super::Filter;
use serde_json::{Map, Value, json};
use std::path::Path;
use unix::foreign_keys::{Key, Keys, check};
use unix::text::summary;
use unix::{Error, Result, small};

/// Maximum size of a file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of pixels of a side of a patch, of patches of a side of a token, and of frames of a patch.
const MAX_SIDE: u64 = 1024;
/// The older file with the settings.
pub const FILE: &str = "preprocessor_config.json";
/// The default of `max_image_tokens`.
const IMAGE_TOKENS: u32 = 1280;

/// The keys of an image processor. Those without a default must be there.
const KEYS: &Keys = &[
    ("patch_size", Key::Read),
    ("temporal_patch_size", Key::Read),
    ("merge_size", Key::Read),
    ("size", Key::Read),
    ("min_pixels", Key::Read),
    ("max_pixels", Key::Read),
    ("image_mean", Key::Read),
    ("image_std", Key::Read),
    ("rescale_factor", Key::Read),
    ("do_resize", Key::Read),
    ("resample", Key::Read),
    ("max_width", Key::Read),
    ("max_image_tokens", Key::Read),
    ("image_processor_type", Key::Read),
    ("do_convert_rgb", Key::Only("true")),
    ("do_rescale", Key::Only("true")),
    ("do_normalize", Key::Only("true")),
    ("do_center_crop", Key::Off),
    ("do_pad", Key::Off),
    ("crop_size", Key::NoEffect),
    ("pad_size", Key::NoEffect),
    ("default_to_square", Key::NoEffect),
    ("processor_class", Key::NoEffect),
    ("feature_extractor_type", Key::NoEffect),
    ("data_format", Key::NoEffect),
    ("input_data_format", Key::NoEffect),
    ("device", Key::NoEffect),
    ("disable_grouping", Key::NoEffect),
    ("return_tensors", Key::NoEffect),
];

/// The classes of transformers whose results [`Preprocessor::patches`] has.
const CLASSES: [&str; 3] =
    ["Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil"];

/// The settings by which images become patches.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessor {
    /// Pixels of a side of a patch.
    pub patch_size: u32,
    /// Frames that the patches of a model cover; the single frame of an image is repeated as often.
    pub temporal_patch_size: u32,
    /// Patches of a side of an image token.
    pub merge_size: u32,
    /// Smallest number of pixels after resizing, `size.shortest_edge`, which is no length of an edge.
    pub min_pixels: u64,
    /// Largest number of pixels after resizing, `size.longest_edge`.
    pub max_pixels: u64,
    /// Mean of red, green and blue, after rescaling.
    pub mean: [f64; 3],
    /// Standard deviation of red, green and blue, after rescaling.
    pub std: [f64; 3],
    /// Factor of the 8-bit values, 1/255 as a rule.
    pub rescale_factor: f64,
    /// Whether images are resized; otherwise their sides must be multiples of patch x merge.
    pub do_resize: bool,
    /// The filter for resizing.
    pub filter: Filter,
    /// Images that are wider, in pixels, are shrunk to this width first, with [`Filter::Lanczos`]. Requires `do_resize`.
    pub max_width: Option<u32>,
    /// Maximum number of image tokens; images are resized to fewer pixels than `max_pixels` for it.
    pub max_image_tokens: u32,
}

impl Preprocessor {
    /// Reads the settings of the model in `folder`: `image_processor` in `processor_config.json`, or else
    /// `preprocessor_config.json`. Two keys are not of transformers: `max_width`, and `max_image_tokens`, 1280 by
    /// default.
    ///
    /// Errors: 66 when there is neither file; 65, with the key, for settings that are missing, wrong or not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        let read = |path: &Path| {
            let advice = "copy the file of the model again";
            small::read_json::<Map<String, Value>>(path, MAX_BYTES, advice)
        };
        let new = folder.join("processor_config.json");
        if let Some(mut file) = read(&new)?
            && let Some(own) = file.remove("image_processor").filter(|own| !own.is_null())
        {
            let Value::Object(own) = own else {
                let what =
                    format!("{}: image_processor {}: not a mapping", new.display(), summary(&own));
                return Err(Error::data(what));
            };
            return Self::parse(&new, &own);
        }
        let old = folder.join(FILE);
        match read(&old)? {
            Some(own) => Self::parse(&old, &own),
            None => Err(Error::open(
                &old,
                "there is no such file, and no image_processor in processor_config.json; copy either from the model",
            )),
        }
    }

    /// Settings for patches of `patch_size` pixels a side, of which `merge_size`² are a token; images of at least one token are not
    /// enlarged.
    pub fn of_patches(patch_size: u32, merge_size: u32) -> Self {
        let token = u64::from(patch_size * merge_size).pow(2);
        Self {
            patch_size,
            temporal_patch_size: 2,
            merge_size,
            min_pixels: token,
            max_pixels: token * u64::from(IMAGE_TOKENS),
            mean: [0.5; 3],
            std: [0.5; 3],
            rescale_factor: 1.0 / 255.0,
            do_resize: true,
            filter: Filter::Bicubic,
            max_width: None,
            max_image_tokens: IMAGE_TOKENS,
        }
    }

    /// Whether `folder` has the settings of an image processor. Errors: 65 for a damaged file.
    pub fn is_in(folder: &Path) -> Result<bool> {
        let new = folder.join("processor_config.json");
        let file = small::read_json::<Map<String, Value>>(&new, MAX_BYTES, "copy it again")?;
        let has_own =
            file.is_some_and(|file| file.get("image_processor").is_some_and(Value::is_object));
        Ok(has_own || folder.join(FILE).is_file())
    }

    /// The content of a `preprocessor_config.json` with these settings.
    pub fn text(&self) -> String {
        let resample = match self.filter {
            Filter::Bicubic => 3,
            Filter::Lanczos => 1,
        };
        let own = json!({
            "image_processor_type": CLASSES[0],
            "patch_size": self.patch_size,
            "temporal_patch_size": self.temporal_patch_size,
            "merge_size": self.merge_size,
            "size": {"shortest_edge": self.min_pixels, "longest_edge": self.max_pixels},
            "image_mean": self.mean,
            "image_std": self.std,
            "rescale_factor": self.rescale_factor,
            "do_resize": self.do_resize,
            "resample": resample,
            "max_width": self.max_width,
            "max_image_tokens": self.max_image_tokens,
        });
        format!("{own:#}\n")
    }

    /// Reads the settings `file`, which come from `path`. Errors: 65.
    pub fn parse(path: &Path, file: &Map<String, Value>) -> Result<Self> {
        check(path, file, KEYS)?;
        let file = Settings { path, file };
        let class = file.get("image_processor_type");
        if class.is_some_and(|class| !CLASSES.iter().any(|own| class == own)) {
            return Err(
                file.bad("image_processor_type", &format!("only {} is supported", CLASSES[0]))
            );
        }
        let (min_pixels, max_pixels) = file.size()?;
        let side = |key| {
            let value = file.positive(key)?.filter(|value| *value <= MAX_SIDE);
            value
                .map(|value| value as u32)
                .ok_or_else(|| file.bad(key, &format!("a number from 1 to {MAX_SIDE} is required")))
        };
        let limit = |key| {
            let value = file.positive(key)?.map(u32::try_from).transpose();
            value.map_err(|_| file.bad(key, "the number is too large"))
        };
        let factor = match file.get("rescale_factor") {
            None => 1.0 / 255.0,
            Some(value) => value
                .as_f64()
                .filter(|value| value.is_finite())
                .ok_or_else(|| file.bad("rescale_factor", "not a number"))?,
        };
        let do_resize = match file.get("do_resize") {
            None => true,
            Some(value) => {
                value.as_bool().ok_or_else(|| file.bad("do_resize", "neither true nor false"))?
            }
        };
        let filter = match file.get("resample").map(Value::as_u64) {
            None | Some(Some(3)) => Filter::Bicubic,
            Some(Some(1)) => Filter::Lanczos,
            Some(_) => {
                return Err(file.bad("resample", "only 3 (bicubic) and 1 (Lanczos) are supported"));
            }
        };
        let max_width = limit("max_width")?;
        if max_width.is_some() && !do_resize {
            return Err(file.bad("max_width", "requires do_resize"));
        }
        let std = file.channels("image_std")?;
        if std.contains(&0.0) {
            return Err(file.bad("image_std", "values are divided by it; it must not be 0"));
        }
        Ok(Self {
            patch_size: side("patch_size")?,
            temporal_patch_size: side("temporal_patch_size")?,
            merge_size: side("merge_size")?,
            min_pixels,
            max_pixels,
            mean: file.channels("image_mean")?,
            std,
            rescale_factor: factor,
            do_resize,
            filter,
            max_width,
            max_image_tokens: limit("max_image_tokens")?.unwrap_or(IMAGE_TOKENS),
        })
    }
}

/// The settings of a file.
struct Settings<'a> {
    path: &'a Path,
    file: &'a Map<String, Value>,
}

impl Settings<'_> {
    /// Returns a value that is not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.file.get(key).filter(|value| !value.is_null())
    }

    fn bad(&self, key: &str, what: &str) -> Error {
        let value = self.get(key).map_or("is missing".into(), summary);
        Error::data(format!("{}: {key} {value}: {what}", self.path.display()))
    }

    /// Returns a positive number. Errors: another value.
    fn positive(&self, key: &str) -> Result<Option<u64>> {
        let number = |value: &Value| {
            let number = value.as_u64().filter(|number| *number > 0);
            number.ok_or_else(|| self.bad(key, "not a positive whole number"))
        };
        self.get(key).map(number).transpose()
    }

    /// Returns a value for each channel; a single number stands for all.
    fn channels(&self, key: &str) -> Result<[f64; 3]> {
        let values = match self.get(key) {
            Some(Value::Array(values)) => values.iter().map(Value::as_f64).collect(),
            Some(value) => value.as_f64().map(|value| vec![value; 3]),
            None => None,
        };
        let values = values.and_then(|values| <[f64; 3]>::try_from(values).ok());
        // Computed with 32 bits, see `patches`.
        let values = values.filter(|values| values.iter().all(|value| (*value as f32).is_finite()));
        values.ok_or_else(|| self.bad(key, "three numbers are required"))
    }

    /// Returns the limits on pixels, of which `min_pixels` and `max_pixels`, the older keys, take precedence.
    fn size(&self) -> Result<(u64, u64)> {
        let none = Map::new();
        let size = match self.get("size") {
            None => &none,
            Some(Value::Object(size)) => size,
            Some(_) => return Err(self.bad("size", "not a mapping")),
        };
        let edges: &Keys = &[("shortest_edge", Key::Read), ("longest_edge", Key::Read)];
        check(self.path, size, edges).map_err(|error| error.context("size"))?;
        let edges = Settings { path: self.path, file: size };
        let limit = |key: &str, edge: &str| {
            let own = self.positive(key)?;
            let edge = edges.positive(edge).map_err(|error| error.context("size"))?;
            own.or(edge)
                .ok_or_else(|| self.bad("size", "shortest_edge and longest_edge are required"))
        };
        let limits = (limit("min_pixels", "shortest_edge")?, limit("max_pixels", "longest_edge")?);
        match limits.0 <= limits.1 {
            true => Ok(limits),
            false => Err(self.bad("size", "shortest_edge is above longest_edge")),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_lists_every_key() {
        let manual = include_str!("../../../../man/longhaul-files.5");
        for (key, _) in super::KEYS {
            assert!(manual.contains(&format!(".Li {key}")), "{key}");
        }
    }
}
