//! The programs in `examples` that measure training updates, which `cargo test -p tasks` builds along with the tests.

use std::io::Write;
use std::process::{Command, Output, Stdio};

/// Runs an example with these words and this standard input.
fn run(name: &str, words: &str, requests: &str) -> Output {
    let here = std::env::current_exe().unwrap();
    let path = here.ancestors().nth(2).unwrap().join("examples").join(name);
    let mut command = Command::new(path);
    command.args(words.split_whitespace()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(requests.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_option_that_is_unknown_or_cannot_apply_is_refused() {
    for name in ["operator_update", "text_update", "unet_update"] {
        for (words, complaint) in [
            ("--devise cuda", "--devise"),
            ("--threads two", "'two'"),
            ("--precision double", "'double'"),
            ("--device cpu --precision f16", "--precision f16 needs a GPU"),
            ("--device cpu --compile", "--compile needs a GPU"),
        ] {
            let output = run(name, words, "");
            let errors = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{name} {words}: {errors}");
            assert!(errors.contains(complaint), "{name} {words}: {errors}");
        }
    }
}

/// The losses in the output, each of several updates.
#[cfg(feature = "emu")]
fn losses(output: &Output) -> Vec<f64> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    rows.filter_map(|row| row["loss"].as_f64()).collect()
}

#[cfg(feature = "emu")]
#[test]
fn recorded_updates_have_the_losses_of_others() {
    let operator =
        "--device emu --hidden 16 --depth 1 --heads 2 --tokens 9 --dim 3 --batch 2 --repeats 3";
    // Texts of other lengths in between end a recording.
    let requests = "update\nloss\nupdate\nloss\nupdate\nloss\nmax\nloss\nupdate\nloss\nupdate\nloss\nupdate\nloss\n";
    let text = "--device emu --hidden 16 --depth 1 --heads 2 --wide 32 --tokens 12 --batch 3 --vocabulary 40 \
                --lengths 3,5,4,2";
    for (name, words, requests) in
        [("operator_update", operator, ""), ("text_update", text, requests)]
    {
        let plain = losses(&run(name, words, requests));
        assert!(!plain.is_empty() && plain.iter().all(|loss| loss.is_finite()), "{plain:?}");
        assert_eq!(losses(&run(name, &format!("{words} --compile"), requests)), plain, "{name}");
    }
}
