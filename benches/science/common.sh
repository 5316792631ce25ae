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

# updates HOURS TASK RUN CONFIG [OPTION...]: how many updates of a run fit into that time, by a run of 60 updates.
updates() {
    budget=$1 task=$2 run=$3 config=$4
    shift 4
    if ! test -e "$run.updates"; then
        train-stage "$task" -c "$config" --run "$run.pilot" "$@" -s training.updates=60 -s training.log_every=1 \
            -s training.validate_every=60 -s training.validation_samples=1 >&2
        sed -n 's/.*"kind":"update".*"seconds":\([0-9.e-]*\).*/\1/p' "$run.pilot/log.jsonl" | tail -n +6 | sort -g |
            awk -v hours="$budget" '{ all[NR] = $1 } END { printf "%d\n", hours * 3600 / all[int((NR + 1) / 2)] }' \
            > "$run.updates.part"
        mv "$run.updates.part" "$run.updates"
    fi
    cat "$run.updates"
}

# notes [OPTION...]: the table, with date, commit and machine as its first note.
notes() {
    set -- --note "$(date -u +%Y-%m-%d), commit $(git -C "$top" rev-parse --short HEAD), $(sed -n \
        's/^model name.*: //p' /proc/cpuinfo | head -n 1), threads: $(nproc)." "$@"
    table "$@"
}

# table [OPTION...]: writes benches/results/science-NAME.md with the example science_table of lib/tasks.
table() {
    "${TABLE:-$top/target/release/examples/science_table}" . "$top/benches/results/science-$name.md" "$@"
}
