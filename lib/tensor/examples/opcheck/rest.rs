//! The rows after one that failed, measured by other processes: an error stays in a CUDA context, in which every later call
//! then fails as well.

use serde_json::{Map, Value};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use unix::out::Out;
use unix::{Error, Exit, Result};

/// Maximum number of processes.
const MOST: usize = 20;

/// Measures the rows from `next` on and writes them; returns how many of them failed. A process that dies costs the row
/// it was measuring. Errors: a process cannot be started.
pub fn measure(out: &mut Out, heads: &[&Map<String, Value>], mut next: usize) -> Result<usize> {
    let failure = |cause: &dyn std::fmt::Display| Error::new(Exit::Failure, cause);
    let program = std::env::current_exe().map_err(|cause| failure(&cause))?;
    let mut failures = 0;
    while next < heads.len() {
        if failures == MOST {
            let left = heads.len() - next;
            unix::warn!(
                "{left} rows are left out after {MOST} failures; --from {next} measures them"
            );
            return Ok(failures + left);
        }
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1)).arg("--single");
        command.args((!out.is_json()).then_some("--json")).args(["--from", &next.to_string()]);
        let mut child = (command.stdin(Stdio::null()).stdout(Stdio::piped()))
            .spawn()
            .map_err(|cause| failure(&cause))?;
        let mut failed = false;
        for line in child.stdout.take().into_iter().flat_map(|rows| BufReader::new(rows).lines()) {
            let row =
                line.ok().and_then(|line| serde_json::from_str::<Map<String, Value>>(&line).ok());
            // The first line has the rates only.
            if let Some(row) = row.filter(|row| row.contains_key("name")) {
                failed = row.contains_key("failed");
                out.row(&row)?;
                next += 1;
            }
        }
        let status = child.wait().map_err(|cause| failure(&cause))?;
        if !status.success() && !failed && next < heads.len() {
            let mut row = heads[next].clone();
            row.insert("failed".into(), format!("opcheck ended with {status}").into());
            out.row(&row)?;
            next += 1;
        }
        failures += usize::from(!status.success());
    }
    Ok(failures)
}
