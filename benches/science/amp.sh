#!/bin/sh
# Training on the CPU with matrix products of operands in bf16 (training.amp) against f32: the sentences,
# the U-Nets and the operator of the demos.
# shellcheck source=benches/science/common.sh
. "$(dirname "$0")/common.sh"

once annotated ds-prep gen criteria --samples 6000 --seed 1 -o annotated
once texts/index.json ds-prep import annotated/annotations.csv --columns annotated/columns.yaml -o texts
once texts.json ds-prep split texts --seed 1 -o texts.json
once tokenizer/tokenizer.json ds-prep vocabulary texts.json -o tokenizer
once tokens/test/index.json ds-prep tokenize texts.json --tokenizer tokenizer --max-length 64 -o tokens
example classify

once flows ds-prep gen navier-stokes --parameter 0.005 --constant forcing=0 --constant scale=10 --samples 300 --grid 32 \
    --frames 21 --end 12 --seed 1 -o flows
once media ds-prep gen darcy --parameter 1 --samples 1500 --grid 32 --seed 1 -o media
medium=media/2D_DarcyFlow_beta1.0.hdf5:nu
once next/index.json ds-prep import flows/*.h5 --shift 1 -o next
once noisy/index.json ds-prep import $medium --axes nxy --target $medium --target-axes nxy --noise 0.3 -o noisy
for task in next noisy; do
    once $task.json ds-prep split $task --seed 1 -o $task.json
    once $task-stats.json ds-prep stats $task.json -o $task-stats.json
done

once burgers ds-prep gen burgers --parameter 0.001,0.01,0.1 --samples 440 --seed 1 -o burgers
once burgers.json ds-prep split burgers/*.hdf5 --train 400 --validation 20 --test 20 --seed 1 -o burgers.json
once burgers-stats.json ds-prep stats burgers.json -o burgers-stats.json
train codec codec "$configs/burgers-codec.yaml" -s data.split=burgers.json -s data.stats=burgers-stats.json
once latents/validation/index.json latent-cache make codec --data burgers.json -o latents

# operator_of OPTION...: trains and scores the operator in the folder $at.
operator_of() {
    mkdir -p "$at"
    train operator "$at/operator" "$configs/burgers-operator.yaml" "$@" -s data.train=latents/train \
        -s data.validation=latents/validation
    once "$at/operator-score/metrics.json" evaluate score "$at/operator" --data burgers.json --steps 16 --stride 2 \
        -o "$at/operator-score"
}

# of_precision SEED FOLDER OPTION...
of_precision() {
    seed=$1 at=seed-$1/$2
    shift 2
    mkdir -p "$at"
    set -- -s "seed=$seed" "$@"
    train classify "$at/texts" classify.yaml "$@" -s data.tokens=tokens -s training.updates=1500
    once "$at/texts-score/metrics.json" evaluate score "$at/texts" --data tokens -o "$at/texts-score"
    train regression "$at/next" "$configs/unet.yaml" "$@" -s data.split=next.json -s data.stats=next-stats.json \
        -s data.augmentation.rotations=true -s 'data.augmentation.vectors={}' -s model.integrate=true
    once "$at/next-score/metrics.json" evaluate score "$at/next" --data next.json -o "$at/next-score"
    train regression "$at/noisy" "$configs/unet.yaml" "$@" -s data.split=noisy.json -s data.stats=noisy-stats.json \
        -s data.augmentation.rotations=true -s 'data.augmentation.vectors={}' -s data.augmentation.flips=true \
        -s model.padding_mode=zeros -s training.updates=200
    once "$at/noisy-score/metrics.json" evaluate score "$at/noisy" --data noisy.json -o "$at/noisy-score"
    operator_of "$@"
}
of_seed() {
    of_precision "$1" f32
    of_precision "$1" bf16 -s training.amp=true
}
seeds of_seed 1 2 3

# The operator alone, whose results differ most between seeds, with more of them.
more_of_operator() {
    seed=$1
    at=more/$seed-f32
    operator_of -s "seed=$seed"
    at=more/$seed-bf16
    operator_of -s "seed=$seed" -s training.amp=true
}
seeds more_of_operator 4 5 6 7 8

# errors_of PARAMETER PRECISION: RMSE / RMS of the operators of all seeds for a parameter, or over all if it is empty, and their median.
errors_of() {
    for folder in seed-[123]/"$2" more/?-"$2"; do
        awk -F , -v group="$1" '$1 == group && $2 == "operator" && $3 == "nrmse_validation_scale" && $4 == "" { printf "%.4f\n", $5 }' \
            "$folder/operator-score/metrics.csv"
    done > errors.part
    tr '\n' ' ' < errors.part
    sort -g errors.part | awk '{ all[NR] = $1 } END { printf "(median %.4f)", (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }'
    rm errors.part
}

set --
while read -r folder label; do
    set -- "$@" --method "$label, f32=f32/$folder-score" --method "$label, bf16=bf16/$folder-score"
done << END
texts sentences
next next frame of a flow, U-Net
noisy media without noise, U-Net
operator Burgers' equation, operator
END
notes --title "Products of bf16 on the CPU" \
    --note "The data and configurations of demo-text.sh, demo-unet.sh and demo.sh in slurm, with three seeds of the models; codec and latents are the same for all. Training in bf16, by $(sed -n 's/^ *"bf16_products": "\(.*\)",*$/\1/p' seed-*/bf16/*/env.json | sort -u | tr '\n' ' ')instructions; evaluation in f32." \
    --note "RMSE / RMS of the operator by seed, seeds 1 to 8. f32: $(errors_of "" f32); bf16: $(errors_of "" bf16). For nu=0.1 alone, where fields decay and errors of few rollouts decide: f32: $(errors_of nu=0.1 f32); bf16: $(errors_of nu=0.1 bf16)." \
    "$@" --column "macro F1=f1_macro" --column "AUROC=auroc" --column "NRMSE=nrmse" --column "RMSE / RMS=nrmse_validation_scale" \
    --column "geometric mean=nrmse_geometric_mean"
