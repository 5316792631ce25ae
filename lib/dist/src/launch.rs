//! Detects from the environment whether a launcher started this process as one of several tasks: initialising MPI to
//! find out would cost 0.3 s.

use unix::Error;

/// How this process was started.
#[derive(Debug, PartialEq, Eq)]
pub enum Launch {
    /// As a single process, or by a launcher that does not assign ranks.
    Alone,
    /// By a launcher, with the number of tasks if known.
    Tasks(Option<usize>),
}

/// Detects the launcher from the environment variables of this process.
pub fn detect() -> Launch {
    read(|name| std::env::var(name).ok())
}

fn read(variable: impl Fn(&str) -> Option<String>) -> Launch {
    let number = |name| variable(name).and_then(|text| text.trim().parse::<usize>().ok());
    // A batch script also has SLURM_NTASKS, but it is not a job step.
    let step = || {
        number("SLURM_STEP_ID")
            .and_then(|_| number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS")))
    };
    // Open MPI's variables come first: its mpirun may itself run in a job step with one task per host.
    match number("OMPI_COMM_WORLD_SIZE").or_else(|| number("PMI_SIZE")).or_else(step) {
        Some(0 | 1) => Launch::Alone,
        Some(tasks) => Launch::Tasks(Some(tasks)),
        None if variable("PMIX_RANK").is_some() => Launch::Tasks(None),
        None => Launch::Alone,
    }
}

/// Returns the rank that the launcher assigned to this process, which is known before MPI is initialised.
#[cfg(feature = "mpi")]
pub fn rank() -> Option<usize> {
    let names = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"];
    names.iter().find_map(|name| std::env::var(name).ok()?.trim().parse().ok())
}

/// Returns the error for a process that is one of several tasks although MPI sees only one.
#[cfg(feature = "mpi")]
pub fn not_connected(tasks: usize) -> Error {
    Error::usage(format!(
        "started as one of {tasks} tasks, but MPI sees only one, and {tasks} runs would overwrite \
         each other: start it with `srun --mpi=pmix` (`srun --mpi=list` shows what is available) or the \
         mpirun of the MPI it was built with"
    ))
}

/// Returns the error for a process that is one of several tasks although the program was built without MPI.
#[cfg(not(feature = "mpi"))]
pub fn without_mpi(tasks: Option<usize>) -> Error {
    let tasks = tasks.map_or("several".to_string(), |tasks| tasks.to_string());
    Error::usage(format!(
        "started as one of {tasks} tasks, but this program was built without MPI: start \
         one task, or build it with the feature `mpi`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(variables: &[(&str, &str)]) -> Launch {
        read(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string()))
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        assert_eq!(seen(&[]), Launch::Alone);
        assert_eq!(seen(&[("OMPI_COMM_WORLD_SIZE", "4")]), Launch::Tasks(Some(4)));
        assert_eq!(seen(&[("OMPI_COMM_WORLD_SIZE", "1")]), Launch::Alone);
        assert_eq!(seen(&[("PMI_SIZE", "3"), ("PMI_RANK", "0")]), Launch::Tasks(Some(3)));
        assert_eq!(seen(&[("PMIX_RANK", "0")]), Launch::Tasks(None));
        // The batch script of a job with many tasks is a single process; a step is not.
        assert_eq!(seen(&[("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "7")]), Launch::Alone);
        let step = [("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(seen(&step), Launch::Tasks(Some(2)));
        let one = [("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(seen(&[one[0], one[1], one[2], ("PMIX_RANK", "0")]), Launch::Alone);
        let mpirun_in_step = [one[0], one[1], one[2], ("OMPI_COMM_WORLD_SIZE", "8")];
        assert_eq!(seen(&mpirun_in_step), Launch::Tasks(Some(8)));
        assert_eq!(seen(&[("OMPI_COMM_WORLD_SIZE", "many")]), Launch::Alone);
    }
}
