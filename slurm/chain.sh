#!/bin/sh
# The chain codec -> latents -> operator -> evaluation as four jobs, each of which starts itself again until
# it is done and then lets the next one go: longhaul-slurm(7).
#   chain.sh [--site FILE] CODEC.yaml OPERATOR.yaml SPLIT FOLDER [OPTIONS OF sbatch]
# Makes FOLDER/{codec,latents,operator,evaluation}, with the output of each job in it. SPLIT is what ds-prep
# split wrote. The operator learns from FOLDER/latents, whatever OPERATOR.yaml says of data.train and
# data.validation. Paths are relative to the current folder.
#
# Before anything is submitted, chain.sh checks the configurations, the data, that all rollouts fit into the
# trajectories, and that the time limit leaves more than the margin.
#
# A step that fails is held in the queue, and the steps after it keep waiting: fix the cause, then
# `scontrol release JOB`. Given again, chain.sh submits what is neither finished nor in the queue, and replaces
# jobs that wait for one that failed or was cancelled.
#
#   LONGHAUL_SLURM     the folder of train.sbatch; that of this file
#   EVALUATE_OPTIONS   words for evaluate; "--steps 16", which needs 1 + 16 * stride frames
set -eu
site=
if [ "${1-}" = --site ] && [ $# -gt 2 ]; then
    site=$2
    shift 2
fi
if [ $# -lt 4 ]; then
    sed -n 's/^#   //p' "$0" >&2
    exit 2
fi
codec=$1 operator=$2 split=$3 folder=${4%/}
shift 4
case $folder in
*%* | *\\*)
    echo "chain.sh: FOLDER is $folder: SLURM would write the output elsewhere, for it replaces % and \\" >&2
    exit 2
    ;;
esac
for file in "$codec" "$operator" "$split"; do
    if [ ! -r "$file" ]; then
        echo "chain.sh: cannot read $file" >&2
        exit 66
    fi
done
slurm=${LONGHAUL_SLURM:-$(cd "$(dirname "$0")" && pwd)}
options=$*

# of NAME DEFAULT: a variable as the jobs will see it, without blanks around it.
of() {
    value=
    [ -z "$site" ] || value=$(sed -n "s/^ *$1 *= *//p" "$site" | tail -n 1)
    [ -n "$value" ] || value=$(printenv "$1") || value=$2
    trim "$value"
}
trim() {
    printf '%s\n' "$1" | sed 's/^[[:space:]]*//; s/[[:space:]]*$//'
}
limit=$(of SBATCH_TIMELIMIT 04:00:00)
for word; do
    case $word in
    --time=*) limit=${word#--time=} ;;
    -t?*) limit=${word#-t} ;;
    *) case ${before-} in --time | -t) limit=$word ;; esac ;;
    esac
    before=$word
done
limit=$(trim "$limit")
case $limit in
'' | [Ii][Nn][Ff][Ii][Nn][Ii][Tt][Ee] | [Uu][Nn][Ll][Ii][Mm][Ii][Tt][Ee][Dd] | -1) limit=none ;;
*[!0:-]*) ;;
*) limit=none ;; # zero, for sbatch
esac
case $limit in
*[!0-9]*) ;;
*) limit=${limit}m ;; # minutes, for sbatch
esac
if ! said=$(timekeep run --limit "$limit" --margin "$(of LONGHAUL_MARGIN 5m)" true 2>&1); then
    echo "chain.sh: no step can work in this time limit: $said" >&2
    exit 2
fi
if [ ! -e "$folder/codec" ]; then
    train-stage codec -c "$codec" --run "$folder/codec" --check >&2
fi
# shellcheck disable=SC2086 # several words
evaluate check --config "$operator" --data "$split" ${EVALUATE_OPTIONS:---steps 16}
mkdir -p "$folder"

# submit NAME JOB-BEFORE COMMAND...: the id of the job that NAME is; nothing for what is finished.
submit() {
    name=$1 before=$2
    shift 2
    # shellcheck disable=SC2086 # several words
    timekeep submit ${site:+--site "$site"} "$folder/$name" -- sbatch --parsable \
        --job-name="$name" --output="$folder/$name/slurm-%j.out" --export=ALL,LONGHAUL_ON_FAILURE=hold \
        ${before:+--dependency=afterok:"$before"} $options "$slurm/train.sbatch" "$@"
}

first=$(submit codec "" train-stage codec -c "$codec" --run "$folder/codec")
# Latents of a codec that is trained on are not finished.
[ -z "$first" ] || rm -f "$folder/latents/status.json"
second=$(submit latents "$first" \
    latent-cache make "$folder/codec" --data "$split" -o "$folder/latents")
third=$(submit operator "$second" train-stage operator -c "$operator" --run "$folder/operator" \
    -s data.train="$folder/latents/train" -s data.validation="$folder/latents/validation")
if [ -e "$folder/evaluation/metrics.json" ]; then
    last=
else
    # shellcheck disable=SC2086 # several words
    last=$(submit evaluation "$third" evaluate score "$folder/operator" \
        --data "$split" ${EVALUATE_OPTIONS:---steps 16} -o "$folder/evaluation" --force)
fi
echo "${first:-done} ${second:-done} ${third:-done} ${last:-done}"
