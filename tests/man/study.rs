//! longhaul-study(5) has every key of study.yaml with its default, and no other.

use super::page;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use study::StudyConfig;
use unix::config::{Key, keys};

/// Section of the page, what the key belongs to, and its name: `("Samplers", "tpe", "startup")`.
type Place = (String, String, String);

fn place(section: &str, of: &str, name: &str) -> Place {
    (section.into(), of.into(), name.into())
}

/// Where the page must describe a key; nowhere, if it describes the same key elsewhere.
fn expected(key: &Key) -> Vec<Place> {
    let sections = [("space.NAME", "Space"), ("sampler", "Samplers"), ("pruner", "Pruners")];
    let tagged = sections.iter().find_map(|(path, section)| {
        let (kind, name) = key.path.strip_prefix(path)?.strip_prefix('[')?.split_once("].")?;
        Some((section, kind, name))
    });
    match tagged {
        // A pruner in a pruner is one like any other.
        Some((_, _, name)) if name.contains('.') => Vec::new(),
        Some((section, kind, name)) => vec![place(section, kind, name)],
        None => match key.path.split('.').collect::<Vec<_>>()[..] {
            ["space", "NAME", "kind"] | ["sampler" | "pruner", "kind"] => {
                let words = key.takes.strip_prefix("one of ").unwrap_or_default().split(", ");
                let section = sections.iter().find(|(path, _)| key.path.starts_with(path));
                let section = section.expect("a section").1;
                let own = key.path.strip_suffix(".kind").filter(|own| !own.contains('.'));
                let own = own.map(|own| place("KEYS", own, own));
                words.map(|kind| place(section, kind, "kind")).chain(own).collect()
            }
            [name] => vec![place("KEYS", name, name)],
            ["rounds[]", name] if !name.contains('[') => vec![place("KEYS", "rounds", name)],
            ["rounds[]", "narrow", name] => vec![place("KEYS", "rounds", name)],
            ["rounds[]", ..] => Vec::new(),
            _ => panic!("no section of the page is for {}", key.path),
        },
    }
}

/// The keys of the page, each with the text up to the next one.
fn documented(page: &str) -> BTreeMap<Place, String> {
    let (_, keys) = page.split_once("\n.Sh KEYS\n").unwrap();
    let keys = keys.split("\n.Sh ").next().unwrap();
    let mut found: BTreeMap<Place, String> = BTreeMap::new();
    let (mut section, mut items, mut current) = ("KEYS", Vec::new(), Vec::new());
    for line in keys.lines() {
        let names = |text: &str| -> Vec<String> {
            let words = text.split([' ', ',', '{', '}', ':']).filter(|word| !word.is_empty());
            let is_name = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            words.filter(is_name).map(String::from).collect()
        };
        if let Some(heading) = line.strip_prefix(".Ss ") {
            (section, items, current) = (heading, Vec::new(), Vec::new());
        } else if line == ".El" {
            // What follows a list of kinds is about all of them.
            items = found.keys().filter(|key| key.0 == section).map(|key| key.1.clone()).collect();
            items.dedup();
        } else if let Some(head) = line.strip_prefix(".It Ic ") {
            // `{kind: int, low, high}`, `median , percentile` or `name`.
            let all = names(head);
            let (kinds, keys) = match all.split_first() {
                Some((kind, rest)) if kind == "kind" => (rest[..1].to_vec(), rest[1..].to_vec()),
                _ => (all.clone(), Vec::new()),
            };
            let own =
                |kind: &String| place(section, kind, if section == "KEYS" { kind } else { "kind" });
            current = kinds.iter().map(own).collect();
            current.extend(
                kinds.iter().flat_map(|kind| keys.iter().map(|key| place(section, kind, key))),
            );
            items = kinds;
        } else if let Some(words) = line.strip_prefix(".Ic ") {
            let name = words.split([' ', ':', ',']).next().unwrap_or_default();
            let several = if words.contains(':') { vec![name.to_string()] } else { names(words) };
            let of = |name: &String| {
                items.iter().map(|item| place(section, item, name)).collect::<Vec<_>>()
            };
            current = several.iter().flat_map(of).collect();
        }
        for key in &current {
            let text = found.entry(key.clone()).or_default();
            *text += line;
            *text += "\n";
        }
    }
    found
}

#[test]
fn longhaul_study_5_has_every_key_with_its_default() {
    let page = page("longhaul-study.5");
    let mut documented = documented(&page);
    let mut known = BTreeSet::new();
    let mut faults = Vec::new();
    for key in keys::<StudyConfig>() {
        for place in expected(&key) {
            let Some(text) = documented.get(&place) else {
                faults.push(format!("{} is missing: {place:?}", key.path));
                continue;
            };
            known.insert(place);
            let default = key
                .default
                .as_ref()
                .filter(|value| value.is_number() || **value == Value::Bool(true));
            // 1.0 is written as 1.
            let default =
                default.map(|value| value.as_f64().map_or(value.to_string(), |x| x.to_string()));
            if default.is_some_and(|default| !text.contains(&format!("default {default}"))) {
                faults.push(format!("{}: the default is not {:?}: {text}", key.path, key.default));
            }
        }
    }
    documented.retain(|place, _| !known.contains(place));
    faults.extend(documented.keys().map(|place| format!("there is no such key: {place:?}")));
    assert!(faults.is_empty(), "man/longhaul-study.5:\n{}", faults.join("\n"));
}
