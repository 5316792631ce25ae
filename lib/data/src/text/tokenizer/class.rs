//! The tokenizer classes of Hugging Face transformers.

/// How a tokenizer class of transformers builds its tokenizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// WordPiece, like BERT.
    Bert,
    /// Byte-level BPE, like RoBERTa.
    Roberta,
    /// SentencePiece, like XLM-R.
    XlmRoberta,
    /// Byte-level BPE with the pattern of Qwen2.
    Qwen2,
    /// As specified in tokenizer.json.
    File,
}

impl Class {
    /// Returns the class with this name, if it is known.
    pub fn of_name(name: &str) -> Option<Self> {
        match name.strip_suffix("Fast").unwrap_or(name) {
            "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" => Some(Self::Bert),
            "RobertaTokenizer" => Some(Self::Roberta),
            "XLMRobertaTokenizer" => Some(Self::XlmRoberta),
            "Qwen2Tokenizer" => Some(Self::Qwen2),
            "PreTrainedTokenizer" | "TokenizersBackend" => Some(Self::File),
            _ => None,
        }
    }

    /// Returns the class for a kind of model, and whether these models use segments.
    pub fn of_model(kind: &str) -> Option<(Self, bool)> {
        match kind {
            "bert" => Some((Self::Bert, true)),
            "distilbert" => Some((Self::Bert, false)),
            "roberta" => Some((Self::Roberta, false)),
            "xlm-roberta" => Some((Self::XlmRoberta, false)),
            _ => None,
        }
    }

    /// Returns the default special token for a key, used when no file names one.
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
            Self::Qwen2 => match key {
                "eos_token" | "pad_token" => Some("<|endoftext|>"),
                _ => None,
            },
            Self::File => None,
        }
    }
}
