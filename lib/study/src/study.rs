//! A study: a folder with `study.yaml`, one folder per trial and one per round.
//!
//! ```text
//! STUDY/study.yaml            the configuration
//! STUDY/schema.json           the configuration keys of the task, if the command is train-stage
//! STUDY/trials/00012/         a trial: trial.jsonl (the journal), claim/ (the lease), params.yaml, the run directory
//! STUDY/rounds/NAME/          the narrowed space of a round, and its results
//! STUDY/snapshot.json         copies of the journals of ended trials, read instead of the journals
//! STUDY/imported/NNNN.json    trials of other studies, from which samplers learn
//! STUDY/retried.jsonl         trials that were retried after they had ended
//! ```
//!
//! The round of a trial follows from its number, so processes need not agree on it.

use crate::config::{Round, StudyConfig};
use crate::record::{Outcome, Record};
use crate::space::Space;
use crate::trial::Trial;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use unix::log::Damaged;
use unix::publish::{create_folder, publish_bytes, publish_new};
use unix::time::format_utc;
use unix::{Error, Result, fail, log, small, text, warn};

/// Maximum size in bytes of a file that is read into memory as a whole.
const MAX_BYTES: u64 = 1 << 30;
/// Number of newly ended trials after which the snapshot is rewritten.
const SNAPSHOT_EVERY: usize = 16;

/// A study, with its trials as last read.
#[derive(Debug)]
pub struct Study {
    folder: PathBuf,
    config: StudyConfig,
    rounds: Vec<Round>,
    /// The trials that have been started, as last read.
    records: BTreeMap<u64, Record>,
    /// Number of trials in the snapshot.
    in_snapshot: usize,
    /// Trials whose damaged journals have been warned about.
    warned: BTreeSet<u64>,
}

/// The content of snapshot.json.
#[derive(Serialize, Deserialize)]
struct Snapshot {
    trials: Vec<Record>,
}

impl Study {
    /// Whether a folder is a study.
    pub fn is_at(folder: &Path) -> bool {
        folder.join("study.yaml").is_file()
    }

    /// Opens a study and reads its trials. Errors: 66 if there is none; 78 for a damaged study.yaml; 74.
    pub fn open(folder: &Path) -> Result<Self> {
        let file = folder.join("study.yaml");
        if !file.exists() {
            return Err(Error::open(&file, "this is not a study; create one with `hpo new`"));
        }
        // `hpo new` has already substituted environment variables.
        let config: StudyConfig = serde_yaml::from_slice(&small::read(&file, MAX_BYTES)?)
            .map_err(|cause| Error::config(format!("{}: {cause}", file.display())))?;
        config.register_secrets();
        // The file may have been edited since.
        if let Some((key, text)) = config.violations().first() {
            return Err(Error::config(format!("{}: {key}: {text}", file.display())));
        }
        let rounds = config.rounds();
        // Absolute, because the command of a trial runs in another directory.
        let folder = std::path::absolute(folder).map_err(|cause| Error::open(folder, cause))?;
        let mut study = Self {
            folder,
            config,
            rounds,
            records: BTreeMap::new(),
            in_snapshot: 0,
            warned: BTreeSet::new(),
        };
        study.read_snapshot()?;
        study.refresh()?;
        Ok(study)
    }

    /// The folder of the study.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The configuration.
    pub fn config(&self) -> &StudyConfig {
        &self.config
    }

    /// The name of the study.
    pub fn name(&self) -> &str {
        self.config.name.as_deref().unwrap_or_default()
    }

    /// The rounds.
    pub fn rounds(&self) -> &[Round] {
        &self.rounds
    }

    /// The trials that have been started, by number.
    pub fn records(&self) -> &BTreeMap<u64, Record> {
        &self.records
    }

    /// The folder of a trial.
    pub fn trial_folder(&self, number: u64) -> PathBuf {
        self.folder.join("trials").join(format!("{number:05}"))
    }

    /// The folder of a round.
    pub fn round_folder(&self, round: usize) -> PathBuf {
        self.folder.join("rounds").join(&self.rounds[round].name)
    }

    /// Returns the first trial number of a round.
    pub fn first_of(&self, round: usize) -> u64 {
        self.rounds[..round].iter().map(|round| round.trials).sum()
    }

    /// Returns the round of a trial.
    pub fn round_of(&self, number: u64) -> Option<usize> {
        (0..self.rounds.len())
            .find(|round| number < self.first_of(*round) + self.rounds[*round].trials)
    }

    /// Returns the index of a round by its name. Errors: 2.
    pub fn round_named(&self, name: &str) -> Result<usize> {
        self.rounds.iter().position(|round| round.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.rounds.iter().map(|round| round.name.as_str()).collect();
            Error::usage(format!("no round `{name}`; the study has {}", names.join(", ")))
        })
    }

    /// Returns the trial numbers of a round: as many as configured, or as many as its grid has points if that is less.
    pub fn numbers_of(&self, round: usize, space: &Space) -> std::ops::Range<u64> {
        let (first, all) = (self.first_of(round), self.rounds[round].trials);
        let count = self.config.sampler(&self.rounds[round]).count(space).unwrap_or(all);
        first..first + count.min(all)
    }

    /// Returns the space of a round: as configured, or as narrowed when the round began (computed now if it has not
    /// begun). `None` if it must be narrowed and the previous round has not ended. Errors: 65, 66, 74.
    pub fn space_of(&self, round: usize) -> Result<Option<Space>> {
        let own = &self.rounds[round];
        let Some(narrow) = &own.narrow else {
            return Ok(Some(self.config.space(round).clone()));
        };
        let advice = "remove it to have it recomputed";
        let stored = small::read_json::<Space>(&self.space_file(round), MAX_BYTES, advice)?;
        if stored.is_some() {
            return Ok(stored);
        }
        let before = self.space_of(round - 1)?.filter(|before| self.has_ended(round - 1, before));
        Ok(before.map(|before| narrow.apply(&before, &self.trials(round - 1, &before))))
    }

    /// Begins a round and returns its space, which is fixed from now on; `None` if the previous round has not ended.
    /// Errors: 65, 66, 73, 74.
    pub fn begin_round(&self, round: usize) -> Result<Option<Space>> {
        if round > 0 {
            let before = self.space_of(round - 1)?;
            if !before.is_some_and(|before| self.has_ended(round - 1, &before)) {
                return Ok(None);
            }
        }
        let space = self.space_of(round)?;
        let file = self.space_file(round);
        if self.rounds[round].narrow.is_none() || file.exists() {
            return Ok(space);
        }
        create_folder(&self.round_folder(round))?;
        // Another process may see other records and narrow differently; the space published first is used.
        publish_new(&file, text::json_pretty(&space)?.as_bytes())?;
        self.space_of(round)
    }

    fn space_file(&self, round: usize) -> PathBuf {
        self.round_folder(round).join("space.json")
    }

    /// Whether all trials of a round have ended.
    pub fn has_ended(&self, round: usize, space: &Space) -> bool {
        self.numbers_of(round, space)
            .all(|number| self.records.get(&number).is_some_and(Record::has_ended))
    }

    /// Returns the trials of a round for samplers and pruners, in order of their numbers.
    pub fn trials(&self, round: usize, space: &Space) -> Vec<Trial> {
        let (first, sign) = (self.first_of(round), self.config.direction.sign());
        self.of_round(round).map(|record| record.trial(space, first, sign)).collect()
    }

    /// Iterates over the trials of a round that have been started, in order of their numbers.
    pub fn of_round(&self, round: usize) -> impl Iterator<Item = &Record> {
        let first = self.first_of(round);
        self.records.range(first..first + self.rounds[round].trials).map(|(_, record)| record)
    }

    /// Returns the complete trials of a round, the best first.
    pub fn ranking(&self, round: usize) -> Vec<&Record> {
        let sign = self.config.direction.sign();
        let value = |record: &Record| sign * record.value().unwrap_or(f64::NAN);
        let mut found: Vec<&Record> = self.of_round(round).collect();
        found.retain(|record| record.is(Outcome::Complete) && !value(record).is_nan());
        found.sort_by(|a, b| value(a).total_cmp(&value(b)));
        found
    }

    /// Adds a record read under its lease, which [`Study::refresh`] may not see yet.
    pub fn insert(&mut self, record: Record) {
        self.records.insert(record.number, record);
    }

    /// Rereads the journals that may have changed. Errors: 66, 74.
    pub fn refresh(&mut self) -> Result<()> {
        let (retried, damaged) = self.retried()?;
        let trials = self.folder.join("trials");
        let entries = fs::read_dir(&trials).map_err(|cause| Error::open(&trials, cause))?;
        for entry in entries {
            let entry = entry.map_err(|cause| Error::io(&trials, cause))?;
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|name| name.parse::<u64>().ok()) else {
                continue;
            };
            let known = self.records.get(&number).is_some_and(Record::has_ended);
            if known && damaged.count == 0 && !retried.contains(&number) {
                continue;
            }
            if let Some(record) = self.read(number)? {
                self.records.insert(number, record);
            }
        }
        Ok(())
    }

    /// Reads the current journal of a trial. Errors: 66, 74.
    pub fn read_now(&self, number: u64) -> Result<Option<Record>> {
        let path = self.trial_folder(number).join("trial.jsonl");
        Ok(Record::read(&path, number, &|_| true)?.0)
    }

    /// Reads the journal of a trial that another process may be writing.
    fn read(&mut self, number: u64) -> Result<Option<Record>> {
        let delay = fail::visibility_delay(number);
        let latest = SystemTime::now().checked_sub(delay).map(format_utc);
        let is_visible = |time: &str| {
            delay == Duration::ZERO || latest.as_deref().is_none_or(|latest| time <= latest)
        };
        let path = self.trial_folder(number).join("trial.jsonl");
        let (record, damaged) = Record::read(&path, number, &is_visible)?;
        if damaged.count > 0 && self.warned.insert(number) {
            damaged.tell(&path);
        }
        Ok(record)
    }

    fn snapshot(&self) -> PathBuf {
        self.folder.join("snapshot.json")
    }

    fn read_snapshot(&mut self) -> Result<()> {
        let path = self.snapshot();
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        // If retried.jsonl is damaged, an end in the snapshot may be outdated: read the journals instead.
        let (_, damaged) = self.retried()?;
        if damaged.count > 0 {
            damaged.tell(&self.retried_file());
            return Ok(());
        }
        // The snapshot is only a cache, so a damaged one is ignored.
        match serde_json::from_slice::<Snapshot>(&small::read(&path, MAX_BYTES)?) {
            Ok(snapshot) => {
                self.in_snapshot = snapshot.trials.len();
                let trials = snapshot.trials.into_iter();
                self.records = trials.map(|record| (record.number, record)).collect();
            }
            Err(cause) => warn!("{}: {cause}; reading every trial instead", path.display()),
        }
        Ok(())
    }

    /// Rewrites the snapshot if enough trials have ended since the last one. It is a cache, so a failure only warns.
    pub fn save_snapshot(&mut self) {
        let ended = self.records.values().filter(|record| record.has_ended()).count();
        if ended < self.in_snapshot + SNAPSHOT_EVERY {
            return;
        }
        let Ok((retried, Damaged { count: 0, .. })) = self.retried() else { return };
        let is_final = |record: &&Record| record.has_ended() && !retried.contains(&record.number);
        let ended: Vec<Record> = self.records.values().filter(is_final).cloned().collect();
        let count = ended.len();
        let written = serde_json::to_vec(&Snapshot { trials: ended })
            .map_err(Error::bug)
            .and_then(|bytes| publish_bytes(&self.snapshot(), &bytes));
        match written {
            Ok(()) => self.in_snapshot = count,
            Err(error) => {
                warn!(
                    "{error}; until it is written, commands that open this study read more trials and take longer"
                )
            }
        }
    }

    fn retried_file(&self) -> PathBuf {
        self.folder.join("retried.jsonl")
    }

    /// Returns retried trials, whose end in the snapshot may be outdated, and damaged lines, which may hide more
    /// retried trials.
    fn retried(&self) -> Result<(BTreeSet<u64>, Damaged)> {
        let path = self.retried_file();
        let mut numbers = BTreeSet::new();
        if path.symlink_metadata().is_err() {
            return Ok((numbers, Damaged::default()));
        }
        let trial =
            |record: serde_json::Map<String, Value>| record.get("trial").and_then(Value::as_u64);
        let damaged = log::each(&path, |record| numbers.extend(trial(record)))?;
        Ok((numbers, damaged))
    }

    /// Records that a trial is being retried.
    pub(crate) fn mark_retried(&self, number: u64) -> Result<()> {
        let record = serde_json::json!({ "trial": number });
        let same =
            |found: &serde_json::Map<String, Value>| found.get("trial") == Some(&number.into());
        log::append_once(&self.retried_file(), &record, same).map(|_| ())
    }
}
