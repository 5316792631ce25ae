//! The configuration of a study, `study.yaml`.

use crate::narrow::Narrow;
use crate::pruners::Pruner;
use crate::samplers::Sampler;
use crate::space::{Parameter, Space};
pub use report::evaluation::Direction;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;
use unix::config::{KeySchema, Violations, within};

/// The configuration of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StudyConfig {
    /// Name of the study; default: the name of its folder.
    #[serde(default)]
    pub name: Option<String>,
    /// Program and arguments of a trial. For `train-stage TASK -c FILE`, options with the parameters and the run
    /// directory are appended; in the arguments of another program, {NAME} stands for a parameter, {params} for a YAML
    /// file with all parameters, {run} for the folder of the trial, {number} for its number and {seed} for its seed.
    #[schemars(length(min = 1))]
    pub command: Vec<String>,
    /// Working directory of the command; default: the directory in which `hpo new` ran.
    #[serde(default)]
    pub directory: Option<PathBuf>,
    /// Validation metric to optimise.
    pub metric: String,
    /// Whether lower or higher values are better.
    #[serde(default)]
    pub direction: Direction,
    /// Seed of the search. The seed of a trial is this plus its number.
    #[serde(default)]
    pub seed: u64,
    /// Short names of parameters, each with its configuration key.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// Parameters to search, by configuration key or short name.
    #[serde(default)]
    pub space: Space,
    /// How parameters are chosen.
    #[serde(default)]
    pub sampler: Sampler,
    /// Which trials end early.
    #[serde(default)]
    pub pruner: Pruner,
    /// Number of trials of a study without rounds.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub trials: Option<u64>,
    /// Rounds of the search; each begins when all trials of the previous one have ended.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// Program and arguments that `hpo refit` runs after training, once per seed: {run} stands for the run directory
    /// and {output} for a new folder. The last line of its output must be a JSON object; the numbers in it are the
    /// results. Default: `evaluate score` on the test split, if the command is train-stage with data.split or
    /// data.tokens.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub test: Option<Vec<String>>,
    /// A trial fails after this many consecutive attempts without progress.
    #[serde(default = "three")]
    #[schemars(range(min = 1))]
    pub attempts: u64,
}

pub(crate) fn three() -> u64 {
    3
}

/// A round of a search. Space, sampler and pruner default to the study's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Name of the round.
    pub name: String,
    /// Number of trials.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub trials: u64,
    /// Configuration keys fixed in every trial of the round, e.g. the number of updates or the fraction of the data.
    #[serde(default)]
    pub fidelity: BTreeMap<String, Value>,
    /// Parameters to search.
    #[serde(default)]
    pub space: Option<Space>,
    /// Narrow the space to the region of the previous round's best trials.
    #[serde(default)]
    pub narrow: Option<Narrow>,
    /// How parameters are chosen.
    #[serde(default)]
    pub sampler: Option<Sampler>,
    /// Which trials end early.
    #[serde(default)]
    pub pruner: Option<Pruner>,
}

impl StudyConfig {
    /// Returns the rounds; a single one named `search` if none are configured.
    pub fn rounds(&self) -> Vec<Round> {
        match self.trials {
            Some(trials) if self.rounds.is_empty() => {
                vec![Round { name: "search".into(), trials, ..Round::default() }]
            }
            _ => self.rounds.clone(),
        }
    }

    /// Returns the space of a round before narrowing: its own, the space of the round it narrows, or the study's.
    pub fn space(&self, round: usize) -> &Space {
        let rounds = self.rounds.iter().take(round + 1).rev();
        let mut narrowed = rounds.scan(true, |inherits, round| {
            let found = inherits.then_some(round);
            *inherits &= round.narrow.is_some() && round.space.is_none();
            found
        });
        narrowed.find_map(|round| round.space.as_ref()).unwrap_or(&self.space)
    }

    /// The sampler of a round.
    pub fn sampler<'a>(&'a self, round: &'a Round) -> &'a Sampler {
        round.sampler.as_ref().unwrap_or(&self.sampler)
    }

    /// The pruner of a round.
    pub fn pruner<'a>(&'a self, round: &'a Round) -> &'a Pruner {
        round.pruner.as_ref().unwrap_or(&self.pruner)
    }

    /// Returns the task, if the command is `train-stage TASK`.
    pub fn task(&self) -> Option<&str> {
        let program = self.command.first()?.rsplit('/').next()?;
        self.command.get(1).filter(|_| program == "train-stage").map(String::as_str)
    }

    /// Registers the secrets in the command, so that all later output masks them.
    pub fn register_secrets(&self) {
        let words: Vec<&String> = self.command.iter().filter(|word| !word.contains('{')).collect();
        unix::secrets::register_words(&words);
    }

    /// Returns the configuration key of a parameter.
    pub fn key<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// Finds violations that the types do not rule out, each with its key.
    pub fn violations(&self) -> Violations {
        let mut violations = Violations::new();
        let mut report = |key: String, text: &str| violations.push((key, text.into()));
        match (self.trials, self.rounds.is_empty()) {
            (None, true) => report("trials".into(), "missing; set trials or define rounds"),
            (Some(_), false) => report(
                "trials".into(),
                "cannot be combined with rounds; each round has its own trials",
            ),
            _ => {}
        }
        for (at, round) in self.rounds.iter().enumerate() {
            let key = |name: &str| format!("rounds.{at}.{name}");
            if self.rounds[..at].iter().any(|other| other.name == round.name) {
                report(key("name"), "another round has this name");
            }
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if round.name.is_empty()
                || round.name.starts_with('.')
                || !round.name.chars().all(is_plain)
            {
                report(
                    key("name"),
                    "must consist of letters, digits, -, _ and ., not beginning with a dot: it names a folder",
                );
            }
            if round.narrow.is_some() && at == 0 {
                report(key("narrow"), "the first round has no previous round to narrow");
            }
            if round.narrow.is_some() && round.space.is_some() {
                report(
                    key("narrow"),
                    "cannot be combined with space: the space of the previous round is narrowed",
                );
            }
        }
        let rounds = self.rounds();
        for (at, round) in rounds.iter().enumerate() {
            let section = |own: bool, name: &str| match own {
                true => format!("rounds.{at}.{name}"),
                false => name.into(),
            };
            let space = self.space(at);
            let space_key = section(round.space.is_some(), "space");
            if space.0.is_empty() && round.narrow.is_none() {
                violations
                    .push((space_key.clone(), "missing; list the parameters to search".into()));
            }
            let sampler = self.sampler(round).violations(space);
            violations.extend(within(&space_key, space.violations()));
            violations.extend(within(&section(round.sampler.is_some(), "sampler"), sampler));
            let pruner = self.pruner(round).violations();
            violations.extend(within(&section(round.pruner.is_some(), "pruner"), pruner));
        }
        violations.extend(self.command_violations(&rounds));
        distinct(violations)
    }

    /// Finds parameters that a program other than train-stage would not receive.
    fn command_violations(&self, rounds: &[Round]) -> Violations {
        if self.task().is_some() {
            return Violations::new();
        }
        let mut missing = Violations::new();
        let given = |name: &str| {
            let placeholder = format!("{{{name}}}");
            self.command.iter().any(|word| word.contains(&placeholder))
        };
        let reserved = ["params", "run", "number", "seed"];
        let names = rounds
            .iter()
            .enumerate()
            .flat_map(|(at, round)| self.space(at).0.keys().chain(round.fidelity.keys()));
        for name in names {
            if reserved.contains(&name.as_str()) {
                let text = format!("{{{name}}} is a reserved placeholder; rename the parameter");
                missing.push((format!("space.{name}"), text));
            } else if !given(name) && !given("params") {
                let text = format!(
                    "no argument contains {{{name}}} or {{params}}, so the program would not receive the value"
                );
                missing.push(("command".into(), text));
            }
        }
        missing
    }

    /// Finds parameters that do not match the configuration keys of the task.
    pub fn key_violations(&self, keys: &KeySchema) -> Violations {
        let mut violations = Violations::new();
        let mut check = |section: String, name: &str, values: &[Value]| {
            if let Err(text) = keys.check(self.key(name), values) {
                violations.push((format!("{section}.{name}"), text));
            }
        };
        for (at, round) in self.rounds().iter().enumerate() {
            let section = match round.space {
                Some(_) => format!("rounds.{at}.space"),
                None => "space".into(),
            };
            for (name, parameter) in &self.space(at).0 {
                check(section.clone(), name, &examples(parameter));
            }
            for (name, value) in &round.fidelity {
                check(format!("rounds.{at}.fidelity"), name, std::slice::from_ref(value));
            }
        }
        for name in self.names.values() {
            check("names".into(), name, &[]);
        }
        distinct(violations)
    }
}

/// Returns values of a parameter that its configuration key must accept.
pub(crate) fn examples(parameter: &Parameter) -> Vec<Value> {
    match parameter {
        Parameter::Categorical { choices, .. } => choices.clone(),
        Parameter::Fixed { value, .. } => vec![value.clone()],
        Parameter::Int { low, high, .. } => vec![(*low).into(), (*high).into()],
        Parameter::Float { low, high, .. } => vec![(*low).into(), (*high).into()],
    }
}

/// Removes duplicates: a space shared by several rounds is checked once for each of them.
fn distinct(mut violations: Violations) -> Violations {
    let mut seen = std::collections::HashSet::new();
    violations.retain(|violation| seen.insert(violation.clone()));
    violations
}
