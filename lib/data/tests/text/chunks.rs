//! Long texts, cut at the ends of sentences.

use data::text::Chunks;
use tensor::random::{Philox, Purpose};

#[test]
fn chunks_end_with_sentences_and_repeat_whole_words() {
    let text = "One two three. Four five? \"Six seven.\" Eight nine ten eleven twelve";
    let parts = |length, overlap| -> Vec<&str> {
        let chunks = Chunks::new(length, overlap).unwrap().of(text);
        chunks.into_iter().map(|chunk| &text[chunk.range]).collect()
    };
    assert_eq!(parts(100, 10), [text]);
    let cut = |ranges: &[[usize; 2]]| -> Vec<&str> {
        ranges.iter().map(|[from, to]| &text[*from..*to]).collect()
    };
    // The last sentence is longer than a chunk, and ends with no mark.
    assert_eq!(parts(24, 0), cut(&[[0, 15], [15, 39], [39, 61], [61, 67]]));
    assert_eq!(parts(24, 12), cut(&[[0, 15], [4, 26], [15, 39], [31, 54], [45, 67]]));
    assert!(Chunks::new(10, 6).is_err() && Chunks::new(0, 0).is_err());
}

/// Texts of words of any length, blanks, marks and characters of several bytes.
#[test]
fn nothing_is_lost_and_no_chunk_is_too_long() {
    let parts =
        ["a", "word", " ", " ", ". ", "! ", "\n", "é", "你好。", "\u{1f600}", ".\" ", "  ", "x.y"];
    let random = Philox::new(test_support::seed(), Purpose::Test);
    for sample in 0..400 {
        let draw = |at: u64, n: usize| random.below(sample, at, n as u64) as usize;
        let count = draw(0, 300);
        let text: String = (0..count).map(|i| parts[draw(i as u64 + 10, parts.len())]).collect();
        let length = 1 + draw(1, 60);
        let chunks = Chunks::new(length, draw(2, length / 2 + 1)).unwrap();
        let found = chunks.of(&text);
        let own: String = found.iter().map(|c| &text[c.own..c.range.end]).collect();
        assert_eq!(own, text);
        for (before, chunk) in found.iter().zip(&found[1..]) {
            let shared = &text[chunk.range.start..before.range.end];
            assert!(shared.chars().count() <= chunks.overlap);
            assert!(before.range.start < chunk.range.start && before.range.end < chunk.range.end);
        }
        assert!(found.iter().all(|c| text[c.range.clone()].chars().count() <= length));
    }
}
