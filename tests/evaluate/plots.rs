//! Charts of runs.

use std::fs;

use super::world;
use crate::common::{Captured, shell};
use serde_json::Value;

fn plot(words: &str) -> Captured {
    shell(world(), &format!("LC_ALL=C evaluate plot {words}"))
}

/// A successful command.
fn done(words: &str) -> String {
    let output = plot(words);
    assert_eq!((output.status, output.stderr.as_str()), (Some(0), ""), "{words}");
    output.stdout
}

#[test]
fn runs_are_drawn_as_text() {
    let text = done("codec other-codec operator");
    assert!(text.is_ascii() && text.lines().all(|line| line.len() <= 80), "{text}");
    for part in
        ["training loss\n* codec   + other-codec   o operator\n", "learning rate\n", "update  0"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    // A chart has only the runs with its metric.
    let metrics = done("codec operator --metric validation.nrmse --json");
    let runs: Vec<Value> =
        metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        (&runs[0]["run"], &runs[0]["updates"]),
        (&"codec".into(), &serde_json::json!([10, 20]))
    );
    let output = shell(world(), "LC_ALL=C.UTF-8 COLUMNS=50 evaluate plot codec --metric loss");
    let braille = |c: char| ('\u{2801}'..='\u{28ff}').contains(&c);
    assert!(output.stdout.chars().filter(|c| braille(*c)).count() >= 20, "{}", output.stdout);
    assert!(output.stdout.lines().all(|line| line.chars().count() <= 50), "{}", output.stdout);
    assert!(!output.stdout.contains('\x1b'), "no colours in a pipe");
}

#[test]
fn runs_are_drawn_as_pictures() {
    done("codec other-codec -o curves.png");
    let png = fs::read(world().join("curves.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG\r\n"));
    let output = plot("codec -o curves.png");
    assert_eq!(output.status, Some(73), "existing files are not overwritten");
    let text = done("codec other-codec --metric loss --metric nrmse -o curves.svg --json");
    let record: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["charts"], serde_json::json!(["training loss", "validation nrmse"]));
    let svg = fs::read_to_string(world().join("curves.svg")).unwrap();
    for part in [">training loss</text>", ">other-codec</text>", ">update</text>", "<polyline"] {
        assert!(svg.contains(part), "{part}");
    }
    done("codec other-codec --metric loss --metric nrmse -o curves.svg --force");
    assert_eq!(fs::read_to_string(world().join("curves.svg")).unwrap(), svg);
}

#[test]
fn a_picture_has_a_bounded_number_of_charts_and_says_what_it_lacks() {
    let run = world().join("many-metrics");
    fs::create_dir_all(&run).unwrap();
    let mut log = unix::log::Log::open(&run.join("log.jsonl"), 1).unwrap();
    for update in 1..3 {
        let mut fields = serde_json::json!({"update": update});
        (0..60).for_each(|n| fields[format!("metric{n}")] = (n + update).into());
        log.write("validation", &fields).unwrap();
    }
    let output = plot("many-metrics -o many.png --json");
    assert_eq!(output.status, Some(0), "{}", output.stderr);
    assert!(
        output.stderr.contains("contains only the first 24 charts; 36 were left out"),
        "{}",
        output.stderr
    );
    let record: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((record["charts"].as_array().unwrap().len(), &record["left_out"]), (24, &36.into()));
    let png = fs::read(world().join("many.png")).unwrap();
    // Two columns of twelve.
    assert_eq!(png[16..24], [1400_u32.to_be_bytes(), 4800_u32.to_be_bytes()].concat());
}

#[test]
fn errors_say_what_there_is_to_draw() {
    let output = plot("codec --metric accuracy");
    assert_eq!((output.status, output.stderr.lines().count()), (Some(65), 1), "{}", output.stderr);
    assert!(output.stderr.contains("accuracy") && output.stderr.contains("validation.nrmse"));
    assert_eq!(plot("codec -o curves.pdf").status, Some(2));
    assert_eq!(plot("absent").status, Some(66));
    fs::create_dir_all(world().join("fresh")).unwrap();
    fs::write(world().join("fresh/log.jsonl"), "").unwrap();
    let output = plot("fresh");
    assert_eq!((output.status, output.stderr.lines().count()), (Some(66), 1), "{}", output.stderr);
}
