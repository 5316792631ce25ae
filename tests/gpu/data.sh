#!/bin/sh
# Makes the data and configurations for the checks on a GPU, with losses of 20 updates on the CPU beside them:
#
#   data.sh FOLDER PROJECT
#
# with the programs on the PATH (pack.sh runs it).
set -eu
folder=$1
project=$(cd "$2" && pwd)
rm -rf "$folder"
mkdir -p "$folder"
cd "$folder"

# losses NAME TASK CONFIG: of 20 updates on the CPU, in NAME-cpu.json
losses() {
    train-stage "$2" -c "$3" --run "$1-cpu" --device cpu -s training.updates=20 -s training.log_every=1 \
        -s 'schedule=[]'
    python3 -c 'import json, sys
records = map(json.loads, open(sys.argv[1]))
print(json.dumps([record["loss"] for record in records if record["kind"] == "update"]))' "$1-cpu/log.jsonl" > "$1-cpu.json"
    rm -rf "$1-cpu"
}

mkdir pde
(
    cd pde
    ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 20 --grid 256 --frames 21 --seed 1 -o raw
    ds-prep split raw/*.hdf5 --seed 1 -o split.json
    ds-prep stats split.json
    cat > codec.yaml << END
seed: 1
data: {split: split.json, stats: stats.json, random_shift: true, random_reflection: true}
model: {patch: 8, latent: 8, hidden: 64, encoder_depth: 1, decoder_depth: 1, kernel_size: 5, mlp_ratio: 2}
loss: {floor: 0.1, reencoding: 0.1}
training: {updates: 200, batch_size: 32, clip_grad_norm: 1.0, ema: 0.99, validate_every: 100, validation_samples: 64}
optimizer: {method: {kind: adamw}, learning_rate: 3.0e-3}
checkpoint: {every: 100}
END
    cat > operator.yaml << END
seed: 1
data: {train: latents/train, validation: latents/validation, strides: [2], random_shift: true}
model:
  backbone: {kind: pdet_stack, hidden: 128, depth: 4, kernel_size: 5, mlp_ratio: 2, attention: {kind: multi_head, heads: 4}}
  condition: adaptive
  condition_width: 64
  output: scale
loss: {horizons: [1, 2], floor: 0.1, validation_steps: 4}
training: {updates: 1500, batch_size: 16, clip_grad_norm: 1.0, ema: 0.99, validate_every: 500, validation_samples: 32}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-3}
checkpoint: {every: 100}
END
    losses codec codec codec.yaml
    train-stage codec -c codec.yaml --run codec --device cpu
    latent-cache make codec --data split.json -o latents --device cpu
    losses operator operator operator.yaml
)

mkdir flow
(
    cd flow
    ds-prep gen navier-stokes --parameter 0.005 --samples 10 --grid 32 --frames 6 --end 2 --seed 1 -o flows
    ds-prep import flows/*.h5 --shift 1 -o next
    ds-prep split next --seed 1 -o split.json
    ds-prep stats split.json
    sed 's/batch_size: .*/batch_size: 8/' "$project/configs/unet.yaml" > unet.yaml
    losses unet regression unet.yaml
)

mkdir text
(
    cd text
    ds-prep gen criteria --samples 400 --seed 1 -o data
    ds-prep import data/annotations.csv --columns data/columns.yaml -o store
    ds-prep split store --seed 1 -o split.json
    ds-prep vocabulary split.json -o tokenizer
    ds-prep tokenize split.json --tokenizer tokenizer --max-length 64 -o tokens
    train-stage classify --example > classify.yaml
    losses classify classify classify.yaml
)

mkdir posts
(
    cd posts
    ds-prep gen criteria --samples 400 --difficulty easy --per-post 1 --seed 1 -o data
    ds-prep import data/annotations.csv --columns data/spans.yaml -o store
    ds-prep split store --seed 1 -o split.json
    ds-prep vocabulary split.json -o tokenizer
    ds-prep tokenize split.json --tokenizer tokenizer --max-length 96 -o tokens
    train-stage span --example > span.yaml
    losses span span span.yaml
)

# For comparisons with PyTorch: the operator in the sizes of make gpu-bench, U-Net S, bert-base. Fields are made on the GPU
# machine: they do not compress.
mkdir -p bench/large bench/small bench/unet bench/bert
codec() {
    cat << END
seed: 1
data: {split: split.json, stats: stats.json}
model: {patch: $1, latent: $2, hidden: 32, encoder_depth: 1, decoder_depth: 1}
loss: {}
training: {updates: 1, batch_size: 4, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-3}
END
}
operator() {
    cat << END
seed: 1
data: {train: latents/train, validation: latents/validation, strides: [1]}
model:
  backbone: {kind: pdet_stack, kernel_size: 7, mlp_ratio: 4, $1}
  condition: adaptive
  condition_width: 64
  output: scale
loss: {horizons: [$2], validation_steps: $2}
training: {updates: 200, batch_size: $3, clip_grad_norm: 1.0, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-3}
END
}
codec 128 128 > bench/large/codec.yaml
codec 32 8 > bench/small/codec.yaml
operator 'hidden: 256, depth: 8, attention: {kind: multi_head, heads: 8, qk_norm: true}' 1 64 > bench/large/operator.yaml
operator 'hidden: 128, depth: 4' 4 16 > bench/small/operator.yaml
cat > bench/unet/unet.yaml << END
seed: 1
data: {split: split.json, stats: stats.json}
model:
  backbone: {kind: unet, hidden: 32, levels: 3}
loss: {kind: mse}
training: {updates: 100, batch_size: 32, clip_grad_norm: 1.0, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-4}
END
(
    cd bench/bert
    # Texts longer than 128 tokens, of as many words as BERT knows: every batch is [64, 128].
    python3 - << 'END'
import csv, random
source = random.Random(1)
letters = "abcdefghijklmnopqrstuvwxyz"
words = sorted({"".join(source.choices(letters, k=source.randint(4, 8))) for _ in range(30400)})
with open("texts.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["text", "label"])
    for number in range(1280):
        some = source.sample(words, 24) + source.choices(words, k=120)
        writer.writerow([" ".join(some), ("no", "yes")[number % 2]])
open("columns.yaml", "w").write("text: text\nlabel: label\n")
END
    ds-prep import texts.csv --columns columns.yaml -o texts
    ds-prep split texts --seed 1 -o texts.json
    ds-prep vocabulary texts.json --size 30522 -o tokenizer
    ds-prep tokenize texts.json --tokenizer tokenizer --max-length 128 -o tokens
    rm -rf texts texts.csv tokenizer
    cat > bert.yaml << END
seed: 1
data: {tokens: tokens}
model:
  encoder: {model_type: bert}
loss: {}
training: {updates: 100, batch_size: 64, clip_grad_norm: 1.0, validation_samples: 4}
optimizer: {method: {kind: adamw}, learning_rate: 1.0e-4}
END
    train-stage classify -c bert.yaml --run none --check --device cpu
)
touch whole
