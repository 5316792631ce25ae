//! Creates studies.

use crate::config::{StudyConfig, examples};
use crate::study::Study;
use crate::worker::command::check_program;
use serde_json::Value;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::process::Command;
use unix::config::{KeySchema, load, to_yaml};
use unix::publish::{TEMPORARY_PREFIX, create_folder, publish_bytes, publish_new};
use unix::{Context, Error, Exit, Result, text};

impl Study {
    /// Creates a study from a configuration file. An existing study with the same configuration is opened unchanged, so
    /// several processes may create the same study concurrently.
    ///
    /// Errors: 66; 78, listing every violation; 73 if the folder holds another study or other files.
    pub fn create(folder: &Path, file: &Path, overrides: &[String]) -> Result<Self> {
        let environment = |name: &str| std::env::var(name).ok();
        let validate = StudyConfig::violations;
        let mut config =
            load::<StudyConfig>(&[file.to_path_buf()], overrides, &environment, &validate)?.config;
        let default_name = || {
            let whole = std::path::absolute(folder).unwrap_or_default();
            whole.file_name().map_or("study".into(), |name| name.to_string_lossy().into_owned())
        };
        config.name = Some(config.name.take().unwrap_or_else(default_name));
        let directory = config.directory.take().unwrap_or(PathBuf::from("."));
        let source = file.display().to_string();
        let directory = directory.canonicalize().map_err(|cause| Error::open(&directory, cause));
        config.directory = Some(directory.context(|| format!("{source}: directory"))?);
        check_files(&config).context(|| format!("{source}: command"))?;
        let schema = config.task().map(|task| schema(&config, task)).transpose();
        let schema = schema.context(|| &source)?;
        if let Some(schema) = &schema {
            check_keys(&config, schema, &source)?;
            check_metric(&config).context(|| &source)?;
        }
        Self::create_with(folder, config, schema, &source)
    }

    /// Creates a study from `config`, which was read from `source`; `schema` contains the configuration keys of the
    /// task.
    pub(crate) fn create_with(
        folder: &Path,
        config: StudyConfig,
        schema: Option<Value>,
        source: &str,
    ) -> Result<Self> {
        if let Some(schema) = &schema {
            check_keys(&config, schema, source)?;
        }
        config.register_secrets();
        let yaml = to_yaml(&serde_json::to_value(&config).map_err(Error::bug)?)?;
        let own = folder.join("study.yaml");
        if !own.exists() {
            // Another process may have created the study in the meantime.
            if has_other_files(folder) && !own.exists() {
                return Err(Error::create(folder, "it is not empty; choose another folder"));
            }
            create_folder(&folder.join("trials"))?;
            // The first process publishes its configuration; the others compare theirs with it below.
            publish_new(&own, yaml.as_bytes())?;
        }
        let study = Self::open(folder)?;
        if study.config() != &config {
            let cause =
                "it is another study, or has another working directory; choose another folder";
            return Err(Error::create(&own, cause));
        }
        if let Some(schema) = schema {
            write_keys(&folder.join("schema.json"), &schema)?;
        }
        Ok(study)
    }
}

/// Interpreters whose first argument is a script.
const INTERPRETERS: [&str; 10] =
    ["sh", "bash", "dash", "ksh", "zsh", "perl", "Rscript", "julia", "node", "ruby"];

/// Checks that the files named in the command exist: the program, the script of an interpreter, and the configuration
/// files of train-stage. Errors: 66.
fn check_files(config: &StudyConfig) -> Result<()> {
    let directory = config.directory.as_deref().unwrap_or(Path::new("."));
    let (program, words) = (&config.command[0], &config.command[1..]);
    check_program(program, directory)?;
    let name = program.rsplit('/').next().unwrap_or(program);
    let is_interpreter = INTERPRETERS.contains(&name) || name.starts_with("python");
    let script = words.first().filter(|word| is_interpreter && !word.starts_with('-'));
    let is_task = config.task().is_some();
    let options = words.iter().zip(words.iter().skip(1));
    let configs = options
        .filter(|(option, _)| is_task && ["-c", "--config"].contains(&option.as_str()))
        .map(|(_, file)| file);
    let missing = |word: &&String| !word.contains('{') && !directory.join(word).exists();
    match script.into_iter().chain(configs).find(missing) {
        Some(word) => {
            let why = format!("no such file in {}", directory.display());
            Err(Error::open(Path::new(word), why))
        }
        None => Ok(()),
    }
}

/// Checks that the task reports the metric of the study. The program lists the metrics for the command's own
/// configuration or, if that is incomplete, for a configuration with one value added per parameter. Errors: 78 if the
/// metric is not listed; those of the program.
fn check_metric(config: &StudyConfig) -> Result<()> {
    let first = &config.rounds()[0];
    let space = &config.space(0).0;
    let always = space.iter().filter(|(_, parameter)| parameter.when().is_empty());
    let values = always
        .filter_map(|(name, parameter)| Some((name, examples(parameter).into_iter().next()?)));
    let fidelity = first.fidelity.iter().map(|(name, value)| (name, value.clone()));
    let set = |(name, value): (&String, Value)| format!("{}={value}", config.key(name));
    let settings: Vec<String> = values.chain(fidelity).map(set).collect();
    let metrics = match metrics(config, &[])? {
        Ok(found) => found,
        Err(why) => match metrics(config, &settings)? {
            Ok(found) => found,
            Err(other) if other.to_string() == why.to_string() => return Err(why),
            Err(other) => {
                unix::warn!(
                    "cannot check that the task reports the metric {}: {other}",
                    config.metric
                );
                return Ok(());
            }
        },
    };
    if metrics.contains(&config.metric) {
        return Ok(());
    }
    let (metric, all) = (&config.metric, metrics.join(", "));
    Err(Error::config(format!("metric: validations do not report {metric:?}; they report {all}")))
}

/// Returns the configuration schema of a task.
fn schema(config: &StudyConfig, task: &str) -> Result<Value> {
    let text = output(config, &[task, "--schema"])??;
    serde_json::from_str(&text).map_err(|cause| {
        Error::config(format!("command: {} {task} --schema: {cause}", config.command[0]))
    })
}

/// Returns the metrics of the task with these settings, or the reason why the program cannot list them.
fn metrics(config: &StudyConfig, settings: &[String]) -> Result<Result<Vec<String>>> {
    let mut words: Vec<&str> = config.command[1..].iter().map(String::as_str).collect();
    words.push("--metrics");
    words.extend(settings.iter().flat_map(|setting| ["-s", setting]));
    let lines = |text: String| text.lines().map(str::to_string).collect();
    Ok(output(config, &words)?.map(lines))
}

/// Returns the output of the command's program, or the reason why it fails. Errors: 66 if it cannot be started.
fn output(config: &StudyConfig, words: &[&str]) -> Result<Result<String>> {
    let mut command = Command::new(&config.command[0]);
    command.args(words).current_dir(config.directory.as_deref().unwrap_or(Path::new(".")));
    let output = command.output();
    let output = output.map_err(|cause| Error::open(Path::new(&config.command[0]), cause))?;
    if output.status.success() {
        return Ok(Ok(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let text = text.lines().next().unwrap_or("failed without a message");
    let exit = [Exit::Data, Exit::NoInput, Exit::Io, Exit::Bug];
    let exit = exit.into_iter().find(|exit| output.status.code() == Some(*exit as i32));
    Ok(Err(Error::new(exit.unwrap_or(Exit::Config), format!("command: {text}"))))
}

/// Checks the parameters against the configuration keys of the task. Errors: 78.
fn check_keys(config: &StudyConfig, schema: &Value, source: &str) -> Result<()> {
    let wrong = config.key_violations(&KeySchema::new(schema));
    if wrong.is_empty() {
        return Ok(());
    }
    let lines: Vec<String> = wrong.iter().map(|(key, text)| format!("{key}: {text}")).collect();
    let task = config.task().unwrap_or_default();
    let first = format!("{source}: does not match the configuration of {task}");
    Err(Error::list(Exit::Config, first, &lines))
}

/// Whether a folder has files other than those left by a killed `hpo new`.
fn has_other_files(folder: &Path) -> bool {
    let is_leftover = |entry: DirEntry| match entry.file_name().to_str() {
        Some("trials") => fs::read_dir(entry.path()).is_ok_and(|mut inner| inner.next().is_none()),
        Some("schema.json") => true,
        name => name.is_some_and(|name| name.starts_with(TEMPORARY_PREFIX)),
    };
    // A missing folder has no entries.
    let mut entries = fs::read_dir(folder).into_iter().flatten().flatten();
    !entries.all(is_leftover)
}

fn write_keys(path: &Path, schema: &Value) -> Result<()> {
    let text = text::json_pretty(schema)?;
    match fs::read(path).is_ok_and(|old| old == text.as_bytes()) {
        true => Ok(()),
        false => publish_bytes(path, text.as_bytes()),
    }
}
