//! Divides data into a training, a validation and a test split.

use crate::{audit_plot, records};
use data::fields::split::{By, GroupBy, Split};
use data::split::{DivideRequest, Share, divide};
use std::path::PathBuf;
use unix::cli::{Given, Output};
use unix::out::Out;
use unix::{Error, Exit, Result, inputs};

/// Arguments of `split`.
#[derive(clap::Args)]
pub struct Divide {
    /// HDF5 files or record stores; `-` reads their names from stdin
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Share of the training split: a percentage, or a number of trajectories per parameter value
    #[arg(long, default_value = "80%", value_name = "SHARE")]
    train: Share,
    /// Share of the validation split
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    validation: Share,
    /// Share of the test split
    #[arg(long, default_value = "10%", value_name = "SHARE")]
    test: Share,
    /// Record stores whose records all go to the validation split; the validation share of the others goes to training
    #[arg(long, value_delimiter = ',', value_name = "STORE", conflicts_with = "validation")]
    validation_from: Vec<PathBuf>,
    /// Record stores whose records all go to the test split; the test share of the others goes to training
    #[arg(long, value_delimiter = ',', value_name = "STORE", conflicts_with = "test")]
    test_from: Vec<PathBuf>,
    /// Unit to split by
    #[arg(long, default_value = "trajectory", value_name = "UNIT")]
    by: By,
    /// Trajectories that always share a split
    #[arg(long, default_value_t, value_name = "KEY")]
    group_by: GroupBy,
    /// Of texts: groups with texts that have a smaller distance, as in audit, share a split as well
    #[arg(long, value_name = "DISTANCE", value_parser = audit_plot::distance)]
    near: Option<f64>,
    /// Seed of the random split
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Manifest to write; `-` for stdout, with paths relative to the working directory
    #[arg(short = 'o', long = "output", default_value = "split.json", value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Splits files or stores and writes the manifest.
pub fn split(given: &Given<Divide>) -> Result<Exit> {
    let args = &given.args;
    let files = inputs::files(&args.files)?;
    let shares = [args.train, args.validation, args.test];
    if files.iter().any(|path| records::are_at(path)) {
        given.require_only(
            &[
                "train",
                "validation",
                "test",
                "validation-from",
                "test-from",
                "by",
                "near",
                "seed",
                "output",
                "json",
            ],
            "no effect on records, whose groups are those of ds-prep import --group",
        )?;
        let division = records::Division {
            by: args.by,
            shares,
            validation_from: &args.validation_from,
            test_from: &args.test_from,
            seed: args.seed,
            near: args.near,
        };
        return records::split(&division, &files, &args.to, Out::stdout(args.output));
    }
    if let Some(store) = args.validation_from.iter().chain(&args.test_from).next() {
        let what = "is for record stores only, but the files to split are none";
        return Err(Error::usage(format!("{}: {what}", store.display())));
    }
    let Divide { by, seed, near, .. } = *args;
    let request =
        DivideRequest { by, group_by: Some(args.group_by), shares, fixed: &[], seed, near };
    let split: Split = divide(&request, &files, &args.to)?;
    records::save(&split, &args.to, Out::stdout(args.output), || {
        records::warn_missed_shares(&split, &args.to);
        Ok(())
    })
}
