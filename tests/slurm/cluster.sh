#!/bin/sh
# Runs a real SLURM on this machine until stdin is closed.
#   cluster.sh FOLDER     FOLDER is empty or absent; configuration, state and logs are written there
# Prints "ready" when jobs can be submitted, with SLURM_CONF=FOLDER/slurm.conf. At the end of stdin, which also comes
# when the parent process is killed, the daemons and all processes of jobs are killed.
#
# Five nodes with 16 CPUs each, n1 to n5, are five slurmd on this machine. Partition `main` is for general use, `low` is
# preempted by `high`, and nodes of `frail` may be killed. Jobs are not confined and there is no authentication, so
# Debian's slurm-wlm is all that is needed; when not run as root, jobs run as the calling user. Each cluster picks free
# ports, so that several can run at a time.
set -u
mkdir -p "$1" || exit 73
folder=$(cd "$1" && pwd)
conf=$folder/slurm.conf
PATH=$PATH:/usr/sbin:/sbin
SLURM_CONF=$conf
export PATH SLURM_CONF
nodes="n1 n2 n3 n4 n5"

# Whether a process listens on a port.
taken() {
    grep -qsi "^ *[0-9]*: [0-9A-F]*:$(printf '%04X' "$1") [0-9A-F:]* 0A" /proc/net/tcp /proc/net/tcp6
}

# Six consecutive free ports, below the ephemeral range.
free_ports() {
    try=$$
    while :; do
        try=$((try * 7919 % 12000 + 1))
        base=$((20000 + try))
        for port in 0 1 2 3 4 5; do
            if taken $((base + port)); then continue 2; fi
        done
        echo "$base"
        return
    done
}

# cred_expire is also the delay before a requeued job starts. Times that scenarios wait for are far below what a site
# would choose; timeouts (MessageTimeout, KillWait, SlurmdTimeout, GraceTime) leave room for a machine under load, and
# only the scenario of the dead node waits for one to expire. Job ids differ between clusters, because PMIx uses them in
# the names of directories in /tmp.
configure() {
    base=$1
    cat >"$conf" <<END
ClusterName=test
SlurmctldHost=$(hostname)(127.0.0.1)
SlurmctldPort=$base
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
FirstJobId=$((base * 100))
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=100000,max_rpc_cnt=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=60
MessageTimeout=20
MinJobAge=300
SlurmctldTimeout=10
SlurmdTimeout=30
ReturnToService=2
InactiveLimit=0
NodeName=n[1-5] NodeHostname=$(hostname) NodeAddr=127.0.0.1 Port=[$((base + 1))-$((base + 5))] CPUs=16 State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES PriorityTier=1 PreemptMode=OFF
PartitionName=frail Nodes=n[4-5] PriorityTier=1 PreemptMode=OFF
PartitionName=low Nodes=n3 PriorityTier=1 GraceTime=60 PreemptMode=REQUEUE
PartitionName=high Nodes=n3 PriorityTier=2 PreemptMode=OFF
END
    # Later versions require cgroups even if nothing uses them; 22.05 does not know this setting.
    case $(slurmd -V) in
    *" 22."*) ;;
    *) echo "CgroupPlugin=disabled" >"$folder/cgroup.conf" ;;
    esac
}

# Every process started with this configuration has it in its environment, except the daemons of steps from 23.11 on,
# which have the job id in their name.
marked() {
    for environment in /proc/[0-9]*/environ; do
        process=${environment#/proc/}
        process=${process%/environ}
        if [ "$process" -eq $$ ]; then continue; fi
        if grep -qsz "^SLURM_CONF=$conf\$" "$environment" ||
            grep -qs "^slurmstepd: \[${base}[0-9][0-9]\." "/proc/$process/cmdline"; then
            echo "$process"
        fi
    done
}

tear_down() {
    trap '' EXIT HUP INT TERM
    for attempt in 1 2 3; do
        # shellcheck disable=SC2046 # one word per process
        kill -KILL $(marked) 2>/dev/null
        sleep "0.$attempt"
    done
}

start() {
    configure "$(free_ports)"
    mkdir -p "$folder/state"
    slurmctld -D -c >/dev/null 2>"$folder/slurmctld.err" &
    for node in $nodes; do
        mkdir -p "$folder/spool/$node"
        slurmd -D -N "$node" >/dev/null 2>"$folder/slurmd-$node.err" &
    done
    waited=0
    until [ "$(sinfo -h -N -t idle -o %N 2>/dev/null | sort -u | wc -l)" -eq 5 ]; do
        waited=$((waited + 1))
        if [ "$waited" -gt 3000 ]; then return 1; fi
        sleep 0.1
    done
}

base=none
trap tear_down EXIT
trap 'exit 1' HUP INT TERM
if ! start; then
    tail -n 20 "$folder"/*.err "$folder"/*.log >&2
    exit 1
fi
echo ready
while read -r _; do :; done
