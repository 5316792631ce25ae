//! `ds-prep audit` finds leaks between splits, `ds-prep plot` draws trajectories.

use super::records;
use std::path::PathBuf;

use data::fields::audit;
use data::fields::field::Field;
use data::images::{contact_sheet, thumbnail};
use data::split::Source;
use data::text::TextStore;
use serde_json::{Value, json};
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
    /// File of trajectories, or store of conversations with images
    file: PathBuf,
    /// Index of the trajectory, or of the first record, from 0
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

/// Records on a contact sheet.
const RECORDS: usize = 24;

/// Draws the images of some records. Errors: 2 for a store without images, and options without effect on it.
fn plot_images(args: &Plot, store: &TextStore) -> Result<Exit> {
    let Some(images) = store.image_store() else {
        let path = args.file.display();
        return Err(Error::usage(format!("{path}: no record has an image to draw")));
    };
    if args.channel.is_some() {
        return Err(Error::usage("--channel: no effect on images"));
    }
    let last = (args.sample + RECORDS).min(store.len());
    if args.sample >= last {
        let count = store.len();
        return Err(Error::usage(format!("--sample {}: there are {count} records", args.sample)));
    }
    let own = (args.sample..last).flat_map(|i| {
        let names = store.image_names(i);
        store.images(i).into_iter().zip(names.into_iter().map(String::from)).collect::<Vec<_>>()
    });
    let drawn = own.map(|(own, name)| images.decode(&name, own)).collect::<Result<Vec<_>>>()?;
    let png = thumbnail(&contact_sheet(&drawn)?, u32::MAX)?;
    let record = json!({"picture": args.to, "sample": args.sample, "images": drawn.len()});
    let text =
        format!("{} images of the records from {} to {}", drawn.len(), args.sample, last - 1);
    write(args, &png, &record, text)
}

/// Writes a picture to the file, which `text` describes, or to stdout. Errors: 2 for a name that does not end in .png; 73, 74.
fn write(args: &Plot, png: &[u8], record: &Value, text: String) -> Result<Exit> {
    let mut out = Out::stdout(args.output);
    if args.to.as_os_str() == "-" {
        return out.raw(png).map(|()| Exit::Done);
    }
    if args.to.extension().is_none_or(|ending| ending != "png") {
        let name = args.to.display();
        return Err(Error::usage(format!("{name}: the name of a picture must end in .png")));
    }
    unix::publish::publish_bytes(&args.to, png)?;
    out.item(record, text).map(|()| Exit::Done)
}

pub fn plot(args: &Plot) -> Result<Exit> {
    if TextStore::is_store(&args.file) {
        return plot_images(args, &TextStore::open(&args.file)?);
    }
    if records::are_at(&args.file) {
        return Err(Error::usage(format!(
            "{}: only trajectories and images are drawn; ds-prep show --sample describes a record, and the pictures of evaluate \
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
    write(args, &picture.png, &record, text)
}
