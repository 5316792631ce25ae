//! The tokenizer classes of Hugging Face transformers.

/// How a class of transformers makes a tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Of words and their pieces, as BERT.
    Bert,
    /// Of bytes, as RoBERTa.
    Roberta,
    /// Of SentencePiece, as XLM-R.
    XlmRoberta,
    /// Whatever tokenizer.json says.
    File,
}

impl Class {
    /// The class of this name, if it is known.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.strip_suffix("Fast").unwrap_or(name) {
            "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" => Some(Self::Bert),
            "RobertaTokenizer" => Some(Self::Roberta),
            "XLMRobertaTokenizer" => Some(Self::XlmRoberta),
            "PreTrainedTokenizer" | "TokenizersBackend" => Some(Self::File),
            _ => None,
        }
    }

    /// The class for a kind of model, and whether its models have segments.
    pub fn of_model(kind: &str) -> Option<(Self, bool)> {
        match kind {
            "bert" => Some((Self::Bert, true)),
            "distilbert" => Some((Self::Bert, false)),
            "roberta" => Some((Self::Roberta, false)),
            "xlm-roberta" => Some((Self::XlmRoberta, false)),
            _ => None,
        }
    }

    /// The special token that a key names where no file does.
    pub fn usual(self, key: &str) -> Option<&'static str> {
        let bert = match key {
            "unk_token" => Some("[UNK]"),
            "sep_token" => Some("[SEP]"),
            "pad_token" => Some("[PAD]"),
            "cls_token" => Some("[CLS]"),
            "mask_token" => Some("[MASK]"),
            _ => None,
        };
        let roberta = match key {
            "bos_token" | "cls_token" => Some("<s>"),
            "eos_token" | "sep_token" => Some("</s>"),
            "unk_token" => Some("<unk>"),
            "pad_token" => Some("<pad>"),
            "mask_token" => Some("<mask>"),
            _ => None,
        };
        match self {
            Self::Bert => bert,
            Self::Roberta | Self::XlmRoberta => roberta,
            Self::File => None,
        }
    }
}
