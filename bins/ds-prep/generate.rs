//! `ds-prep gen`: solves an equation, or writes synthetic texts or pages.

use super::in_pool;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use data::fields::generate::{Equation, Generation};
use data::fields::list::FileSummary;
use data::images::headers::{self, Pages, Preset};
use data::text::criteria::{
    COLUMNS_YAML, Criteria, Difficulty, JOINT_YAML, SPANS_YAML, SYMPTOM_COUNT,
};
use data::text::dialogues::{self, Answers, Dialogues};
use data::text::sentences::{Language, Sentences};
use serde_json::json;
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::progress::Progress;
use unix::signal::Signals;
use unix::{Error, Exit, Result};

#[derive(clap::Args)]
pub struct Gen {
    /// Equation, see longhaul-files(5); `criteria` for synthetic posts with sentences annotated for symptoms; `sentences`
    /// for synthetic sentences with vectors of their meaning; `dialogues` for synthetic questions and answers; or `headers` for
    /// synthetic headers of well logs, as images with their text
    subject: Generator,
    /// Values of the parameter of the equation, e.g. 0.001,0.01,0.1; required for equations
    #[arg(long, value_delimiter = ',', value_name = "VALUE")]
    #[arg(allow_negative_numbers = true)]
    parameter: Vec<f64>,
    /// Value of another constant of the equation; may be given more than once
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_constant)]
    constant: Vec<(String, f64)>,
    /// Trajectories per file, or number of sentences, dialogues or pages
    #[arg(long, value_name = "NUMBER")]
    samples: usize,
    /// Seed of the initial states, of the texts or of the pages
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Cells along each axis; default: see longhaul-files(5)
    #[arg(long)]
    grid: Option<usize>,
    /// Frames, including the initial state
    #[arg(long)]
    frames: Option<usize>,
    /// Time of the last frame
    #[arg(long, value_name = "TIME")]
    end: Option<f64>,
    /// Index of the first trajectory or page, to generate further ones with the same seed
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    first: u64,
    /// For criteria: how strongly the labels depend on word order; for dialogues: how long questions are [default: medium]
    #[arg(long)]
    difficulty: Option<Difficulty>,
    /// Positive sentences for each negative one
    #[arg(long, default_value_t = 1.0, value_name = "RATIO")]
    imbalance: f64,
    /// Fraction of sentences with a wrong label
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION")]
    noise: f64,
    /// Most annotated sentences of a post, each of another symptom
    #[arg(long, default_value_t = 3, value_name = "NUMBER",
          value_parser = clap::value_parser!(u64).range(1..=SYMPTOM_COUNT as u64))]
    per_post: u64,
    /// For sentences: the number of words and meanings
    #[arg(long, default_value_t)]
    language: Language,
    /// Number of random test meanings; none of them occurs in training
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    test: usize,
    /// Number of sentences with a vector; of the others, half are texts alone, and half vectors alone [default: all]
    #[arg(long, value_name = "NUMBER")]
    paired: Option<usize>,
    /// For dialogues: how answers are written [default: plain]
    #[arg(long, value_name = "FORM")]
    answers: Option<Answers>,
    /// For headers: the appearance of pages
    #[arg(long, default_value_t)]
    preset: Preset,
    /// For headers: the smallest and the largest number of rows of a page, each from 1 to 10
    #[arg(long, value_name = "MIN..MAX", default_value_t)]
    rows: headers::Options,
    /// Number of threads, at most 1024; default: one per processor. Results do not depend on it
    #[arg(long, value_parser = unix::cli::threads)]
    threads: Option<usize>,
    /// Output folder; must not contain the files yet
    #[arg(short = 'o', long = "output", value_name = "FOLDER")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

fn parse_constant(text: &str) -> Result<(String, f64), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
    let (name, value) = parts.ok_or("expected NAME=NUMBER, e.g. Rho=2")?;
    Ok((name.into(), value))
}

/// The data that can be generated.
#[derive(Clone, Copy, PartialEq)]
enum Generator {
    Equation(Equation),
    Criteria,
    Sentences,
    Dialogues,
    Headers,
}

impl ValueEnum for Generator {
    fn value_variants<'a>() -> &'a [Self] {
        static ALL: LazyLock<Vec<Generator>> = LazyLock::new(|| {
            let equations = Equation::value_variants().iter().copied().map(Generator::Equation);
            let texts = [Generator::Criteria, Generator::Sentences, Generator::Dialogues];
            equations.chain(texts).chain([Generator::Headers]).collect()
        });
        &ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::Equation(equation) => equation.to_possible_value(),
            Self::Criteria => Some(
                PossibleValue::new("criteria")
                    .help("synthetic posts with sentences annotated for symptoms"),
            ),
            Self::Sentences => Some(
                PossibleValue::new("sentences")
                    .help("synthetic sentences with vectors of their meaning"),
            ),
            Self::Dialogues => {
                Some(PossibleValue::new("dialogues").help("synthetic questions and answers"))
            }
            Self::Headers => Some(
                PossibleValue::new("headers")
                    .help("synthetic headers of well logs, as images with their text"),
            ),
        }
    }
}

pub fn run(given: &Given<Gen>) -> Result<Exit> {
    match given.args.subject {
        Generator::Equation(equation) => {
            let own = [
                "parameter",
                "constant",
                "samples",
                "seed",
                "grid",
                "frames",
                "end",
                "first",
                "threads",
                "output",
                "json",
            ];
            given.require_only(&own, "no effect on equations")?;
            fields(&given.args, equation)
        }
        Generator::Criteria => {
            let own = [
                "samples",
                "seed",
                "difficulty",
                "imbalance",
                "noise",
                "per-post",
                "output",
                "json",
            ];
            given.require_only(&own, "no effect on `gen criteria`")?;
            texts(&given.args)
        }
        Generator::Sentences => {
            let own = ["samples", "seed", "language", "test", "paired", "output", "json"];
            given.require_only(&own, "no effect on `gen sentences`")?;
            sentences(&given.args)
        }
        Generator::Dialogues => {
            let own = ["samples", "seed", "difficulty", "answers", "output", "json"];
            given.require_only(&own, "no effect on `gen dialogues`")?;
            dialogues(&given.args)
        }
        Generator::Headers => {
            let own = ["samples", "seed", "first", "preset", "rows", "threads", "output", "json"];
            given.require_only(&own, "no effect on `gen headers`")?;
            pages(&given.args)
        }
    }
}

/// Writes annotations.csv and the files that describe its columns: columns.yaml, spans.yaml and joint.yaml.
fn texts(args: &Gen) -> Result<Exit> {
    let criteria = Criteria {
        samples: args.samples,
        seed: args.seed,
        per_post: args.per_post as usize,
        difficulty: args.difficulty.unwrap_or_default(),
        imbalance: args.imbalance,
        noise: args.noise,
    };
    if !(criteria.imbalance > 0.0 && criteria.imbalance.is_finite()) {
        return Err(Error::usage("--imbalance: must be a positive number"));
    }
    if !(0.0..=1.0).contains(&criteria.noise) {
        return Err(Error::usage("--noise: must be a fraction from 0 to 1"));
    }
    let csv = criteria.csv()?;
    let files = [
        ("annotations.csv", csv.as_slice()),
        ("columns.yaml", COLUMNS_YAML.as_bytes()),
        ("spans.yaml", SPANS_YAML.as_bytes()),
        ("joint.yaml", JOINT_YAML.as_bytes()),
    ];
    write(&args.to, &files)?;
    let [path, columns] = ["annotations.csv", "columns.yaml"].map(|name| args.to.join(name));
    let row = json!({"file": path, "columns": columns, "records": args.samples});
    Out::stdout(args.output).rows([row])
}

/// Writes sentences and vectors for training and test, and columns.yaml.
fn sentences(args: &Gen) -> Result<Exit> {
    let Gen { language, samples, seed, test, paired, .. } = *args;
    if samples == 0 {
        return Err(Error::usage("--samples: must be at least 1"));
    }
    let files = Sentences { language, samples, seed, test, paired }.files()?;
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|file| (file.name, file.content.as_slice())).collect();
    write(&args.to, &files)?;
    let [path, columns] = ["pairs.jsonl", "columns.yaml"].map(|name| args.to.join(name));
    let row = json!({
        "file": path,
        "columns": columns,
        "records": samples,
        "words": language.vocabulary().len(),
        "dimensions": language.latent_len(),
        "entropy": language.entropy(),
    });
    Out::stdout(args.output).rows([row])
}

/// Writes dialogues.jsonl and columns.yaml.
fn dialogues(args: &Gen) -> Result<Exit> {
    let &Gen { samples, seed, difficulty, answers, .. } = args;
    if samples == 0 {
        return Err(Error::usage("--samples: must be at least 1"));
    }
    let (difficulty, answers) = (difficulty.unwrap_or_default(), answers.unwrap_or_default());
    let lines = Dialogues { samples, seed, difficulty, answers }.jsonl()?;
    let columns = dialogues::COLUMNS_YAML.as_bytes();
    write(&args.to, &[("dialogues.jsonl", &lines), ("columns.yaml", columns)])?;
    let [path, columns] = ["dialogues.jsonl", "columns.yaml"].map(|name| args.to.join(name));
    let row = json!({"file": path, "columns": columns, "records": samples});
    Out::stdout(args.output).rows([row])
}

/// Writes images, columns.yaml and pages.jsonl.
fn pages(args: &Gen) -> Result<Exit> {
    let &Gen { preset, seed, first, samples, rows, .. } = args;
    if samples == 0 {
        return Err(Error::usage("--samples: must be at least 1"));
    }
    let [list, images, columns] =
        [headers::LIST, headers::IMAGES, headers::COLUMNS.0].map(|name| args.to.join(name));
    [&images, &list, &columns].into_iter().try_for_each(|path| refuse_existing(path))?;
    let signals = Signals::install()?;
    let advance = Progress::shared("pages", samples as u64);
    let done = || {
        signals.check_stop(|| format!("{} was not made", list.display()))?;
        advance(1);
        Ok(())
    };
    let pages = Pages { preset, seed, first, samples: samples as u64, options: rows };
    in_pool(args.threads, || pages.write(&args.to, &done))?;
    let row = json!({"file": list, "columns": columns, "images": images, "records": samples});
    Out::stdout(args.output).rows([row])
}

/// Writes files into the output folder. Errors: 73 if one of them exists.
fn write(to: &Path, files: &[(&str, &[u8])]) -> Result<()> {
    files.iter().try_for_each(|(name, _)| refuse_existing(&to.join(name)))?;
    unix::publish::create_folder(to)?;
    files
        .iter()
        .try_for_each(|(name, content)| unix::publish::publish_bytes(&to.join(name), content))
}

/// Errors: 73 if `path` exists.
fn refuse_existing(path: &Path) -> Result<()> {
    match path.exists() {
        true => Err(Error::create(path, "it already exists; move it or choose another folder")),
        false => Ok(()),
    }
}

fn fields(args: &Gen, equation: Equation) -> Result<Exit> {
    if args.parameter.is_empty() {
        return Err(Error::usage("--parameter: an equation needs at least one value"));
    }
    let mut files: Vec<(PathBuf, Generation)> = Vec::new();
    for &parameter in &args.parameter {
        let usual = Generation::new(equation, parameter, args.samples);
        let file = Generation {
            constants: args.constant.clone(),
            first: args.first,
            seed: args.seed,
            grid: args.grid.unwrap_or(usual.grid),
            frames: args.frames.unwrap_or(usual.frames),
            end: args.end.unwrap_or(usual.end),
            ..usual
        };
        file.validate()?;
        let path = args.to.join(file.file_name());
        refuse_existing(&path)?;
        if files.iter().any(|(other, _)| *other == path) {
            return Err(Error::usage(format!("--parameter lists {parameter} twice")));
        }
        files.push((path, file));
    }
    let signals = Signals::install()?;
    let total = args.samples.saturating_mul(files.len());
    let advance = Progress::shared("trajectories", total as u64);
    let mut out = Out::stdout(args.output);
    unix::publish::create_folder(&args.to)?;
    for (path, file) in &files {
        let done = || {
            signals.check_stop(|| format!("{} was not made", path.display()))?;
            advance(1);
            Ok(())
        };
        in_pool(args.threads, || file.write(path, done))?;
        out.row(&FileSummary::of(path)?)?;
    }
    out.finish()
}
