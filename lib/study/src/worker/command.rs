//! The command of a trial: its arguments and its process.

use super::supervise::VERB;
use crate::config::StudyConfig;
use crate::record::StartRecord;
use crate::space::plain;
use rustix::fs::{Access, access};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use unix::publish::publish_bytes;
use unix::{Error, Result, config::to_yaml, small};

/// The running command of a trial.
pub struct Running {
    child: Child,
    output: PathBuf,
    /// Size of the output of earlier attempts in bytes.
    written: u64,
}

/// Writes the parameters and the fidelity of a trial to `params.yaml` in its folder.
pub fn write_params(
    config: &StudyConfig,
    fidelity: &BTreeMap<String, Value>,
    start: &StartRecord,
    folder: &Path,
) -> Result<PathBuf> {
    let mut all: BTreeMap<String, Value> = fidelity.clone();
    if config.task().is_some() {
        all.insert("seed".into(), start.seed.into());
    }
    all.extend(start.params.clone());
    let path = folder.join("params.yaml");
    publish_bytes(&path, to_yaml(&nested(config, &all))?.as_bytes())?;
    Ok(path)
}

/// Converts parameters to a nested configuration: the key `a.b` becomes `b` in a mapping `a`.
pub fn nested(config: &StudyConfig, params: &BTreeMap<String, Value>) -> Value {
    let mut root = json!({});
    for (name, value) in params {
        let place = config.key(name).split('.').try_fold(&mut root, |outer, key| {
            Some(outer.as_object_mut()?.entry(key).or_insert_with(|| json!({})))
        });
        if let Some(place) = place {
            *place = value.clone();
        }
    }
    root
}

/// Builds the command line of a trial.
pub fn words(
    config: &StudyConfig,
    number: u64,
    start: &StartRecord,
    fidelity: &BTreeMap<String, Value>,
    paths: [&Path; 2],
    retry: bool,
) -> Vec<String> {
    let [params, folder] = paths;
    let mut words: Vec<String> = config.command.clone();
    if config.task().is_some() {
        let paths = [params, folder].map(|path| path.display().to_string());
        let [params, run] = paths;
        words.extend(["-c".into(), params, "--run".into(), run]);
        words.extend(retry.then(|| "--retry".into()));
        return words;
    }
    // Inactive parameters become empty strings.
    let rounds = config.rounds();
    let names = (0..rounds.len()).flat_map(|round| config.space(round).0.keys().cloned());
    let mut placeholders: BTreeMap<String, String> =
        names.map(|name| (name, String::new())).collect();
    let values = fidelity.iter().chain(&start.params);
    placeholders.extend(values.map(|(name, value)| (name.clone(), plain(value))));
    placeholders.insert("params".into(), params.display().to_string());
    placeholders.insert("run".into(), folder.display().to_string());
    placeholders.insert("number".into(), number.to_string());
    placeholders.insert("seed".into(), start.seed.to_string());
    for word in &mut words[1..] {
        *word = filled(word, &placeholders);
    }
    words
}

/// Replaces each `{name}` in `word` with its value; other braces are kept.
pub fn filled(word: &str, placeholders: &BTreeMap<String, String>) -> String {
    let (mut out, mut rest) = (String::new(), word);
    while let Some((before, after)) = rest.split_once('{') {
        out += before;
        let named =
            after.split_once('}').and_then(|(name, tail)| Some((placeholders.get(name)?, tail)));
        match named {
            Some((value, tail)) => (out, rest) = (out + value, tail),
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out + rest
}

/// Checks that the program of a command can be run in `directory`. Errors: 66.
pub fn check_program(program: &str, directory: &Path) -> Result<()> {
    if !directory.is_dir() {
        return Err(Error::open(directory, "the working directory of the command is missing"));
    }
    let is_file = |path: &PathBuf| path.is_file();
    let found = if program.contains('/') {
        Some(directory.join(program)).filter(is_file)
    } else {
        // Like execvp, skip files that are not executable.
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let all =
            std::env::split_paths(&folders).map(|folder| directory.join(folder).join(program));
        let all: Vec<PathBuf> = all.filter(is_file).collect();
        all.iter().find(|path| is_executable(path)).or(all.first()).cloned()
    };
    let why = match found {
        Some(path) if is_executable(&path) => return Ok(()),
        Some(path) => format!("{} is not executable", path.display()),
        None if program.contains('/') => format!("no such file in {}", directory.display()),
        None => "no such program in PATH".into(),
    };
    Err(Error::open(Path::new(program), format!("{why}; it is the command of the study")))
}

fn is_executable(path: &Path) -> bool {
    access(path, Access::EXEC_OK).is_ok()
}

impl Running {
    /// Starts the command under a supervisor, which sends it `signal` (TERM or USR1) to stop it. Its output is appended
    /// to `output.log` in `folder`. Errors: 73.
    pub fn start(
        words: &[String],
        signal: &str,
        directory: &Path,
        folder: &Path,
        variables: &[(&str, String)],
    ) -> Result<Self> {
        let output = folder.join("output.log");
        let file = OpenOptions::new().append(true).create(true).open(&output);
        let file = file.map_err(|cause| Error::create(&output, cause))?;
        let written = file.metadata().map_err(|cause| Error::io(&output, cause))?.len();
        let copy = file.try_clone().map_err(|cause| Error::create(&output, cause))?;
        // The path of the program is not used, because the file may have been replaced since.
        let mut command = Command::new("/proc/self/exe");
        command.arg(VERB).arg(std::process::id().to_string()).arg(signal).arg(folder).arg("--");
        command.args(words);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.current_dir(directory);
        command.process_group(0).stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = command.spawn();
        let child =
            child.map_err(|cause| Error::failure(format!("cannot start a process: {cause}")))?;
        Ok(Self { child, output, written })
    }

    /// Returns the exit status if the command has exited, 128+n for signal n.
    pub fn ended(&mut self) -> Result<Option<u8>> {
        let status = self.child.try_wait();
        let status = status.map_err(|cause| Error::failure(format!("wait: {cause}")))?;
        Ok(status.map(code))
    }

    /// Asks the command to stop.
    pub fn stop(&self) {
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // USR1 instead of TERM: SLURM may already have sent TERM to all processes, and a second TERM ends the
            // supervisor at once.
            let _ = kill_process(id, Signal::USR1); // the process may have just exited
        }
    }

    /// Returns the last non-empty line of the command's output.
    pub fn last_line(&self) -> Option<String> {
        let file = small::open(&self.output).ok()?;
        let size = file.metadata().ok()?.len().checked_sub(self.written)?;
        let mut end = vec![0; size.min(4096) as usize];
        let from = self.written + size - end.len() as u64;
        file.read_exact_at(&mut end, from).ok()?;
        let text = String::from_utf8_lossy(&end);
        text.lines().rev().find(|line| !line.trim().is_empty()).map(unix::text::line)
    }
}

/// Converts an exit status, 128+n for signal n.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_placeholders_and_keeps_other_braces() {
        let placeholders =
            [("lr", "0.1"), ("decay", "")].map(|(name, x)| (name.to_string(), x.to_string()));
        let placeholders = BTreeMap::from(placeholders);
        assert_eq!(
            filled("--lr={lr} {decay}x{lr} {other}", &placeholders),
            "--lr=0.1 x0.1 {other}"
        );
        assert_eq!(filled("f() { echo {lr}; }", &placeholders), "f() { echo 0.1; }");
        assert_eq!(filled("${HOME} {", &placeholders), "${HOME} {");
    }
}
