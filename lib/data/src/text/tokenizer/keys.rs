//! The keys of the files of a tokenizer, as longhaul-files(5) lists them.

use unix::foreign_keys::{Key, Keys};

/// The keys of tokenizer_config.json.
pub(super) const CONFIG: &Keys = &[
    ("tokenizer_class", Key::Read),
    ("do_lower_case", Key::Read),
    ("strip_accents", Key::Read),
    ("tokenize_chinese_chars", Key::Read),
    ("add_prefix_space", Key::Read),
    ("trim_offsets", Key::Read),
    ("bos_token", Key::Read),
    ("eos_token", Key::Read),
    ("unk_token", Key::Read),
    ("sep_token", Key::Read),
    ("pad_token", Key::Read),
    ("cls_token", Key::Read),
    ("mask_token", Key::Read),
    ("additional_special_tokens", Key::Read),
    ("extra_special_tokens", Key::Read),
    ("added_tokens_decoder", Key::Read),
    ("model_input_names", Key::Read),
    ("truncation_side", Key::Read),
    ("padding_side", Key::Only("\"right\"")),
    ("do_basic_tokenize", Key::Only("true")),
    ("never_split", Key::Off),
    ("wordpieces_prefix", Key::Only("\"##\"")),
    ("clean_text", Key::Only("true")),
    ("split_special_tokens", Key::Off),
    ("add_bos_token", Key::Off),
    ("add_eos_token", Key::Off),
    ("sp_model_kwargs", Key::Off),
    ("model_specific_special_tokens", Key::Off),
    ("add_special_tokens", Key::Only("true")),
    ("is_split_into_words", Key::Off),
    ("init_inputs", Key::Off),
    ("backend", Key::Only("\"tokenizers\"")),
    ("model_max_length", Key::NoEffect),
    ("max_len", Key::NoEffect),
    ("max_length", Key::NoEffect),
    ("stride", Key::NoEffect),
    ("truncation", Key::NoEffect),
    ("truncation_strategy", Key::NoEffect),
    ("padding", Key::NoEffect),
    ("pad_to_multiple_of", Key::NoEffect),
    ("pad_to_max_length", Key::NoEffect),
    ("pad_token_type_id", Key::NoEffect),
    ("clean_up_tokenization_spaces", Key::NoEffect),
    ("errors", Key::NoEffect),
    ("chat_template", Key::NoEffect),
    ("processor_class", Key::NoEffect),
    ("name_or_path", Key::NoEffect),
    ("special_tokens_map_file", Key::NoEffect),
    ("tokenizer_file", Key::NoEffect),
    ("vocab_file", Key::NoEffect),
    ("merges_file", Key::NoEffect),
    ("full_tokenizer_file", Key::NoEffect),
    ("use_fast", Key::NoEffect),
    ("from_slow", Key::NoEffect),
    ("legacy", Key::NoEffect),
    ("verbose", Key::NoEffect),
    ("is_local", Key::NoEffect),
    ("local_files_only", Key::NoEffect),
    ("fix_mistral_regex", Key::NoEffect),
    ("transformers_version", Key::NoEffect),
];

/// The keys of special_tokens_map.json.
pub(super) const SPECIAL: &Keys = &[
    ("bos_token", Key::Read),
    ("eos_token", Key::Read),
    ("unk_token", Key::Read),
    ("sep_token", Key::Read),
    ("pad_token", Key::Read),
    ("cls_token", Key::Read),
    ("mask_token", Key::Read),
    ("additional_special_tokens", Key::Read),
    ("extra_special_tokens", Key::Read),
];

/// The keys of tokenizer.json.
pub(super) const JSON: &Keys = &[
    ("version", Key::NoEffect),
    ("truncation", Key::Read),
    ("padding", Key::Read),
    ("added_tokens", Key::Read),
    ("normalizer", Key::Read),
    ("pre_tokenizer", Key::Read),
    ("post_processor", Key::Read),
    ("decoder", Key::NoEffect),
    ("model", Key::Read),
];

#[cfg(test)]
mod tests {
    #[test]
    fn the_manual_lists_every_key() {
        let manual = include_str!("../../../../../man/longhaul-files.5");
        for (key, _) in [super::CONFIG, super::SPECIAL, super::JSON].concat() {
            assert!(manual.contains(&format!(".Li {key}")), "{key}");
        }
    }
}
