//! Random mutations of valid text give a value or an error, never a panic.

use super::Folder;

const WHOLE: &str = "
steps: 600e3
name: ${NAME:-run}
model: &m {kind: pdet_stack, hidden: 64, activation: gelu}
data: {files: [a.h5, '${SCRATCH}/b.h5'], fraction: 0.5}
optimizer: {learning_rate: 1e-4, betas: [0.9, 0.99], threads: 2}
schedule:
  - {kind: linear, updates: 10}
  - kind: cosine
clip: ~
tracker: {url: http://x/, token: '${TRACKER_TOKEN}', pin: 1}
weights: {u: 1, v: .5}
amount: {share: 0.1}
notes: [*m, yes, 0x10, 1_000]
";

const PIECES: [&str; 24] = [
    "{", "}", "[", "]", ":", ": ", ",", "-", "\n", "\n  ", "&m", "*m", "!t ", "'", "\"", "${", "}",
    "$${X}", "~", "1e999", "-1", "kind", "é", "\u{0}",
];

#[test]
fn any_text_gives_a_value_or_an_error() {
    let mut random = test_support::Random(test_support::seed());
    let mut below = |n: usize| random.below(n);
    let folder = Folder::new(&[]);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..1500 {
        let mut text: Vec<char> = WHOLE.chars().collect();
        for _ in 0..below(4) {
            let at = below(text.len());
            let end = (at + below(12)).min(text.len());
            let piece = PIECES[below(PIECES.len())].chars();
            match below(3) {
                0 => drop(text.drain(at..end)),
                1 => drop(text.splice(at..at, piece)),
                _ => drop(text.splice(at..end, piece)),
            }
        }
        let text: String = text.into_iter().collect();
        std::fs::write(folder.path().join("a.yaml"), &text).unwrap();
        let word = PIECES[below(PIECES.len())];
        let overrides = [format!("notes.{word}={word}"), format!("{word}.kind={word}")];
        let overrides = &overrides.each_ref().map(String::as_str)[..below(3)];
        match folder.load(&["a.yaml"], overrides) {
            Ok(_) => good += 1,
            Err(error) => {
                bad += 1;
                assert_eq!(error.exit, unix::Exit::Config, "{text}\n{error}");
                assert!(!error.to_string().contains("hunter2"), "{text}\n{error}");
            }
        }
    }
    println!("{good} good, {bad} bad");
    assert!(good > 50 && bad > 50);
}
