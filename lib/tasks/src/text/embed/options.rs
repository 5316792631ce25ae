//! The options of embeddings.

use strum::Display;

/// How the states of the tokens of a text become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Display, clap::ValueEnum)]
#[strum(serialize_all = "lowercase")]
pub enum TokenPooling {
    /// Their mean
    #[default]
    Mean,
    /// The state of the first token
    Cls,
    /// Their maximum, by dimension
    Max,
}

/// The options of `latent-cache make` for texts.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Options of texts")]
pub struct EmbedOptions {
    /// How the states of the tokens in the last layer, special tokens included, become one vector [default: mean]
    #[arg(long, value_name = "HOW")]
    pooling: Option<TokenPooling>,
    /// Divide each vector by its Euclidean norm
    #[arg(long)]
    pub normalize: bool,
    /// Keep only the first N numbers of each vector, before normalization
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Tokens that the encoder reads of a text; the others are cut off [default: max_seq_length of
    /// sentence_bert_config.json, the length that the run was trained with, or what the encoder can read]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_length: Option<u32>,
}

impl EmbedOptions {
    /// How the states become one vector.
    pub fn pooling(&self) -> TokenPooling {
        self.pooling.unwrap_or_default()
    }

    /// Length of the vectors, if given.
    pub fn dimensions(&self) -> Option<usize> {
        self.dimensions.map(|n| n as usize)
    }

    /// Maximum number of tokens, if given.
    pub fn max_length(&self) -> Option<usize> {
        self.max_length.map(|n| n as usize)
    }

    /// The first option that is given, if any.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            ("--pooling", self.pooling.is_some()),
            ("--normalize", self.normalize),
            ("--dimensions", self.dimensions.is_some()),
            ("--max-length", self.max_length.is_some()),
        ];
        all.into_iter().find(|(_, given)| *given).map(|(name, _)| name)
    }
}
