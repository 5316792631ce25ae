//! Names and texts from outside are escaped and truncated before they reach the terminal.

use super::*;

/// ESC, C1, a bidirectional override, DEL, and a line that looks like one of our messages.
const NAME: &str = "a\u{1b}[31m\u{9b}2J\u{202e}b\u{7f}\nckpt: forged\r";

#[test]
fn control_characters_are_escaped_on_both_streams() {
    let copy = copy();
    let folder = copy.path();
    let manifest = std::fs::read_to_string(folder.join("split.json")).unwrap();
    let quoted = serde_json::to_string(NAME).unwrap();
    let quoted = &quoted[1..quoted.len() - 1];
    std::fs::write(folder.join("forged.json"), manifest.replace("burgers", quoted)).unwrap();
    std::fs::write(folder.join("forged.yaml"), format!("\"{quoted}\": {{x: \"{quoted}\"}}"))
        .unwrap();
    std::fs::write(folder.join("name"), NAME).unwrap();
    for script in [
        r#"ds-prep check "$N"; ds-prep show "$N"; ds-prep split "$N" -o x; ds-prep "$N""#,
        "ds-prep show forged.json; ds-prep check forged.json; ds-prep stats forged.json -o x",
        "ds-prep show forged.json --json; ds-prep check forged.json --json",
        "train-stage codec -c forged.yaml --run new; train-stage codec -c codec.yaml --run \"$N\"",
        r#"train-stage codec -c codec.yaml --run new -s "$N=1" -s training.updates="$N""#,
        r#"ckpt ls "$N"; ckpt ls "$N" --json; ckpt show "$N"; ckpt verify "$N" "$N"; ckpt diff "$N" run"#,
        r#"timekeep status "$N"; timekeep submit x -- sh -c 'echo "$0" >&2; exit 1' "$N""#,
        r#"timekeep run -- "$N"; timekeep run --json -- true "$N"; latent-cache verify "$N""#,
        r#"export SLURM_JOB_ID=1 SLURM_JOB_END_TIME="$N" PATH="$PWD/bin:$PATH"; timekeep left"#,
    ] {
        let before = "set +e; N=$(cat name; echo x); N=${N%x}; mkdir -p bin; cp name bin/squeue";
        let output = shell(folder, &format!("{before}\n{script}"));
        for text in [&output.stdout, &output.stderr] {
            let raw = text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
            assert_eq!(raw, None, "{script}: {text:?}");
            assert!(!text.lines().any(|line| line.starts_with("ckpt: forged")), "{script}: {text}");
        }
    }
}

#[test]
fn what_an_error_quotes_is_bounded() {
    let copy = copy();
    let folder = copy.path();
    let long = "x".repeat(50_000);
    for (at, yaml) in [
        format!("training: {{updates: {long}}}"),
        format!("{long}: 1"),
        format!("data: {{split: {long}}}"),
        format!("{long}: 1\n{long}: 2"),
        format!("a: [!{long} 1"),
        (0..1_000).map(|key| format!("k{key}: 1\n")).collect(),
    ]
    .iter()
    .enumerate()
    {
        std::fs::write(folder.join("long.yaml"), yaml).unwrap();
        let output = shell(folder, "train-stage codec -c long.yaml --run new");
        assert!(matches!(output.status, Some(66 | 78)), "{at}: {:?}", output.status);
        assert!(output.stderr.len() < 20_000, "{at}: {} bytes", output.stderr.len());
        let longest = output.stderr.lines().map(|line| line.chars().count()).max();
        assert!(longest < Some(2_000), "{at}: {longest:?}");
    }
}
