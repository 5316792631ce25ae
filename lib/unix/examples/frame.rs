//! Minimal programs that use the frame: each subcommand demonstrates one of its guarantees. The tests run it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use unix::cli::Output;
use unix::out::Out;
use unix::progress::Progress;
use unix::publish::{REAL, publish_bytes};
use unix::signal::Signals;
use unix::{Error, Exit, Result};

/// Show the frame of a program
#[derive(Parser)]
#[command(name = "frame", version = "1.2.3 (abcdef123456)")]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Write rows until the reader goes away
    Rows {
        #[command(flatten)]
        output: Output,
        /// How many
        count: u64,
    },
    /// End with an error
    Fail,
    /// Panic in the main thread or in another one
    Panic {
        /// In another thread, while this one waits
        #[arg(long)]
        thread: bool,
    },
    /// Wait for a wish to stop; say each wish
    Signals,
    /// Ten steps of progress, a line each
    Progress,
    /// Publish over and over a file of 256 KiB of equal bytes
    Publish {
        /// The file
        path: PathBuf,
    },
    /// Publish a file and a folder once, and die by KILL in the middle of writing if asked
    Once {
        /// The file; the folder is PATH.d
        path: PathBuf,
        /// Die after half of the file
        #[arg(long)]
        die: bool,
    },
}

fn main() -> ExitCode {
    unix::cli::main::<Args>(body)
}

fn body(args: Args) -> Result<Exit> {
    match args.verb {
        Verb::Rows { output, count } => {
            let mut out = Out::stdout(output);
            (0..count).try_for_each(|row| out.row(&serde_json::json!({ "row": row })))?;
            out.finish()?;
        }
        Verb::Fail => return Err(Error::config("model.width: 0 is no width; use 1 or more")),
        Verb::Panic { thread: false } => panic!("first line\nsecond line"),
        Verb::Panic { thread: true } => {
            std::thread::spawn(|| panic!("in a worker"));
            std::thread::sleep(Duration::from_secs(60));
        }
        Verb::Signals => return signals(),
        Verb::Progress => {
            let mut progress = Progress::with("steps", 10, false, Duration::ZERO);
            (0..10).for_each(|_| progress.advance(1));
        }
        Verb::Publish { path } => loop {
            for byte in *b"ab" {
                publish_bytes(&path, &vec![byte; 1 << 18])?;
            }
        },
        Verb::Once { path, die } => {
            REAL.file(&path, |writer| {
                writer.write_all(b"new")?;
                writer.flush()?;
                if die {
                    signal_hook::low_level::raise(signal_hook::consts::SIGKILL)?;
                }
                writer.write_all(b" content")
            })?;
            REAL.folder(&path.with_extension("d"), |folder| {
                let write = |name: &str| std::fs::write(folder.join(name), name);
                let io = |cause: io::Error| Error::io(folder, cause);
                std::fs::create_dir(folder.join("inner")).map_err(io)?;
                write("one").and_then(|()| write("inner/two")).map_err(io)
            })?;
        }
    }
    Ok(Exit::Done)
}

fn signals() -> Result<Exit> {
    let signals = Signals::install()?;
    let mut out = Out::stdout(Output::default());
    out.raw(b"ready\n")?;
    let mut stopping = false;
    loop {
        std::thread::sleep(Duration::from_millis(5));
        if signals.take_checkpoint_request() {
            out.raw(b"checkpoint\n")?;
        }
        match signals.stop_requested() {
            Some(name) if !stopping => {
                stopping = true; // and wait for the second one
                out.raw(format!("stop {name}\n").as_bytes())?;
            }
            _ => {}
        }
    }
}
