//! Rules that map the tensor names of weight files to parameter names.

use super::Architecture;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Prefixes of the names of head tensors.
const HEADS: [&str; 3] = ["classifier", "pre_classifier", "qa_outputs"];
/// A tensor that every encoder has.
const ANCHOR: &str = "embeddings.word_embeddings.weight";
/// The prefixes of encoders.
const PREFIXES: [&str; 3] = ["bert", "roberta", "distilbert"];
/// Prefixes of the names of encoder tensors, after the prefix of the encoder.
const PARTS: [&str; 4] = ["embeddings.", "encoder.", "transformer.", "pooler."];
/// Maximum number of names in a message, and of patterns of ignored tensors.
const MAX_LISTED: usize = 6;
const MAX_IGNORED: usize = 64;

/// The tensors of an encoder and its head in a file.
#[derive(Debug)]
pub(super) struct Names<'a> {
    /// The prefix of the encoder in the model, with a dot.
    own: String,
    /// The prefix of the encoder in the file, which may be empty.
    given: String,
    /// The prefix of head tensors in the file.
    outer: String,
    all: &'a [&'a str],
}

impl<'a> Names<'a> {
    /// Finds the encoder of this architecture among the tensors `all` of a file. Errors: what is wrong, with tensor
    /// names of the file.
    pub fn of(kind: Architecture, prefix: &str, all: &'a [&'a str]) -> Result<Self, String> {
        let own = format!("{prefix}.");
        let prefixes = all.iter().filter_map(|name| name.strip_suffix(ANCHOR));
        let prefixes: Vec<&str> =
            prefixes.filter(|given| given.is_empty() || given.ends_with('.')).collect();
        let first = |names: &[&str]| {
            let more = if names.len() > MAX_LISTED { ", …" } else { "" };
            format!("{}{more}", names[..names.len().min(MAX_LISTED)].join(", "))
        };
        let given = match prefixes[..] {
            [given] => given,
            [] => {
                return Err(format!(
                    "none of its {} tensors is {own}{ANCHOR}, with or without a prefix; they are {}",
                    all.len(),
                    first(all)
                ));
            }
            _ => {
                return Err(format!(
                    "it has several encoders, with the prefixes {}; save one of them alone",
                    first(&prefixes)
                ));
            }
        };
        let last = given.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        if PREFIXES.contains(&last) && last != prefix {
            return Err(format!(
                "its tensors are those of {last}, but model_type in config.json is {}",
                json!(kind)
            ));
        }
        let outer = given.strip_suffix(&own).unwrap_or_default().to_string();
        Ok(Self { own, given: given.into(), outer, all })
    }

    /// Whether a tensor belongs to the encoder.
    pub fn is_of_encoder(&self, name: &str) -> bool {
        let rest = name.strip_prefix(&self.given);
        rest.is_some_and(|rest| {
            PARTS.iter().any(|part| rest.starts_with(part)) && !is_position_ids(rest)
        })
    }

    /// The name that the model gives to this tensor; None if it does not belong to a head.
    pub fn of_head<'b>(&self, name: &'b str) -> Option<&'b str> {
        let rest = name.strip_prefix(&self.outer)?;
        let is_head = |head: &&str| {
            let part = rest.strip_prefix(*head);
            part.is_some_and(|part| part.starts_with('.'))
        };
        HEADS.iter().any(is_head).then_some(rest)
    }

    /// Whether the file has a pooler.
    pub fn has_pooler(&self) -> bool {
        let pooler = format!("{}pooler.", self.given);
        self.all.iter().any(|name| name.starts_with(&pooler))
    }

    /// The section `init.names`. Errors: what is wrong, if the file has too many other tensors.
    pub fn rules(&self, head: bool) -> Result<Value, String> {
        let Self { own, given, outer, all } = self;
        let mut map = Vec::new();
        // Files converted from TensorFlow.
        for (old, new) in [("gamma", "weight"), ("beta", "bias")] {
            if all.iter().any(|name| name.ends_with(&format!(".{old}"))) {
                map.push(format!("{given}*.{old}={own}*.{new}"));
            }
        }
        if !outer.is_empty() {
            map.push(format!("{outer}*=*"));
        } else if given != own {
            let heads = HEADS.iter().filter(|_| head && given.is_empty());
            map.extend(heads.map(|head| format!("{head}.*={head}.*")));
            map.push(format!("{given}*={own}*"));
        }
        let belongs =
            |name: &&&str| self.is_of_encoder(name) || (head && self.of_head(name).is_some());
        let mut ignore: Vec<String> = Vec::new();
        // All prefixes of the names of tensors that are used.
        let used: BTreeSet<&str> =
            all.iter().filter(belongs).flat_map(|name| prefixes(name)).collect();
        for name in all.iter().filter(|name| !belongs(name)) {
            let pattern = match prefixes(name).find(|start| !used.contains(start)) {
                _ if is_position_ids(name) => "*position_ids".to_string(),
                Some(start) if start.len() < name.len() => format!("{start}*"),
                _ => (*name).to_string(),
            };
            if !ignore.contains(&pattern) {
                ignore.push(pattern);
            }
            if ignore.len() > MAX_IGNORED {
                return Err(format!(
                    "it has {} tensors, most of which do not belong to an encoder",
                    all.len()
                ));
            }
        }
        let pooler = format!("{own}pooler.*");
        let mut keep: Vec<String> = Vec::new();
        if !head {
            keep.extend(HEADS.map(|head| format!("{head}.*")));
        }
        // The fusion layer of task joint, which no file has.
        keep.push("fusion.*".into());
        if !self.has_pooler() {
            keep.push(pooler.clone());
        }
        // Optional, because RoBERTa's head has its own dense layer, and mean or max pooling uses no pooler.
        let optional: Vec<String> = self.has_pooler().then_some(pooler).into_iter().collect();
        let copy = ["context.*=*"];
        Ok(json!({"map": map, "ignore": ignore, "keep": keep, "optional": optional, "copy": copy}))
    }
}

/// The beginnings of a dotted name, each with its dot, and the name itself.
fn prefixes(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('.').map(|(at, _)| &name[..=at]).chain([name])
}

/// Whether a tensor is the list 0, 1, 2, ... of the positions.
fn is_position_ids(name: &str) -> bool {
    name.ends_with("position_ids")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(prefix: &str, names: &[&str], head: bool) -> Value {
        Names::of(Architecture::Bert, prefix, names).unwrap().rules(head).unwrap()
    }

    #[test]
    fn rules_of_the_files_that_exist() {
        let old = [
            "bert.embeddings.word_embeddings.weight",
            "bert.embeddings.LayerNorm.gamma",
            "bert.embeddings.LayerNorm.beta",
            "bert.pooler.dense.bias",
            "cls.predictions.bias",
            "cls.seq_relationship.weight",
        ];
        assert_eq!(
            rules("bert", &old, false),
            json!({
                "map": ["bert.*.gamma=bert.*.weight", "bert.*.beta=bert.*.bias"],
                "ignore": ["cls.*"], "keep": ["classifier.*", "pre_classifier.*", "qa_outputs.*", "fusion.*"],
                "optional": ["bert.pooler.*"], "copy": ["context.*=*"],
            })
        );
        let alone = [
            "embeddings.position_ids",
            "embeddings.word_embeddings.weight",
            "embeddings.LayerNorm.weight",
            "encoder.layer.0.x",
        ];
        assert_eq!(
            rules("roberta", &alone, false),
            json!({
                "map": ["*=roberta.*"], "ignore": ["*position_ids"],
                "keep": ["classifier.*", "pre_classifier.*", "qa_outputs.*", "fusion.*", "roberta.pooler.*"],
                "optional": [], "copy": ["context.*=*"],
            })
        );
    }

    #[test]
    fn prefixes_of_wrapped_models_are_removed() {
        let names = [
            "state_dict.model.bert.embeddings.word_embeddings.weight",
            "state_dict.model.classifier.weight",
            "state_dict.metric.total",
            "optimizer_states.0.state.0.exp_avg",
        ];
        let found = rules("bert", &names, true);
        assert_eq!(found["map"], json!(["state_dict.model.*=*"]));
        assert_eq!(found["ignore"], json!(["state_dict.metric.*", "optimizer_states.*"]));
        assert_eq!(rules("bert", &names, false)["ignore"][0], "state_dict.model.classifier.*");
        // A sentence encoder, without the prefix of its kind.
        let names = ["0.auto_model.embeddings.word_embeddings.weight", "2.linear.weight"];
        let found = rules("bert", &names, false);
        assert_eq!(
            (&found["map"], &found["ignore"]),
            (&json!(["0.auto_model.*=bert.*"]), &json!(["2.*"]))
        );
    }

    #[test]
    fn files_without_one_such_encoder_are_refused_with_their_names() {
        let error = |names: &[&str]| Names::of(Architecture::Bert, "bert", names).unwrap_err();
        assert!(error(&["a.b", "c"]).contains("they are a.b, c"));
        let of = |prefix: &str| format!("{prefix}embeddings.word_embeddings.weight");
        let two = [of("a.bert."), of("b.bert.")];
        assert!(
            error(&two.each_ref().map(String::as_str))
                .contains("with the prefixes a.bert., b.bert.")
        );
        assert!(error(&[&of("roberta.")]).contains("those of roberta"));
    }
}
