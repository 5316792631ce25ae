#!/bin/sh
#SBATCH --job-name=longhaul-pipeline
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=04:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
# The steps of a pipeline file, each until it has succeeded once: longhaul-slurm(7). Run again, it continues with the
# steps that are not up to date.
#   pipeline.sh [--local] [--check | --dry-run] [--site FILE] PIPELINE.yaml [OPTIONS OF sbatch]
#   sbatch [OPTIONS] pipeline.sh --local PIPELINE.yaml
# By default, each step is a job that is requeued until it is finished; the steps after it wait for it. With --local,
# the steps run here, or in the job that sbatch submits, one after another. Everything is checked first: --check stops
# there, and --dry-run prints time and cost. FOLDER/summary.json holds the results. Paths are relative to the current
# directory.
#
# A step whose job fails is held in the queue, and the steps after it keep waiting: fix the cause, then run `scontrol
# release JOB`. Run again, pipeline.sh submits every step that is neither up to date nor in the queue, and replaces
# jobs that wait for one that failed or was cancelled.
#
#   LONGHAUL_SLURM           directory of train.sbatch; default: that of this file
#   LONGHAUL_RATE_PER_HOUR   price of an hour of a job, for --dry-run; also from the site file
#   LONGHAUL_PAUSE           seconds before a step that was stopped runs again, for --local; default 10
#   LONGHAUL_SETUP, LONGHAUL_INSIDE, LONGHAUL_MPI, LONGHAUL_MARGIN   as in train.sbatch
# shellcheck disable=SC2317 # the functions *_step are called by each
set -eu
fail() {
    status=$1
    shift
    echo "pipeline.sh: $*" >&2
    exit "$status"
}
here=$0
if [ -n "${LONGHAUL_SETUP-}" ] && [ -n "${SLURM_JOB_ID-}" ] && [ -z "${LONGHAUL_SETUP_DONE-}" ]; then
    case $LONGHAUL_SETUP in /*) ;; *) fail 66 "LONGHAUL_SETUP=$LONGHAUL_SETUP: not an absolute path" ;; esac
    [ -r "$LONGHAUL_SETUP" ] || fail 66 "LONGHAUL_SETUP=$LONGHAUL_SETUP: cannot be read on $(uname -n)"
    # shellcheck disable=SC2016 # expanded by the bash that sources the file
    LONGHAUL_SETUP_DONE=yes exec bash -c 'script=("$@"); set --; . "$LONGHAUL_SETUP" ||
        echo "LONGHAUL_SETUP=$LONGHAUL_SETUP ended with $?; continuing" >&2
        exec sh "${script[@]}"' setup "$here" "$@"
fi
mode=chain until=end site=
while [ $# -gt 0 ]; do
    case $1 in
    --local) mode=local ;;
    --check | --dry-run) until=${1#--} ;;
    --site) [ $# -gt 1 ] || fail 2 "--site needs a file" && site=$2 && shift ;;
    --site=*) site=${1#*=} ;;
    -*) fail 2 "unknown option $1; options of sbatch come after PIPELINE.yaml" ;;
    *) break ;;
    esac
    shift
done
if [ $# -eq 0 ]; then
    sed -n 's/^#   //p' "$here" >&2
    exit 2
fi
file=$1
shift
[ $# -eq 0 ] || [ $mode = chain ] || fail 2 "$1: with --local, options of sbatch are given to sbatch"
sbatch_options=$*

# each FUNCTION: calls `FUNCTION FOLDER NAME STATE HOURS AFTER SBATCH COMMAND...` for every step.
steps=$(timekeep pipeline --shell "$file")
each() {
    function=$1
    eval "$steps"
}
step() {
    "$function" "$@"
}

# of NAME DEFAULT: the value of a variable in the jobs, without surrounding blanks.
of() {
    value=
    [ -z "$site" ] || value=$(sed -n "s/^ *$1 *= *//p" "$site" | tail -n 1)
    [ -n "$value" ] || value=$(printenv "$1") || value=$2
    trim "$value"
}
trim() {
    printf '%s\n' "$1" | sed 's/^[[:space:]]*//; s/[[:space:]]*$//'
}
inside=$(of LONGHAUL_INSIDE "")

# ---- checks

# check_limit OPTIONS OF sbatch...: the time limit of the job must be longer than the margin.
check_limit() {
    before='' limit=$(of SBATCH_TIMELIMIT 04:00:00)
    for word; do
        case $word in
        --time=*) limit=${word#--time=} ;;
        -t?*) limit=${word#-t} ;;
        *) case $before in --time | -t) limit=$word ;; esac ;;
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
        fail 2 "the time limit of step $name is too short: $said"
    fi
}

# value SHORT LONG WORDS...: the values of an option in a command: `SHORT VALUE`, `LONG VALUE` or `LONG=VALUE`.
value() {
    short=$1 long=$2 before=''
    shift 2
    for word; do
        case $word in "$long"=*) printf '%s\n' "${word#*=}" ;; esac
        case $before in "$short" | "$long") printf '%s\n' "$word" ;; esac
        before=$word
    done
}

# Prints the configuration of a step that trains an operator in the folder $trained.
config_step() {
    shift 6
    [ "$1 ${2-}" = "train-stage operator" ] || return 0
    [ "$(value -r --run "$@" | tail -n 1)" != "$trained" ] || value -c --config "$@"
}

# For `evaluate score RUN ...`: its rollouts must fit into the trajectories, and so must those of the training.
check_rollouts() {
    trained=$3 rollouts=
    config=$(each config_step) data=$(value --data --data "$@")
    [ -r "$config" ] && [ -r "$data" ] || return 0
    for option in --steps --stride --starts --split --max-trajectories; do
        rollouts="$rollouts $(value $option $option "$@" | sed "s/^/$option /")"
    done
    # shellcheck disable=SC2086 # several words
    $inside evaluate check --config "$config" --data "$data" $rollouts >&2 || fail 2 "step $name: see above"
}

check_step() {
    name=$2 state=$3 options=$6
    shift 6
    [ "$state" != 'done' ] || return 0
    # shellcheck disable=SC2086 # several words
    [ $mode = local ] || check_limit $sbatch_options $options
    [ -n "$inside" ] || command -v "$1" >/dev/null || fail 127 "step $name: $1 is not in PATH"
    case "$1 ${2-} $state" in
    "train-stage "*" waiting") ;; # its inputs do not exist yet
    "train-stage "*)
        # A run that has begun was checked then, and may be running.
        # shellcheck disable=SC2086 # several words
        [ -e "$(value -r --run "$@" | tail -n 1)/ckpt" ] || $inside "$@" --check >&2 || fail $? "step $name: see above"
        ;;
    "evaluate score "*) check_rollouts "$@" ;;
    esac
}
each check_step
[ "$until" != check ] || exit 0

# ---- time and cost

if [ "$until" = dry-run ]; then
    plan_step() {
        name=$2 state=$3 hours=$4 after=$5 why=measured
        shift 6
        if [ "$state" = waiting ]; then
            hours='' why="unknown until the steps before it are done: $after"
        elif [ "$state" != 'done' ] && [ "$1" = train-stage ]; then
            # shellcheck disable=SC2086 # several words
            said=$($inside "$@" --dry-run --json) || fail $? "step $name: see above"
            hours=$(printf '%s\n' "$said" | sed -n 's/.*"seconds":\([^,}]*\).*/\1/p' | awk '{ print $1 / 3600 }')
            why=estimated
            case $said in *'"seconds":null'*) hours='' why='not measured: memory' ;; esac
        elif [ "$state" != 'done' ]; then
            hours='' why="unknown until it has run"
        fi
        printf '%s\t%s\t%s\t%s\n' "$name" "$state" "$hours" "$why"
    }
    planned=$(each plan_step)
    printf '%s\n' "$planned" | awk -F '\t' -v rate="$(of LONGHAUL_RATE_PER_HOUR 0)" '
        function line(name, state, hours, why) {
            cost = hours == "-" ? "-" : sprintf("%.2f", rate * hours)
            printf "%-20s  %-7s  %9s  %9s  %s\n", name, state, hours, cost, why
        }
        BEGIN { printf "%-20s  %-7s  %9s  %9s  %s\n", "step", "state", "hours", "cost", "" }
        { line($1, $2, $3 == "" ? "-" : sprintf("%.3f", $3), $4); total += $3; unknown += $3 == "" }
        END { line("total", "", sprintf("%.3f", total), unknown ? "and " unknown " unknown" : "") }'
    exit 0
fi

# ---- here, or in the job that this is

if [ $mode = local ]; then
    stopped='' child=''
    stop() {
        # SLURM ends a job that it requeues with TERM.
        [ -z "$stopped" ] || [ -z "${SLURM_JOB_ID-}" ] || exit 75
        stopped=yes
        [ -z "$child" ] || kill -s "$1" "$child" 2>/dev/null || :
    }
    trap 'stop TERM' TERM INT HUP
    trap 'stop USR1' USR1
    # srun does not inherit sbatch's --cpus-per-task.
    [ -z "${SLURM_CPUS_PER_TASK-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
    # launch COMMAND...: as in train.sbatch; only train-stage runs as several tasks.
    launch() {
        tasks=--ntasks=1 mpi=none
        if [ "$1" = train-stage ] && [ "${SLURM_NTASKS:-1}" -gt 1 ]; then
            tasks=--ntasks=$SLURM_NTASKS mpi=${LONGHAUL_MPI:-pmix}
        fi
        # shellcheck disable=SC2086 # several words
        set -- ${SLURM_JOB_ID:+srun --kill-on-bad-exit=1 --mpi="$mpi" "$tasks"} $inside "$@"
        exec timekeep run --step "$file:$name" -- "$@"
    }
    run_step() {
        name=$2
        shift 6
        while [ -z "$stopped" ]; do
            launch "$@" &
            child=$! status=0
            wait "$child" || status=$?
            # A signal, which is passed on, interrupts wait.
            while kill -0 "$child" 2>/dev/null; do
                status=0
                wait "$child" || status=$?
            done
            child=
            case $status in
            0) return ;;
            75) [ -n "$stopped" ] || sleep "${LONGHAUL_PAUSE:-10}" & ;;
            *) [ -n "$stopped" ] || fail "$status" "step $name failed with status $status; fix it, then run again" ;;
            esac
            wait || :
        done
        exit 75
    }
    each run_step
    timekeep pipeline --summary "$file"
    exit 0
fi

# ---- a chain of jobs

slurm=${LONGHAUL_SLURM:-$(cd "$(dirname "$here")" && pwd)}
jobs=' ' line=
submit_step() {
    folder=$1 name=$2 state=$3 after=$5 options=$6 dependency='' job=''
    shift 6
    for earlier in $after; do
        case $jobs in *" $earlier="*) job=${jobs##* "$earlier="} dependency=$dependency:${job%% *} ;; esac
    done
    job=
    # shellcheck disable=SC2086 # several words
    [ "$state" = 'done' ] || job=$(LONGHAUL_STEP=$file:$name timekeep submit ${site:+--site "$site"} \
        "$folder/$name" -- sbatch --parsable --job-name="$name" --output="$folder/$name/slurm-%j.out" \
        --export=ALL,LONGHAUL_ON_FAILURE=hold ${dependency:+--dependency=afterok"$dependency"} \
        $sbatch_options $options "$slurm/train.sbatch" "$@")
    jobs="$jobs${job:+$name=$job }" line="$line ${job:-done}"
}
each submit_step
echo "${line# }"
timekeep pipeline --summary "$file" >&2
