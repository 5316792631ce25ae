//! The tokens of images in conversations.

use crate::images::{PROCESSOR_FILE, Patches, Preprocessor, RgbImage};
use crate::text::tokenizer::{Encoded, Tokenizer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::iter::repeat_n;
use std::path::Path;
use unix::{Error, Result};

/// The token that stands for an image, unless tokenizer_config.json has another one as `image_token`.
pub(in crate::text) const TOKEN: &str = "<|image_pad|>";

/// What becomes of the images of conversations.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageTokens {
    /// The token that stands for an image; it is repeated for each part of the image.
    pub token: i32,
    /// Cuts images into patches.
    pub processor: Preprocessor,
}

/// How the images of conversations became tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageInfo {
    /// The token that stands for a part of an image.
    pub token: i32,
    /// BLAKE3 hash of the settings of the image processor.
    pub processor: String,
}

/// Changes to the settings of an image processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct ImageLimits {
    /// Shrink images that are wider to this number of pixels first [default: that of processor_config.json, else none]
    #[arg(long, value_name = "PIXELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_width: Option<u32>,
    /// Largest number of tokens of an image, which is shrunk to fit [default: that of processor_config.json, else 1280]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_image_tokens: Option<u32>,
}

impl ImageTokens {
    /// Reads the image processor in `folder`; None if it has none. Errors: 65 when it is damaged, or the tokenizer there has no
    /// token for images.
    pub(in crate::text) fn open(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        if !Preprocessor::is_in(folder)? {
            return Ok(None);
        }
        let processor = Preprocessor::open(folder)?;
        let token = tokenizer.id(TOKEN).ok_or_else(|| {
            Error::data(format!(
                "{}: it has an image processor, but the tokenizer has no token {TOKEN}; take both from the same model",
                folder.display()
            ))
        })?;
        Ok(Some(Self { token, processor }))
    }

    /// Opens what the images of tokens in `folder` were cut with. Errors: 66; 65 when it is damaged or another one.
    pub fn of_tokens(folder: &Path, info: &ImageInfo) -> Result<Self> {
        let own = Self { token: info.token, processor: Preprocessor::open(folder)? };
        match own.info() == *info {
            true => Ok(own),
            false => Err(Error::data(format!(
                "{}: not the settings that the tokens there were made with; run ds-prep tokenize again",
                folder.join(PROCESSOR_FILE).display()
            ))),
        }
    }

    /// Description.
    pub fn info(&self) -> ImageInfo {
        let processor = blake3::hash(self.processor.text().as_bytes()).to_hex().to_string();
        ImageInfo { token: self.token, processor }
    }

    /// Applies limits. Errors: 65 for a width without resizing.
    pub fn limit(&mut self, limits: ImageLimits) -> Result<()> {
        if let Some(width) = limits.max_width {
            if !self.processor.do_resize {
                return Err(Error::data(
                    "--max-width: the image processor does not resize (do_resize)",
                ));
            }
            self.processor.max_width = Some(width);
        }
        if let Some(tokens) = limits.max_image_tokens {
            self.processor.max_image_tokens = tokens;
        }
        Ok(())
    }

    /// Cuts an image into patches. Errors: those of [`Preprocessor::patches`].
    pub fn patches(&self, name: &str, image: &RgbImage) -> Result<Patches> {
        self.processor.patches(name, image)
    }

    /// Repeats the token of each image as often as the image has tokens. Errors: what is wrong, if the images are not as many as
    /// their tokens in the text.
    pub(super) fn expand(&self, found: &mut Encoded, images: &[usize]) -> Result<(), String> {
        let given = found.ids.iter().filter(|id| **id == self.token).count();
        if given != images.len() {
            return Err(format!(
                "the chat template renders {given} image tokens for {} images; use a template that renders parts of type image, and \
                 no text with {TOKEN}",
                images.len()
            ));
        }
        let mut images = images.iter();
        let counts: Vec<usize> = (found.ids.iter())
            .map(|id| if *id == self.token { images.next().copied().unwrap_or(1) } else { 1 })
            .collect();
        fn repeated<T: Copy>(all: &mut Vec<T>, counts: &[usize]) {
            *all = all.iter().zip(counts).flat_map(|(own, count)| repeat_n(*own, *count)).collect();
        }
        repeated(&mut found.ids, &counts);
        repeated(&mut found.types, &counts);
        repeated(&mut found.offsets, &counts);
        found.last = 0..found.ids.len();
        Ok(())
    }
}
