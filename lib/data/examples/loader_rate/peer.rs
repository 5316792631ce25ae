//! h5py in a separate process that waits for requests: tests/peers/h5py_rate.py.

use crate::ways::Samples;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use unix::{Error, Result};

/// h5py reads only this fraction of a round's samples, because it takes many times as long.
const PART: usize = 8;
/// Number of samples read from chunked copies.
const OF_COPIES: usize = 96;

/// Copies of the first trajectories, in common forms.
#[derive(Clone, Copy)]
pub enum Copied {
    /// `chunks=True`.
    Chunked,
    /// `compression="gzip"`.
    Gzip,
}

pub struct Peer {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(python: &Path) -> Result<Self> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/peers/h5py_rate.py");
        let mut command = Command::new(python);
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|cause| Error::open(python, cause))?;
        let (Some(asks), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::bug("a process without pipes"));
        };
        Ok(Self { process, asks, answers: BufReader::new(answers) })
    }

    /// Throughput of h5py in GB/s, from the file itself or from a copy, which is made at its first use.
    pub fn rate(&mut self, samples: &Samples, copied: Option<Copied>) -> Result<f64> {
        let mut places = samples.of_round();
        places.truncate(match copied {
            None => places.len().div_ceil(PART),
            Some(_) => OF_COPIES,
        });
        let copied = copied.map(|copied| match copied {
            Copied::Chunked => "chunked",
            Copied::Gzip => "gzip",
        });
        let ask = json!({
            // The same samples, whatever format the set is read in.
            "file": samples.path().with_extension("hdf5"),
            "copy": copied,
            "frames": samples.window,
            "samples": places,
        });
        let gone = |cause: &dyn std::fmt::Display| Error::data(format!("h5py_rate.py: {cause}"));
        writeln!(self.asks, "{ask}").map_err(|cause| gone(&cause))?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(|cause| gone(&cause))?;
        let answer: Value = serde_json::from_str(&answer).map_err(|cause| gone(&cause))?;
        let seconds = answer[samples.clock.to_string()].as_f64().ok_or_else(|| gone(&answer))?;
        Ok(places.len() as f64 * samples.bytes() as f64 / 1e9 / seconds)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It would wait for the next request.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
