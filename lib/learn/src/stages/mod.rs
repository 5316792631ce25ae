//! The tasks, a file each: what a sample is, what is minimised, how it is scored.

pub mod codec;
pub mod operator;
mod sources;
pub mod steady;

pub use sources::{FieldSource, Sources};

use crate::task::{Configured, Define, Spec};
use codec::CodecTask;
use operator::OperatorTask;
use steady::SteadyTask;

use data::split::SplitName;
use data::split_set::{TrajectorySet, Verify};
use std::path::{Path, PathBuf};
use unix::Result;

/// A task that `train-stage` knows.
pub struct Entry {
    /// What is fixed about it.
    pub spec: &'static Spec,
    /// One line about it, for `train-stage --help`.
    pub about: &'static str,
    /// [`Configured::load`] of it.
    pub load: Load,
}

/// Loads a configuration from files, overrides and an environment.
pub type Load = fn(&[PathBuf], &[String], &dyn Fn(&str) -> Option<String>) -> Result<Configured>;

/// All tasks, in the order in which programs list them.
pub static TASKS: [Entry; 3] = [
    entry::<CodecTask>("Fields to latent tokens and back"),
    entry::<OperatorTask>("From the latent state of one frame to that of the next"),
    entry::<SteadyTask>("From the inputs of a steady problem to its solution"),
];

const fn entry<T: Define>(about: &'static str) -> Entry {
    Entry { spec: &T::SPEC, about, load: Configured::load::<T> }
}

/// Opens a split of a data set that must have trajectories, to be read in every epoch.
pub(crate) fn open_split(manifest: &Path, name: SplitName) -> Result<TrajectorySet> {
    let set = TrajectorySet::open(manifest, name, Verify::Sizes)?;
    if set.is_empty() {
        return Err(unix::Error::data(format!(
            "{}: the {name} split is empty; split again with a share for it",
            manifest.display()
        )));
    }
    set.read_often();
    Ok(set)
}
