//! The files of `ds-prep gen sentences`.

use super::{
    Draw, Language, Meaning, SLOTS, Surface, flipped, likeness, meaning_text, slot, swapped,
};
use crate::fields::write::npy_header;
use serde::Serialize;
use std::collections::HashSet;
use tensor::random::{Philox, Purpose};
use unix::{Error, Result};

/// Number of groups of minimally different meanings.
const MINIMAL: usize = 200;
/// Number of pairs of texts with a likeness.
const SIMILAR: usize = 400;
/// Slots of which the record `slot` of a minimal group has another value.
const CHANGED: [usize; 5] = [slot::VERB, slot::THING, slot::ADJECTIVE, slot::PLACE, slot::TIME];
/// Largest number of test meanings, which are kept in memory.
const MOST_TESTS: usize = 1 << 24;

/// What is generated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sentences {
    /// The language.
    pub language: Language,
    /// Number of training records.
    pub samples: usize,
    /// Equal seeds give equal files.
    pub seed: u64,
    /// Number of random test meanings.
    pub test: usize,
    /// Number of training records with both text and vector; half of the others have a text only, the rest a vector
    /// only. Default: all.
    pub paired: Option<usize>,
}

/// A generated file.
#[derive(Clone, Debug, PartialEq)]
pub struct SentenceFile {
    /// Its name.
    pub name: &'static str,
    /// Its content.
    pub content: Vec<u8>,
}

/// A record as it is written.
#[derive(Serialize)]
struct Row<'a> {
    id: &'a str,
    text: &'a str,
    group: &'a str,
    kind: &'a str,
}

/// Two texts and the likeness of their meanings.
#[derive(Serialize)]
struct SimilarRow {
    text: String,
    text2: String,
    score: f64,
}

/// JSON lines, and the vectors of the same records.
#[derive(Default)]
struct Records {
    lines: Vec<u8>,
    vectors: Vec<f32>,
}

/// Streams of random numbers.
#[derive(Clone, Copy)]
enum Stream {
    Training,
    Test,
    Minimal,
    Similar,
}

impl Sentences {
    /// Generates all files: `pairs`, `test` and, without a partner, `texts` and `vectors`, as JSON lines and arrays
    /// [N, D], `similar.jsonl` and `columns.yaml`. No meaning of the test records and of the similar pairs is in
    /// training.
    ///
    /// Errors: 2 for more test meanings than the language can spare, and for `paired` above `samples`.
    pub fn files(&self) -> Result<Vec<SentenceFile>> {
        if self.test > MOST_TESTS {
            return Err(Error::usage(format!("--test: at most {MOST_TESTS} meanings")));
        }
        let paired = self.paired.unwrap_or(self.samples);
        if paired > self.samples {
            let samples = self.samples;
            return Err(Error::usage(format!("--paired {paired}: there are {samples} samples")));
        }
        let mut held_out = HashSet::new();
        let test = self.test_records(&mut held_out)?;
        let similar = self.similar(&mut held_out)?;
        let texts = paired + (self.samples - paired).div_ceil(2);
        let mut files = Vec::new();
        let ranges =
            [("pair", 0..paired), ("text", paired..texts), ("vector", texts..self.samples)];
        for (name, range) in ranges {
            let mut records = Records::default();
            for number in range.clone() {
                let mut draw = self.draw(Stream::Training, number);
                let meaning = self.meaning_outside(&held_out, &mut draw);
                let surface = self.language.draw_surface(&mut draw);
                let id = format!("{name}-{:06}", number - range.start);
                let group = meaning_text(&meaning);
                self.add(&mut records, (&id, &group, "random"), &meaning, &surface, number)?;
            }
            match name {
                "pair" => files.extend(records.files(["pairs.jsonl", "pairs.npy"], self.language)),
                _ if range.is_empty() => {}
                "text" => files.push(records.text_file("texts.jsonl")),
                _ => files.push(records.vector_file("vectors.npy", self.language)),
            }
        }
        files.extend(test.files(["test.jsonl", "test.npy"], self.language));
        files.push(SentenceFile { name: "similar.jsonl", content: similar });
        let columns = format!(
            "text: text\nid: id\ngroup: group\ncriterion: kind\nlanguage: {}\n",
            self.language
        );
        files.push(SentenceFile { name: "columns.yaml", content: columns.into_bytes() });
        Ok(files)
    }

    fn draw(&self, stream: Stream, number: usize) -> Draw {
        let random = Philox::new(self.seed, Purpose::Texts).at_source(stream as u64);
        Draw::new(random, number as u64)
    }

    fn meaning_outside(&self, held_out: &HashSet<Meaning>, draw: &mut Draw) -> Meaning {
        loop {
            let meaning = self.language.draw_meaning(draw);
            if !held_out.contains(&meaning) {
                return meaning;
            }
        }
    }

    /// Appends a record; `number` is that of its noise.
    fn add(
        &self,
        records: &mut Records,
        (id, group, kind): (&str, &str, &str),
        meaning: &Meaning,
        surface: &Surface,
        number: usize,
    ) -> Result<()> {
        let text = self.language.sentence(meaning, surface).join(" ");
        let row = Row { id, text: &text, group, kind };
        serde_json::to_writer(&mut records.lines, &row).map_err(Error::bug)?;
        records.lines.push(b'\n');
        records.vectors.extend(self.language.latent(meaning, Some([self.seed, number as u64])));
        Ok(())
    }

    /// Makes the random meanings, then the minimal groups.
    fn test_records(&self, held_out: &mut HashSet<Meaning>) -> Result<Records> {
        let mut records = Records::default();
        // The noise of test records has numbers after those of training.
        let mut next = self.samples;
        for number in 0..self.test {
            let mut draw = self.draw(Stream::Test, number);
            let meaning = self.meaning_outside(held_out, &mut draw);
            held_out.insert(meaning);
            let surface = self.language.draw_surface(&mut draw);
            let (id, group) = (format!("test-{number:06}"), meaning_text(&meaning));
            self.add(&mut records, (&id, &group, "random"), &meaning, &surface, next)?;
            next += 1;
        }
        for number in 0..MINIMAL {
            let mut draw = self.draw(Stream::Minimal, number);
            let (group, surface, meanings) = loop {
                let (surface, meanings) = self.minimal(&mut draw);
                if meanings.iter().all(|(_, meaning)| !held_out.contains(meaning)) {
                    break (format!("minimal-{:04}", number + 1), surface, meanings);
                }
            };
            for (kind, meaning) in meanings {
                held_out.insert(meaning);
                let surface = if kind == "swap" { surface.swapped() } else { surface };
                let id = format!("{group}-{kind}");
                self.add(&mut records, (&id, &group, kind), &meaning, &surface, next)?;
                next += 1;
            }
        }
        Ok(records)
    }

    /// Draws a meaning, four that differ from it in one respect each, and the surface of all.
    fn minimal(&self, draw: &mut Draw) -> (Surface, [(&'static str, Meaning); 5]) {
        let language = self.language;
        let base = language.draw_meaning(draw);
        let surface = language.draw_surface(draw);
        let mut with_other = |slots: &[usize]| {
            let slot = draw.pick(slots);
            let mut meaning = base;
            meaning[slot] = language.draw_other(&base, slot, draw);
            meaning
        };
        let inflection = with_other(&[slot::TENSE, slot::COUNT]);
        let slot = with_other(&CHANGED);
        let meanings = [
            ("base", base),
            ("swap", swapped(base)),
            ("polarity", flipped(base)),
            ("inflection", inflection),
            ("slot", slot),
        ];
        (surface, meanings)
    }

    /// Makes pairs of texts that share 0 to 10 slots, in turn.
    fn similar(&self, held_out: &mut HashSet<Meaning>) -> Result<Vec<u8>> {
        let mut lines = Vec::new();
        let language = self.language;
        for number in 0..SIMILAR {
            let mut draw = self.draw(Stream::Similar, number);
            let first = language.draw_meaning(&mut draw);
            // The slots in random order; the first ones are shared.
            let mut order: [usize; SLOTS] = std::array::from_fn(|slot| slot);
            for i in (1..SLOTS).rev() {
                order.swap(i, draw.below(i + 1));
            }
            let second = loop {
                let mut second = first;
                for &slot in &order[number % (SLOTS + 1)..] {
                    second[slot] = language.draw_other(&first, slot, &mut draw);
                }
                if second[slot::AGENT] != second[slot::RECIPIENT] {
                    break second;
                }
            };
            held_out.extend([first, second]);
            let mut text = |meaning: &Meaning| {
                let surface = language.draw_surface(&mut draw);
                language.sentence(meaning, &surface).join(" ")
            };
            let (text, text2) = (text(&first), text(&second));
            let score = (likeness(&first, &second) * 1e6).round() / 1e6;
            let row = SimilarRow { text, text2, score };
            serde_json::to_writer(&mut lines, &row).map_err(Error::bug)?;
            lines.push(b'\n');
        }
        Ok(lines)
    }
}

impl Records {
    fn files(self, [text, vector]: [&'static str; 2], language: Language) -> [SentenceFile; 2] {
        let vectors = self.vector_file(vector, language);
        [self.text_file(text), vectors]
    }

    fn text_file(self, name: &'static str) -> SentenceFile {
        SentenceFile { name, content: self.lines }
    }

    fn vector_file(&self, name: &'static str, language: Language) -> SentenceFile {
        let length = language.latent_len();
        let header = npy_header(&[self.vectors.len() / length, length]);
        let content = [&header, bytemuck::cast_slice::<f32, u8>(&self.vectors)].concat();
        SentenceFile { name, content }
    }
}
