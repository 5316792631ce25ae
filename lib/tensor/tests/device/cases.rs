//! Calls a check for every case of every op and dtype.
//!
//! An error stays in a CUDA context, in which every later call then fails as well. So after one, the test starts itself
//! again from the next case, as often as necessary, and reports all that is wrong at its end.

use super::LARGEST;
use std::process::Command;
use std::rc::Rc;
use tensor::op::Case;
use tensor::ops::ALL;
use tensor::{Device, Dtype};
use unix::Result;

/// The first case to run.
const FROM: &str = "LONGHAUL_TEST_FROM";
/// Set by [`each_case`] in a process that ends at its first error of the device.
const SINGLE: &str = "LONGHAUL_TEST_SINGLE";
/// The words of the last line of a process that has not crashed.
const DONE: &str = "cases on";
/// Maximum number of processes that continue a test.
const MOST: usize = 20;

/// Elements touched, and operations.
pub fn size(case: &Case) -> usize {
    case.inputs.iter().map(|(s, _)| s.iter().product::<usize>()).sum::<usize>() * 8
        + case.operations
}

/// The number in an environment variable.
fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

/// The selected cases, with a name for messages.
fn picked(device: Device) -> Vec<(String, Rc<Case>, Dtype)> {
    let names = std::env::var("LONGHAUL_TEST_OPS").ok();
    let is_picked = |name: &str| names.as_ref().is_none_or(|p| p.split(',').any(|p| p == name));
    let most = if device == Device::Emu { LARGEST } else { usize::MAX };
    let below = number("LONGHAUL_TEST_BELOW").unwrap_or(most).min(most);
    let mut all = Vec::new();
    for (name, cases) in ALL.iter().filter(|(name, _)| is_picked(name)) {
        for case in cases().into_iter().filter(|case| size(case) < below).map(Rc::new) {
            let shapes: Vec<_> = case.inputs.iter().map(|(s, _)| s).collect();
            let named = |dtype| (format!("{name} {shapes:?} {dtype}"), case.clone(), dtype);
            all.extend(case.op.dtypes().iter().map(|dtype| named(*dtype)));
        }
    }
    all
}

/// Calls `check`, which returns what is wrong, for every selected case. `test` is the name of the test.
///
/// # Panics
/// If something is wrong or the selection is empty.
pub fn each_case(
    test: &str,
    device: Device,
    mut check: impl FnMut(&Case, Dtype) -> Result<Option<String>>,
) {
    let all = picked(device);
    assert!(!all.is_empty(), "LONGHAUL_TEST_OPS and LONGHAUL_TEST_BELOW select no case");
    let (single, mut wrong) = (std::env::var_os(SINGLE).is_some(), Vec::new());
    for (i, (what, case, dtype)) in all.iter().enumerate().skip(number(FROM).unwrap_or(0)) {
        // The last line of a process that hangs or crashes.
        println!("case {i}: {what}");
        let (why, ends) = match check(case, *dtype) {
            Ok(None) => continue,
            Ok(Some(why)) => (why, false),
            Err(why) => (why.to_string().replace('\n', " "), true),
        };
        println!("wrong: {what}: {why}");
        wrong.push(format!("{what}: {why}"));
        if ends {
            if !single {
                wrong.extend(rest(test, i + 1, all.len()));
            }
            break;
        }
    }
    println!("{} {DONE} {device}", all.len());
    assert!(wrong.is_empty(), "{} of {}\n{}", wrong.len(), all.len(), wrong.join("\n"));
}

/// What is wrong with the cases from `next` on, which run in other processes: each ends at its first error of the
/// device.
fn rest(test: &str, mut next: usize, all: usize) -> Vec<String> {
    let mut wrong = Vec::new();
    for _ in 0..MOST {
        if next >= all {
            return wrong;
        }
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--include-ignored", "--nocapture"]);
        let output = command.env(FROM, next.to_string()).env(SINGLE, "1").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        print!("{text}");
        let found = text.lines().filter_map(|line| line.strip_prefix("wrong: "));
        wrong.extend(found.map(String::from));
        let last = text.lines().rev().find_map(|line| {
            let (number, what) = line.strip_prefix("case ")?.split_once(": ")?;
            Some((number.parse::<usize>().ok()?, what.to_string()))
        });
        let (at, what) = last.unwrap_or((next, format!("case {next}")));
        if !text.contains(DONE) {
            wrong.push(format!("{what}: the process ended with {}", output.status));
        }
        next = at + 1;
    }
    if next < all {
        wrong.push(format!("{} cases were left out after {MOST} errors of the device", all - next));
    }
    wrong
}

/// Here the errors come from a limit of memory, which only some cases exceed.
#[cfg(feature = "emu")]
#[test]
fn cases_after_an_error_of_the_device_run_too() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["kernels_agree_with_the_cpu_in_f64", "--exact", "--nocapture"]);
    command.envs([("LONGHAUL_TEST_OPS", "linear"), ("LONGHAUL_TEST_BELOW", "60000")]);
    let output = command.env("LONGHAUL_DEVICE_MEMORY", "20000").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = |start: &'static str| text.lines().filter(move |line| line.starts_with(start));
    let (wrong, cases) = (lines("wrong: linear").count(), lines("case ").count());
    assert!(!output.status.success() && wrong > 1 && cases > wrong, "{text}");
    let numbers =
        lines("case ").map(|line| line[5..].split(':').next().unwrap().parse::<usize>().unwrap());
    assert!(numbers.eq(0..cases), "{text}");
    let talk = String::from_utf8_lossy(&output.stderr);
    assert!(talk.contains(&format!("{wrong} of {cases}\n")), "{talk}");
}
