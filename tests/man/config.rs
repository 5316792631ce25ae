//! longhaul-config(5) has every key, and its configurations load.

use super::{blocks, page};
use learn::task::load_config;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use tasks::language::SftConfig;
use tasks::multimodal::CycleVaeConfig;
use tasks::pde::codec::{CodecConfig, CodecTask};
use tasks::pde::corrector::CorrectorConfig;
use tasks::pde::critic::CriticConfig;
use tasks::pde::distill::DistillConfig;
use tasks::pde::operator::{OperatorConfig, OperatorTask};
use tasks::regression::{RegressionConfig, RegressionTask};
use tasks::text::{ClassifyConfig, JointConfig, SpanConfig};
use unix::config::{Key, keys};

/// A key as documented on the page: `.It Cm PATH No (TAKES[, in UNIT]; required|default VALUE)`.
struct Documented<'a> {
    section: &'a str,
    path: &'a str,
    takes: String,
    absent: &'a str,
}

fn documented(page: &str) -> Vec<Documented<'_>> {
    let mut section = "";
    let mut found = Vec::new();
    for line in page.lines() {
        if let Some(heading) = line.strip_prefix(".Sh ") {
            section = heading;
        } else if let Some((path, says)) =
            line.strip_prefix(".It Cm ").and_then(|rest| rest.split_once(" No ("))
        {
            let says = says.strip_suffix(')').and_then(|says| says.rsplit_once("; "));
            let (takes, absent) = says.unwrap_or_else(|| panic!("not of the form: {line}"));
            let takes = takes.replace("\\(>=", "≥").replace("\\(<=", "≤");
            found.push(Documented { section, path, takes, absent });
        }
    }
    found
}

/// Differences between a key and its documentation.
fn compare(key: &Key, page: &Documented) -> Vec<String> {
    let mut faults = Vec::new();
    let unit = page.takes.strip_prefix(&key.takes);
    if !unit.is_some_and(|unit| unit.is_empty() || unit.starts_with(", in ")) {
        faults.push(format!("{} takes {}, the page says {}", key.path, key.takes, page.takes));
    }
    let default = page.absent.strip_prefix("default ").map(value_of);
    let expected = key.default.clone().unwrap_or(Value::Null);
    let right = match (&default, key.required) {
        (None, required) => required && page.absent == "required",
        (Some(stdout), required) => !required && is_same(stdout, &expected),
    };
    if !right {
        let is = if key.required { "required".into() } else { format!("default {expected}") };
        faults.push(format!("{}: {is}, the page says {}", key.path, page.absent));
    }
    faults
}

fn value_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// 0 is the same as 0.0.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a.as_array(), b.as_array()) {
        (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        _ => a == b || a.is_number() && a.as_f64() == b.as_f64(),
    }
}

#[test]
fn longhaul_config_5_has_every_key_with_type_and_default() {
    let page = page("longhaul-config.5");
    let documented = documented(&page);
    let tasks = [
        ("CODEC", keys::<CodecConfig>()),
        ("OPERATOR", keys::<OperatorConfig>()),
        ("CORRECTOR", keys::<CorrectorConfig>()),
        ("DISTILL", keys::<DistillConfig>()),
        ("CRITIC", keys::<CriticConfig>()),
        ("REGRESSION", keys::<RegressionConfig>()),
        ("CLASSIFY", keys::<ClassifyConfig>()),
        ("SPAN", keys::<SpanConfig>()),
        ("JOINT", keys::<JointConfig>()),
        ("CYCLE-VAE", keys::<CycleVaeConfig>()),
        ("SFT", keys::<SftConfig>()),
    ];
    let mut faults = Vec::new();
    for (name, keys) in &tasks {
        let own = format!("KEYS OF TASK {name}");
        let has = |prefix| keys.iter().any(|key| key.path.starts_with(prefix));
        let [has_backbone, has_encoder] = ["model.backbone", "model.encoder."].map(has);
        let of_task = || {
            documented.iter().filter(|d| match d.section {
                "KEYS OF ALL TASKS" => true,
                "KEYS OF BACKBONES" => has_backbone,
                "KEYS OF TASKS OF TEXTS" => has_encoder,
                section => section == own,
            })
        };
        for key in keys {
            let all: Vec<&Documented> = of_task().filter(|d| d.path == key.path).collect();
            match all.as_slice() {
                [one] => faults.extend(compare(key, one)),
                [] => faults.push(format!("{name}: {} is missing", key.path)),
                _ => faults.push(format!("{name}: {} is there {} times", key.path, all.len())),
            }
        }
        let known: BTreeSet<&str> = keys.iter().map(|key| key.path.as_str()).collect();
        let unknown = of_task().filter(|d| !known.contains(d.path));
        faults.extend(unknown.map(|d| format!("{name}: there is no key {}", d.path)));
    }
    assert!(faults.is_empty(), "man/longhaul-config.5:\n{}", faults.join("\n"));
}

/// The keys of another program in a section, and what the section says about each.
fn rows<'a>(page: &'a str, section: &str) -> Vec<(&'a str, &'a str)> {
    let (_, list) = page.split_once(&format!("\n.Sh {section}\n")).unwrap();
    let rows = list.split("\n.El\n").next().unwrap().split("\n.It ").skip(1);
    rows.filter_map(|row| row.split_once(" Ta ").or_else(|| row.split_once('\n'))).collect()
}

/// Every key of another program has a row, and every key that a row names exists.
#[test]
fn longhaul_config_5_translates_the_keys_of_scripts() {
    const SCRIPTS: &str = "dataset.name input_dim target_dim train_split normalize time_limit checkpoint.* mem_budget seed \
        batch_size total_updates updates_per_epoch checkpoint_every_updates checkpoint_save_rate eval_fraction amp \
        precision bfloat16 float16 compile compile_mode compile_fullgraph num_workers persistent_workers model.criterion \
        model.num_layers model.dropout optimizer.name optimizer.learning_rate optimizer.betas optimizer.momentum \
        optimizer.weight_decay max_grad_norm SequentialLR LinearLR CosineAnnealingLR num_updates start_factor wandb.*";
    const LGDLM: &str = "data.token_dir data.latent_dir data.data_dir data.data_files data.load_tokens use_preprocessed \
        data.max_samples data.max_val_samples data.num_workers data.initial_scan_limit data.val_ratio model.type \
        ~diffusion_process use_multimodal model.hidden_size n_blocks model.cond_dim model.n_heads model.max_seq_len \
        model.dropout model.num_residual_streams model.qk_rmsnorm model.latent_dim latent_beta_min latent_beta_max \
        model.cluster_size model.latent_timesteps model.latent_beta_schedule model.latent_parameterization \
        model.use_stub_if_no_mmdit training.seed training.dtype training.train_batch_size training.eval_batch_size \
        training.num_train_steps training.gradient_accumulation_steps training.lr_schedule warmup_steps loss.loss_type \
        unconditional l2t t2l sequential random loss.latent_loss_weight loss.latent_t_mode loss.cycle_latent_t_min t_max \
        loss.cycle_text_weight loss.cycle_latent_weight ~_warmup_steps ~_ramp_steps loss.cycle_latent_sampling \
        loss.cycle_stop_grad_latent logging.run_name log_dir logging.log_every logging.save_every optimizer.name \
        optimizer.lr optimizer.weight_decay optimizer.beta1 beta2 eps optimizer.grad_clip_norm tokenizer.path \
        local_files_only tokenizer.vocab_size mask_token_id pad_token_id";
    const TRL: &str = "model_name load_in_4bit lora_alpha target_modules gradient_checkpointing max_seq_length packing \
        assistant_only_loss train_on_responses_only per_device_train_batch_size gradient_accumulation_steps max_steps \
        num_train_epochs learning_rate weight_decay lr_scheduler_type warmup_ratio optim max_grad_norm bf16 fp16 seed \
        save_steps save_total_limit resume_from_checkpoint report_to save_pretrained generate";
    let page = page("longhaul-config.5");
    for (section, all, known) in [
        ("MIGRATING FROM PYTORCH SCRIPTS", SCRIPTS, keys::<RegressionConfig>()),
        ("MIGRATING FROM LGDLM", LGDLM, keys::<CycleVaeConfig>()),
        ("MIGRATING FROM TRL AND UNSLOTH", TRL, keys::<SftConfig>()),
    ] {
        let rows = rows(&page, section);
        let is_missing = |key: &&str| !rows.iter().any(|(theirs, _)| theirs.contains(*key));
        let missing: Vec<&str> = all.split_whitespace().filter(is_missing).collect();
        assert!(missing.is_empty(), "{section}: {missing:?}");
        for (theirs, ours) in rows {
            let sections = ["training.", "optimizer.", "loss.", "checkpoint.", "data.", "model."];
            let is_key = |word: &&str| sections.iter().any(|section| word.starts_with(section));
            for path in ours.split_whitespace().filter(is_key) {
                let path = path.trim_end_matches([',', ':']);
                let exists = known.iter().any(|key| key.path.starts_with(path));
                assert!(exists, "{section}, {theirs}: there is no key {path}");
            }
        }
    }
}

#[test]
fn the_configurations_in_longhaul_config_5_load() {
    let page = page("longhaul-config.5");
    let [codec, operator, steady] = blocks(&page, "EXAMPLES")[..] else {
        panic!("one example for each task")
    };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, yaml: &str| {
        let file = folder.path().join(name);
        fs::write(&file, yaml).unwrap();
        vec![file]
    };
    let codec = load_config::<CodecTask>(&write("codec.yaml", codec), &[], &|_| None);
    let operator = load_config::<OperatorTask>(&write("operator.yaml", operator), &[], &|_| None);
    let steady = load_config::<RegressionTask>(&write("steady.yaml", steady), &[], &|_| None);
    let faults: Vec<String> = [codec.err(), operator.err(), steady.err()]
        .iter()
        .flatten()
        .map(ToString::to_string)
        .collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
