//! The smallest runs of decoders with images.

/// Commands that make `tokens`: synthetic headers of well logs; and `sft.yaml`.
pub const DATA: &str = "ds-prep gen headers --samples 60 --rows 1..2 --seed 3 -o raw
    ds-prep import raw/pages.jsonl --columns raw/columns.yaml -o store
    ds-prep split store --train 70% --validation 15% --test 15% --seed 1 -o split.json
    ds-prep vocabulary split.json --size 262 --patch-size 8 -o tokenizer
    ds-prep tokenize split.json --tokenizer tokenizer --max-length 160 -o tokens
    train-stage sft --example > sft.yaml";
/// Trains a small decoder with a vision tower on them; takes further options.
pub const SMALL: &str = "train-stage sft -c sft.yaml -s training.log_every=1 -s schedule=[] -s optimizer.groups=[] \
    -s model.decoder.hidden_size=32 -s model.decoder.intermediate_size=64 -s model.decoder.num_hidden_layers=2 \
    -s model.decoder.head_dim=8 -s training.batch_size=4 -s model.decoder.tie_word_embeddings=true \
    -s 'model.vision={depth: 2, hidden_size: 32, num_heads: 2, intermediate_size: 64, patch_size: 8, out_hidden_size: 32, \
    num_position_embeddings: 64, deepstack_visual_indexes: [0], mrope_section: [2, 1, 1], image_token_id: 261}'";
/// Options for LoRA on a frozen base in 4 bits, made of the run `whole`.
pub const ADAPTED: &str = "-s init.from=whole -s init.storage=nf4 -s 'model.lora={r: 4, alpha: 8, targets: all-linear}' \
    -s optimizer.method.kind=adamw8bit";
