//! Opens trained models and the models that these depend on.

use learn::trained::{ComputeMode, Parts, Weights};
use std::path::PathBuf;
use unix::{Context, Error, Result};

/// Options for opening trained models.
#[derive(Clone, Debug)]
pub struct Opener {
    /// The weights of a checkpoint to use, raw or averaged.
    pub weights: Weights,
    /// Where models compute, and how.
    pub mode: ComputeMode,
    /// Replacements for the models that a model depends on: name, and run directory or checkpoint.
    pub with: Vec<(String, PathBuf)>,
}

impl Opener {
    /// Refuses (2) replacements of models that a checkpoint does not depend on, except those named in `also`.
    pub fn require_known(&self, parts: &Parts, also: &[&str]) -> Result<()> {
        let is_known =
            |name: &String| parts.dependencies.contains_key(name) || also.contains(&name.as_str());
        match self.with.iter().find(|(name, _)| !is_known(name)) {
            None => Ok(()),
            Some((name, _)) => Err(Error::usage(format!(
                "--with {name}: {} does not need a {name}",
                parts.origin.checkpoint.display()
            ))),
        }
    }

    /// Opens the trained model `name` that `parts` depend on: the recorded one, or its replacement.
    ///
    /// Errors: 66 when the model cannot be found, 65 when it differs from the one used in training, 2 when its path is
    /// not recorded and no replacement is given.
    pub fn dependency<M>(
        &self,
        parts: &Parts,
        name: &str,
        restore: impl FnOnce(&Parts, &Self) -> Result<(M, String)>,
    ) -> Result<M> {
        let Some(recorded) = parts.dependencies.get(name) else {
            return Err(Error::data(format!("its manifest records no {name}")));
        };
        let replaced = self.with.iter().find(|(own, _)| own == name).map(|(_, path)| path);
        let Some(path) = replaced.or(recorded.path.as_ref()) else {
            return Err(Error::usage(format!("the {name} is required: add --with {name}=RUN")));
        };
        let hint =
            || format!("the {name} that it depends on; give its new path with --with {name}=RUN");
        let found = Parts::read(path, self.weights).context(hint)?;
        let (model, hash) = restore(&found, self)?;
        if hash != recorded.hash {
            return Err(Error::data(format!(
                "trained with a different {name} ({}) than {} ({hash}); add --with {name}=RUN with the run or \
                 checkpoint of that {name}",
                recorded.hash, found.origin
            )));
        }
        Ok(model)
    }
}
