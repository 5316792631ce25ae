//! Reads a pipeline file and reports every violation in it.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PipelineStep, SUMMARY, inside, paths};
use crate::config::{Violations, nearest};

/// The placeholder for the folder of the pipeline.
const FOLDER: &str = "{folder}";

/// The content of a pipeline file.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PipelineFile {
    /// Folder of the pipeline, with a subfolder for each step; `{folder}` in commands stands for it.
    folder: String,
    /// The steps, in an order in which they can run.
    steps: Vec<StepEntry>,
}

/// One step.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct StepEntry {
    /// Name, unique in the pipeline; also that of its subfolder and its job.
    name: String,
    /// Command, split into words as by a shell, without variables and patterns.
    run: String,
    /// Names of the steps that must be up to date first. Null: the step before it.
    #[serde(default)]
    after: Option<Vec<String>>,
    /// Options of sbatch for the job of this step.
    #[serde(default)]
    sbatch: String,
    /// JSON file that the command writes, for the summary.
    #[serde(default)]
    result: Option<String>,
}

/// Returns the folder of the pipeline without trailing slashes.
pub(super) fn folder_of(file: &PipelineFile) -> &str {
    let folder = file.folder.trim_end_matches('/');
    if folder.is_empty() { &file.folder } else { folder }
}

/// Returns `; did you mean WORD?`, or an empty string.
pub(super) fn hint<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(word, known).map_or(String::new(), |near| format!("; did you mean {near}?"))
}

/// Returns the steps, as far as they are valid, and every violation.
pub(super) fn resolve(file: &PipelineFile) -> (Vec<PipelineStep>, Violations) {
    let mut violations = Violations::new();
    if file.folder.is_empty() || file.folder.contains(['%', '\\']) {
        let why = "must name a folder, without % and \\, which SLURM replaces in output paths";
        violations.push(("folder".into(), why.into()));
    }
    if let Some(character) = control(&file.folder) {
        violations.push(("folder".into(), format!("has the control character {character}")));
    }
    if file.steps.is_empty() {
        violations.push(("steps".into(), "needs at least one step".into()));
    }
    let mut steps: Vec<PipelineStep> = Vec::new();
    for at in 0..file.steps.len() {
        let step = Resolver { file, at, steps: &steps, violations: &mut violations }.step();
        steps.push(step);
    }
    (steps, violations)
}

/// Returns the first control character, escaped. Line feeds and tabs count as blanks.
fn control(text: &str) -> Option<String> {
    let found = text.chars().find(|c| c.is_control() && !"\n\t".contains(*c));
    found.map(|character| character.escape_default().to_string())
}

/// Resolves the step with index `at`, given the earlier steps.
struct Resolver<'a> {
    file: &'a PipelineFile,
    at: usize,
    steps: &'a [PipelineStep],
    violations: &'a mut Violations,
}

impl Resolver<'_> {
    fn wrong(&mut self, field: &str, what: impl Into<String>) {
        self.violations.push((format!("steps.{}.{field}", self.at), what.into()));
    }

    fn earlier(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.name.as_str())
    }

    fn step(mut self) -> PipelineStep {
        let entry = &self.file.steps[self.at];
        self.name(&entry.name);
        let after = self.after(entry);
        let words = self.words("run", &entry.run);
        if words.is_empty() {
            self.wrong("run", "needs a program and its arguments");
        }
        // If a name in `after` is wrong, do not report it again here.
        if let Some(after) = &after {
            self.references(&entry.name, &words, after);
        }
        let sbatch = self.words("sbatch", &entry.sbatch);
        if sbatch.iter().any(|word| word.contains([' ', '\t', '\n', '*', '?', '['])) {
            self.wrong("sbatch", "must not contain quoted blanks, nor * ? [");
        }
        let result = entry.result.as_ref().map(|path| self.expand(path));
        if let Some(path) = &result
            && !paths(&words).any(|named| named == path)
        {
            self.wrong("result", format!("the command of {} does not name {path}", entry.name));
        }
        let name = entry.name.clone();
        let after = after.unwrap_or_default();
        PipelineStep { name, words, after, sbatch, result: result.map(PathBuf::from) }
    }

    fn name(&mut self, name: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let is_name = name.bytes().all(is_plain)
            && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
            && name != SUMMARY;
        if !is_name {
            self.wrong("name", "must be the name of a folder: letters, digits and . _ -");
        }
        if self.earlier().any(|earlier| earlier == name) {
            self.wrong("name", format!("{name} is also the name of an earlier step"));
        }
    }

    /// Returns the indices of the steps that must run first; `None` if a name is wrong.
    fn after(&mut self, entry: &StepEntry) -> Option<Vec<usize>> {
        let Some(names) = &entry.after else {
            return Some(self.at.checked_sub(1).into_iter().collect());
        };
        let mut after = Vec::new();
        for name in names {
            let found = self.earlier().position(|earlier| earlier == name);
            match found {
                Some(at) => after.push(at),
                None => {
                    let hint = hint(name, self.earlier());
                    self.wrong("after", format!("{name} is not the name of an earlier step{hint}"));
                }
            }
        }
        let all_found = after.len() == names.len();
        after.sort_unstable();
        after.dedup();
        all_found.then_some(after)
    }

    fn expand(&self, text: &str) -> String {
        text.replace(FOLDER, folder_of(self.file))
    }

    fn words(&mut self, field: &str, text: &str) -> Vec<String> {
        let Some(words) = shlex::split(text) else {
            self.wrong(field, "has a quote that is not closed");
            return Vec::new();
        };
        // A control character would be printed to the terminal, and cannot be seen in the file.
        if let Some(character) = control(text) {
            self.wrong(field, format!("has the control character {character}"));
        }
        for word in &words {
            let placeholder = word.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
            if let Some((inside, _)) = placeholder.filter(|(inside, _)| *inside != "folder")
                && nearest(inside, ["folder"]).is_some()
            {
                self.wrong(field, format!("{{{inside}}} is not replaced; did you mean {FOLDER}?"));
            }
        }
        words.iter().map(|word| self.expand(word)).collect()
    }

    /// Checks that every path below the folder of the pipeline exists, or leads into the folder of this step or of a
    /// step that it depends on, directly or indirectly.
    fn references(&mut self, name: &str, words: &[String], after: &[usize]) {
        let folder = PathBuf::from(folder_of(self.file));
        let mut before = after.to_vec();
        let mut next = 0;
        while next < before.len() {
            before.extend(self.steps[before[next]].after.iter().copied());
            next += 1;
        }
        for path in paths(words) {
            let Some(entry) = inside(&folder, path) else { continue };
            let is_step = self.file.steps.iter().any(|step| step.name == entry);
            if entry.is_empty() || entry == name || !is_step && folder.join(&entry).exists() {
                continue;
            }
            let why = match self.earlier().position(|earlier| earlier == entry) {
                Some(at) if before.contains(&at) => continue,
                Some(_) => format!("but does not come after {entry}; add {entry} to after"),
                None if is_step => {
                    format!("which the later step {entry} makes; move {entry} before it")
                }
                None => {
                    let near = nearest(&entry, self.earlier()).map(|near| folder.join(near));
                    let near = near.map(|near| format!("; did you mean {}?", near.display()));
                    let own =
                        || format!("; write outputs of {name} to {}", folder.join(name).display());
                    format!("which no earlier step makes{}", near.unwrap_or_else(own))
                }
            };
            self.wrong("run", format!("step {name} names {path}, {why}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Pipeline, quoted};
    use crate::Result;

    fn load(text: &str) -> Result<Pipeline> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pipeline.yaml");
        std::fs::write(&file, text).unwrap();
        Pipeline::load(&file)
    }

    #[test]
    fn steps_follow_each_other_unless_they_say_otherwise() {
        let pipeline = load(
            "folder: no-such/runs/
steps:
  - name: a
    run: make 'two words' -o {folder}/a
  - name: b
    run: use {folder}/a -s x={folder}/a/y
    sbatch: --nodes=2 -t 5
  - {name: c, after: [], run: other}
  - name: d
    after: [b, c]
    run: use {folder}/a --to {folder}/d/x.json
    result: '{folder}/d/x.json'
",
        )
        .unwrap();
        let after: Vec<&[usize]> = pipeline.steps.iter().map(|step| &step.after[..]).collect();
        assert_eq!(after, [&[][..], &[0], &[], &[1, 2]]);
        assert_eq!(pipeline.steps[0].words, ["make", "two words", "-o", "no-such/runs/a"]);
        assert_eq!(pipeline.steps[1].words[3], "x=no-such/runs/a/y");
        assert_eq!(pipeline.steps[1].sbatch, ["--nodes=2", "-t", "5"]);
        assert_eq!(quoted(["a b", "c"]).unwrap(), "'a b' c");
        let keys = pipeline.keys().unwrap();
        assert_eq!((keys.len(), keys[0].len()), (4, 64));
    }

    #[test]
    fn every_violation_is_reported_with_a_hint() {
        let error = load(
            "folder: 'x%j'
steps:
  - {name: a/b, run: ''}
  - {name: latents, run: 'use {folderr}/a', aftr: []}
  - {name: latents, run: \"it's\"}
  - {name: last, after: [latent], run: 'use {folder}/latent', result: other.json, sbatch: '--comment=*'}
  - {name: late, run: 'use d={folder}/end {folder}/latent'}
  - {name: end, after: [], run: 'use {folder}/late'}
  - {name: screen, run: \"clear '\\e[2J'\"}
",
        )
        .unwrap_err()
        .to_string();
        for part in [
            "folder: must name a folder, without %",
            "steps.0.name: must be the name of a folder",
            "steps.0.run: needs a program",
            "steps.1.run: {folderr} is not replaced; did you mean {folder}?",
            "steps.1.aftr: unknown key; did you mean after?",
            "steps.2.name: latents is also the name",
            "steps.2.run: has a quote",
            "steps.3.after: latent is not the name of an earlier step; did you mean latents?",
            "steps.3.sbatch: must not contain quoted blanks",
            "steps.4.run: step late names x%j/latent, which no earlier step makes; did you mean x%j/latents?",
            "steps.3.result: the command of last does not name other.json",
            "which the later step end makes; move end before it",
            "steps.6.run: has the control character \\u{1b}",
            "but does not come after late; add late to after",
        ] {
            assert!(error.contains(part), "{part}\n{error}");
        }
    }
}
