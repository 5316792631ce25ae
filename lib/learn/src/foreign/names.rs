//! Maps the tensor names of a weight file to the parameter names of a model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use unix::text::matches;
use unix::{Error, Exit, Result};

/// Maximum number of tensor names, and of problems, listed in a message.
const LISTED: usize = 8;
const LISTED_PROBLEMS: usize = 100;

/// How names in the file map to parameter names of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NameMap {
    /// Rename rules FROM=TO; the first rule that matches a name applies. One `*` in FROM matches any characters and is
    /// replaced by the same characters in TO. Names that no rule matches stay unchanged.
    pub map: Vec<String>,
    /// Name patterns of tensors in the file to ignore.
    pub ignore: Vec<String>,
    /// Name patterns of parameters in the model to keep as initialised, e.g. a new head.
    pub keep: Vec<String>,
    /// Name patterns of tensors, after renaming, that are ignored if the model has no such parameter.
    pub optional: Vec<String>,
    /// Rules PARAMETER=OTHER as in `map`: a parameter of the model that the file lacks is read like the other one.
    pub copy: Vec<String>,
}

/// Name and shape of a tensor.
pub type Named<'a> = (&'a str, &'a [usize]);

impl NameMap {
    /// Returns, for each model parameter, the index of its tensor in the file; None where the model keeps its own
    /// values.
    ///
    /// Errors: 65 when tensors of the file at `path` are missing, unexpected or wrongly shaped; the message lists them.
    /// 2 for an invalid rename rule.
    pub fn pair(
        &self,
        path: &Path,
        given: &[Named],
        wanted: &[Named],
    ) -> Result<Vec<Option<usize>>> {
        let [rules, copies] = [&self.map, &self.copy]
            .map(|rules| rules.iter().map(|rule| parse(rule)).collect::<Result<Vec<_>>>());
        let (rules, copies) = (rules?, copies?);
        let mut names: Vec<Option<String>> = Vec::new();
        let mut places: HashMap<String, usize> = HashMap::new();
        let mut problems = Vec::new();
        for (own, _) in given {
            if self.ignore.iter().any(|pattern| matches(pattern, own)) {
                names.push(None);
                continue;
            }
            let name = rules.iter().find_map(|rule| mapped(*rule, own));
            let name = name.unwrap_or_else(|| (*own).to_string());
            if places.contains_key(&name) {
                problems.push(format!("duplicate: {name}, the second from {own}"));
            } else {
                places.insert(name.clone(), names.len());
            }
            names.push(Some(name));
        }
        let mut pairs = Vec::with_capacity(wanted.len());
        for (name, shape) in wanted {
            if self.keep.iter().any(|pattern| matches(pattern, name)) {
                pairs.push(None);
                continue;
            }
            let of = |name: &str| places.get(name).copied();
            let copied = || copies.iter().find_map(|rule| of(&mapped(*rule, name)?));
            let found = of(name).or_else(copied);
            match found {
                None => problems.push(format!("missing: {name} {shape:?}")),
                Some(at) if given[at].1 != *shape => problems.push(format!(
                    "shape: {name} is {:?} in the file, {shape:?} in the model",
                    given[at].1
                )),
                Some(at) => pairs.push(Some(at)),
            }
        }
        let known: HashSet<&str> = wanted.iter().map(|(name, _)| *name).collect();
        for (name, (own, shape)) in names.iter().zip(given) {
            let Some(name) = name else { continue };
            let is_optional = self.optional.iter().any(|pattern| matches(pattern, name));
            if !is_optional && !known.contains(name.as_str()) {
                let renamed =
                    if name == own { String::new() } else { format!(" ({own} in the file)") };
                problems.push(format!("unexpected: {name} {shape:?}{renamed}"));
            }
        }
        let used = pairs.iter().filter(|pair| pair.is_some()).count();
        if problems.is_empty() && (used > 0 || given.is_empty() || wanted.is_empty()) {
            return Ok(pairs);
        }
        let fitting = fitting_rule(given, wanted);
        let fitting = fitting.filter(|(_, count)| *count > used);
        let hint = fitting.map_or(String::new(), |(rule, count)| {
            format!(" (map {rule} would fit {count} of its {} tensors)", given.len())
        });
        if problems.is_empty() {
            let names: Vec<&str> = given.iter().take(LISTED).map(|(name, _)| *name).collect();
            return Err(Error::data(format!(
                "{}: keep and ignore leave nothing of it{hint}; its tensors are {}{}",
                path.display(),
                names.join(", "),
                if given.len() > LISTED { ", …" } else { "" }
            )));
        }
        let count = problems.len();
        if count > LISTED_PROBLEMS {
            problems.truncate(LISTED_PROBLEMS);
            problems.push(format!("… and {} more", count - LISTED_PROBLEMS));
        }
        let first = format!(
            "{}: the tensors do not match the model; rename them with map (FROM=TO) or skip them with ignore \
             (PATTERN){hint}:",
            path.display()
        );
        Err(Error::list(Exit::Data, first, &problems))
    }
}

/// Returns the rename rule that removes or adds the most common prefix by which names in the file differ from those in
/// the model, and the number of tensors that it matches.
fn fitting_rule(given: &[Named], wanted: &[Named]) -> Option<(String, usize)> {
    let model: HashMap<&str, &[usize]> = wanted.iter().copied().collect();
    let file: HashMap<&str, &[usize]> = given.iter().copied().collect();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut count =
        |names: &[Named], others: &HashMap<&str, &[usize]>, rule: &dyn Fn(&str) -> String| {
            for (name, shape) in names {
                let ends = name.match_indices('.').map(|(at, _)| at + 1);
                for at in ends.filter(|at| others.get(&name[*at..]) == Some(shape)) {
                    *counts.entry(rule(&name[..at])).or_default() += 1;
                }
            }
        };
    count(given, &model, &|prefix| format!("{prefix}*=*"));
    count(wanted, &file, &|prefix| format!("*={prefix}*"));
    counts.into_iter().max_by_key(|(_, count)| *count)
}

fn parse(rule: &str) -> Result<(&str, &str)> {
    let stars = |text: &str| text.matches('*').count();
    let halves = rule.split_once('=');
    halves
        .filter(|(from, to)| stars(from) < 2 && stars(to) <= stars(from) && !from.is_empty())
        .ok_or_else(|| {
            Error::usage(format!("map: {rule} is not FROM=TO with at most one * on each side"))
        })
}

/// Returns the new name if the rule matches.
fn mapped((from, to): (&str, &str), name: &str) -> Option<String> {
    match from.split_once('*') {
        None => (from == name).then(|| to.to_string()),
        Some((head, tail)) => {
            let middle = name.strip_prefix(head)?.strip_suffix(tail)?;
            Some(to.replace('*', middle))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_for_names() {
        assert_eq!(mapped(("module.*", "*"), "module.a.w").as_deref(), Some("a.w"));
        assert_eq!(mapped(("a.*.w", "b.*"), "a.x.y.w").as_deref(), Some("b.x.y"));
        assert_eq!(mapped(("a", "b"), "a").as_deref(), Some("b"));
        assert_eq!(mapped(("a", "b"), "ab"), None);
        // Prefix and suffix of the pattern must not overlap.
        assert_eq!(mapped(("aa*aa", "*"), "aaa"), None);
        for bad in ["a", "=b", "*.*=*", "a=*"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn nothing_is_left_out_without_a_word() {
        let wanted: [Named; 2] = [("bert.a.w", &[2]), ("bert.b.w", &[3])];
        let given: [Named; 2] = [("module.bert.a.w", &[2]), ("module.bert.b.w", &[3])];
        let lost = NameMap {
            ignore: vec!["module.*".into()],
            keep: vec!["bert.*".into()],
            ..NameMap::default()
        };
        let error = |names: &NameMap, given: &[Named]| {
            names.pair(Path::new("x"), given, &wanted).unwrap_err().to_string()
        };
        let text = error(&lost, &given);
        assert!(text.contains("map module.*=* would fit 2 of its 2"), "{text}");
        assert!(text.contains("its tensors are module.bert.a.w, module.bert.b.w"), "{text}");
        let alone: [Named; 2] = [("a.w", &[2]), ("b.w", &[3])];
        let text = error(&NameMap::default(), &alone);
        assert!(text.contains("map *=bert.* would fit 2 of its 2"), "{text}");
    }

    #[test]
    fn two_parameters_read_one_tensor() {
        let names: NameMap =
            serde_json::from_str(r#"{"map": ["a.*=b.*"], "copy": ["c.*=*"]}"#).unwrap();
        let (given, wanted): ([Named; 2], [Named; 3]) =
            ([("a.w", &[2]), ("c.d", &[3])], [("b.w", &[2]), ("c.b.w", &[2]), ("c.d", &[3])]);
        let found = names.pair(Path::new("x"), &given, &wanted).unwrap();
        assert_eq!(found, [Some(0), Some(0), Some(1)]);
    }

    #[test]
    fn a_new_head_is_kept_and_an_old_one_ignored() {
        let text = r#"{"map": ["bert.*=*"], "ignore": ["cls.*"], "keep": ["head.*"]}"#;
        let names: NameMap = serde_json::from_str(text).unwrap();
        let given: [Named; 2] = [("cls.weight", &[9, 4]), ("bert.layer", &[4])];
        let wanted: [Named; 2] = [("head.weight", &[2, 4]), ("layer", &[4])];
        assert_eq!(names.pair(Path::new("x"), &given, &wanted).unwrap(), [None, Some(1)]);
        let error = NameMap::default().pair(Path::new("x"), &given, &wanted).unwrap_err();
        for part in ["missing: head.weight [2, 4]", "missing: layer", "unexpected: cls.weight"] {
            assert!(error.to_string().contains(part), "no {part} in {error}");
        }
    }
}
