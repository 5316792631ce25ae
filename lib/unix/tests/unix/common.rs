//! The path of the example program.

use std::path::PathBuf;
use std::process::Command;

/// The program of `examples/frame.rs`. `cargo test -p unix` builds it along with the tests; `cargo test --test NAME`
/// alone does not rebuild it.
pub fn frame() -> Command {
    let here = std::env::current_exe().expect("path of the test");
    let target: PathBuf = here.ancestors().nth(2).expect("target folder").into();
    Command::new(target.join("examples/frame"))
}
