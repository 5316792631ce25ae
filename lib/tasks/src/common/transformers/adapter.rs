//! LoRA adapters in folders of PEFT.

use super::export::{Contents, text};
use learn::adapt::{Lora, Targets, peft};
use learn::foreign;
use learn::init::InitFrom;
use learn::trained::Parts;
use std::fs;
use std::path::Path;
use unix::{Error, Result};

/// The configuration of the adapter of a checkpoint. Errors: 2 when it has none.
pub(crate) fn required<'a>(parts: &Parts, lora: Option<&'a Lora>) -> Result<&'a Lora> {
    lora.ok_or_else(|| {
        let at = parts.origin.checkpoint.display();
        Error::usage(format!("{at}: it has no adapter, because model.lora is null"))
    })
}

/// The adapter of a checkpoint: its trained parameters, and the configuration of the adapter. `names` are the parameters of the
/// model, `task` is PEFT's name of the task, and `saved` are modules that are trained completely.
pub(crate) fn contents<'a>(
    parts: &Parts,
    lora: &Lora,
    names: impl IntoIterator<Item = &'a str>,
    (task, saved): (&str, &[&str]),
) -> Result<Contents> {
    let trained = &parts.weights;
    let adapted: Vec<&str> =
        trained.iter().filter_map(|(name, _)| name.strip_suffix(".lora_A.weight")).collect();
    // A target that also names another layer, such as that of a head, would let PEFT adapt that one too.
    let is_ambiguous = names.into_iter().any(|name| {
        let module = name.strip_suffix(".weight").unwrap_or_default();
        !lora.targets_of(module).is_empty() && !adapted.contains(&module)
    });
    let targets = match &lora.targets {
        Targets::Names(_) if !is_ambiguous => lora.targets.clone(),
        // PEFT fails on any other module that an expression matches, such as an activation.
        _ => Targets::Names(adapted.into_iter().map(String::from).collect()),
    };
    let config = peft::config(lora, &targets, task, &base(parts)?, saved);
    let prefixed = |name: &String| format!("{}{name}", peft::PREFIX);
    Ok(Contents {
        tensors: trained.iter().map(|(name, own)| (prefixed(name), own.clone())).collect(),
        name: Some(peft::WEIGHTS),
        files: vec![(peft::CONFIG, text(&config)?)],
    })
}

/// The folder of the pretrained model, if it is one of transformers; otherwise empty.
fn base(parts: &Parts) -> Result<String> {
    let init: Option<InitFrom> = parts.section("init")?;
    let folder = init.as_ref().and_then(|init| init.from.parent());
    let folder = folder.filter(|folder| folder.join("config.json").exists());
    let folder = folder.and_then(|folder| fs::canonicalize(folder).ok());
    Ok(folder.map(|folder| folder.display().to_string()).unwrap_or_default())
}

/// Checks that the adapter in the file `path` changes only layers of the model, by `is_layer`, and only those that `lora`
/// names. `part` is the name of the model, for messages. Errors: 66, 65.
pub(crate) fn require(
    lora: &Lora,
    path: &Path,
    part: &str,
    is_layer: impl Fn(&str) -> bool,
) -> Result<()> {
    let bad = |what: String| Error::data(format!("{}: {what}", path.display()));
    let file = foreign::open(path)?;
    let names = file.tensors().iter().map(|entry| entry.name.as_str());
    let mut has_layers = false;
    for name in names.filter(|name| name.contains(".lora_")) {
        let module = name.strip_prefix(peft::PREFIX).unwrap_or(name);
        let module = module.split(".lora_").next().unwrap_or(module);
        if !is_layer(module) || lora.targets_of(module).is_empty() {
            return Err(bad(format!(
                "{module} is adapted, but is not a target in adapter_config.json or not a layer of {part}"
            )));
        }
        has_layers = true;
    }
    match has_layers {
        true => Ok(()),
        false => Err(bad(format!("it has no tensors {}NAME.lora_A.weight", peft::PREFIX))),
    }
}
