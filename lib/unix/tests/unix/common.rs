//! Where the example program is.

use std::path::PathBuf;
use std::process::Command;

/// The program of `examples/frame.rs`. `cargo test -p unix` builds it beside the tests;
/// `cargo test --test NAME` alone does not build it anew.
pub fn frame() -> Command {
    let here = std::env::current_exe().expect("path of the test");
    let target: PathBuf = here.ancestors().nth(2).expect("target folder").into();
    Command::new(target.join("examples/frame"))
}
