//! The variables that a site file may set, and checks of their values.

use std::path::Path;

use crate::time::parse_duration;

/// Suffixes of the `SBATCH_` variables that sbatch(1) reads, from SLURM 22.05 on.
const OF_SBATCH: &str = "\
    ACCOUNT ACCTG_FREQ ARRAY_INX BATCH BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT CONSTRAINT CONTAINER \
    CONTAINER_ID CORE_SPEC CPUS_PER_GPU CPU_FREQ_REQ DEBUG DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT \
    GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT \
    IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE \
    OOM_KILL_STEP OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQUEUE REQ_SWITCH RESERVATION \
    SEGMENT_SIZE SIGNAL SPREAD_JOB STEPMGR THREADS_PER_CORE THREAD_SPEC TIMELIMIT TRES_BIND TRES_PER_TASK \
    USE_MIN_NODES WAIT WAIT4SWITCH WAIT_ALL_NODES WCKEY";

/// Returns the problem with a value, if there is one, without quoting the value.
type Check = fn(&str) -> Option<String>;

/// The variables that longhaul and pipeline.sh read in a job, with their checks before submission.
const LONGHAUL_VARIABLES: [(&str, Check); 16] = [
    ("LONGHAUL_SETUP", setup),
    ("LONGHAUL_INSIDE", anything),
    ("LONGHAUL_MPI", anything),
    ("LONGHAUL_MARGIN", |text| {
        parse_duration(text)
            .is_err()
            .then(|| "expected a duration, e.g. 90s, 10m or 01:30:00".into())
    }),
    ("LONGHAUL_ON_FAILURE", |text| {
        (!["end", "hold"].contains(&text)).then(|| "expected end or hold".into())
    }),
    ("LONGHAUL_MAX_RESTARTS", |text| {
        text.parse::<u32>().is_err().then(|| "expected a whole number".into())
    }),
    ("LONGHAUL_STEP", |_| Some("pipeline.sh sets it for each step".into())),
    ("LONGHAUL_RATE_PER_HOUR", |text| {
        let is_rate = text.parse::<f64>().is_ok_and(|rate| rate >= 0.0 && rate.is_finite());
        (!is_rate).then(|| "expected a price per hour, e.g. 2.5".into())
    }),
    ("LONGHAUL_START_LIMIT", anything),
    ("LONGHAUL_HEARTBEAT", anything),
    ("LONGHAUL_NCCL", anything),
    ("LONGHAUL_NVRTC", anything),
    ("LONGHAUL_KERNEL_CACHE", anything),
    ("LONGHAUL_CPU", |text| {
        let is_known = ["portable", "avx512", "amx"].contains(&text);
        (!is_known).then(|| "expected portable, avx512 or amx".into())
    }),
    ("LONGHAUL_DEVICE_MEMORY", anything),
    ("LONGHAUL_SHARED_MEMORY", anything),
];

fn anything(_: &str) -> Option<String> {
    None
}

/// Checks the setup file, which the job reads on its node: it is checked here because both machines must see it.
fn setup(text: &str) -> Option<String> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Some("expected an absolute path".into());
    }
    std::fs::File::open(path).err().map(|cause| format!("it cannot be read here: {cause}"))
}

/// Returns the names of all variables that sbatch and longhaul read.
pub(super) fn known() -> impl Iterator<Item = String> {
    let of_sbatch = OF_SBATCH.split(' ').map(|rest| format!("SBATCH_{rest}"));
    LONGHAUL_VARIABLES.iter().map(|(name, _)| (*name).to_string()).chain(of_sbatch)
}

/// Returns the problem with a variable, if there is one. Only variables that sbatch and longhaul read are checked. Any
/// other variable is meant for the programs of the job, unless its name is nearly one of these.
pub(super) fn problem(name: &str, value: &str) -> Option<String> {
    if let Some((_, check)) = LONGHAUL_VARIABLES.iter().find(|(known, _)| *known == name) {
        return check(value).map(|why| format!("{name}: {why}"));
    }
    if known().any(|known| known == name) {
        return None;
    }
    let likeness = |known: &str| strsim::jaro_winkler(known, name);
    let nearest = known().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    let readers = [("SBATCH_", "sbatch"), ("LONGHAUL_", "longhaul")];
    match readers.into_iter().find(|(prefix, _)| name.starts_with(prefix)) {
        Some((_, who)) => Some(format!("{who} does not read {name}; did you mean {nearest}?")),
        None => (strsim::damerau_levenshtein(&nearest, name) <= 2)
            .then(|| format!("{name}: did you mean {nearest}?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nearly_a_name_is_a_fault() {
        for (name, value, part) in [
            ("SBATCH_PARTITON", "main", "SBATCH_PARTITION"),
            ("SBATCH_TIME", "10", "SBATCH_TIMELIMIT"),
            ("LONGHAUL_MARGN", "10m", "LONGHAUL_MARGIN"),
            ("SBTACH_ACCOUNT", "us", "did you mean SBATCH_ACCOUNT"),
            ("LONGHAUL_MARGIN", "ten", "LONGHAUL_MARGIN: expected a duration"),
            ("LONGHAUL_ON_FAILURE", "holds", "end or hold"),
            ("LONGHAUL_MAX_RESTARTS", "-1", "whole number"),
            ("LONGHAUL_RATE_PER_HOUR", "-1", "price"),
            ("LONGHAUL_SETUP", "setup.sh", "absolute"),
            ("LONGHAUL_SETUP", "/no/such/setup.sh", "cannot be read"),
        ] {
            let problem = problem(name, value).unwrap_or_default();
            assert!(problem.contains(part), "{name}={value}: {problem:?}");
        }
        for (name, value) in [
            ("SBATCH_PARTITION", "main"),
            ("SBATCH_SIGNAL", "B:USR1@300"),
            ("LONGHAUL_MARGIN", "30s"),
            ("LONGHAUL_SETUP", "/etc/passwd"),
            ("OMP_NUM_THREADS", "4"),
            ("APPTAINER_BIND", "/scratch"),
        ] {
            assert_eq!(problem(name, value), None, "{name}={value}");
        }
    }
}
