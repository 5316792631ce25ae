//! `ds-prep audit` finds leaks between splits, `ds-prep plot` draws trajectories.

use super::records;
use std::path::PathBuf;

use data::fields::audit;
use data::fields::field::Field;
use serde_json::json;
use tasks::pde::evaluate::pictures::trajectory::{View, draw};
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::{Error, Exit, Result, inputs, note};

#[derive(clap::Args)]
pub struct Audit {
    /// Manifests to audit together; `-` reads their names from stdin
    #[arg(required = true)]
    manifests: Vec<PathBuf>,
    /// Distance below which first frames, texts or images are near-duplicates, see longhaul-files(5); 0 for exact copies only
    /// [default: 0.01 for first frames, 0.05 for images, 0.2 for texts]
    #[arg(long, value_name = "DISTANCE", value_parser = distance)]
    near: Option<f64>,
    #[command(flatten)]
    output: Output,
}

/// Parses the value of `--near` of [`Audit`].
pub fn distance(text: &str) -> std::result::Result<f64, String> {
    let found = text.parse().ok().filter(|near| (0.0..1.0).contains(near));
    found.ok_or_else(|| "must be at least 0 and below 1".into())
}

pub fn audit(given: &Given<Audit>) -> Result<Exit> {
    let args = &given.args;
    let manifests = inputs::files(&args.manifests)?;
    let report = if manifests.iter().any(|path| records::are_at(path)) {
        if records::kind(&manifests[0]) == Some(records::RecordKind::Arrays) {
            given.require_only(
                &["json"],
                "no effect on records of arrays, which are compared exactly",
            )?;
        }
        records::audit(&manifests, args.near)?
    } else {
        audit::audit(&manifests, args.near.unwrap_or(0.01))?
    };
    let mut out = Out::stdout(args.output);
    report.problems.iter().try_for_each(|one| out.item(one, &one.message))?;
    out.finish()?;
    let found = report.problems.len();
    match report.records {
        0 => note!("{} trajectories, {found} leaks or copies", report.trajectories),
        count => note!("{count} records, {found} leaks"),
    }
    Ok(if report.problems.is_empty() { Exit::Done } else { Exit::Failure })
}

#[derive(clap::Args)]
pub struct Plot {
    /// File
    file: PathBuf,
    /// Index of the trajectory, from 0
    #[arg(long, default_value_t = 0, value_name = "NUMBER")]
    sample: usize,
    /// Channel, by name or index; default: the first that is not an input
    #[arg(long)]
    channel: Option<String>,
    /// In two dimensions: number of frames to show
    #[arg(long, default_value_t = 5, value_name = "NUMBER")]
    frames: usize,
    /// PNG file to write; `-` for stdout
    #[arg(short = 'o', long = "output", value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

pub fn plot(args: &Plot) -> Result<Exit> {
    if records::are_at(&args.file) {
        return Err(Error::usage(format!(
            "{}: only trajectories are drawn; ds-prep show --sample describes a record, and the pictures of evaluate \
             score show records with their predictions",
            args.file.display()
        )));
    }
    let field = Field::open(&args.file)?;
    let names = field.channels();
    let channel = match &args.channel {
        None => field.inputs().min(names.len() - 1),
        Some(wanted) => {
            let named = names.iter().position(|name| name == wanted);
            named.or_else(|| wanted.parse().ok()).ok_or_else(|| {
                Error::usage(format!("no channel `{wanted}`; the file has {}", names.join(", ")))
            })?
        }
    };
    let view = View { sample: args.sample, channel, frames: args.frames };
    let picture = draw(&field, view)?;
    let mut out = Out::stdout(args.output);
    if args.to.as_os_str() == "-" {
        return out.raw(&picture.png).map(|()| Exit::Done);
    }
    if args.to.extension().is_none_or(|ending| ending != "png") {
        let name = args.to.display();
        return Err(Error::usage(format!("{name}: the name of a picture must end in .png")));
    }
    unix::publish::publish_bytes(&args.to, &picture.png)?;
    let (name, (low, high)) = (&names[channel], (picture.range.start(), picture.range.end()));
    let record = json!({
        "picture": args.to,
        "sample": args.sample,
        "channel": name,
        "low": low,
        "high": high,
        "frames": picture.frames,
    });
    let text = format!("{name} of trajectory {}, colours from {low} to {high}", args.sample);
    out.item(&record, text).map(|()| Exit::Done)
}
