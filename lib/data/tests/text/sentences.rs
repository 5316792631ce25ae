//! The synthetic language: its sentences are read back exactly, and their probabilities and vectors are as stated.

use data::text::sentences::{Language, Meaning, Sentences, Surface, flipped, slot, swapped};
use std::collections::BTreeSet;
use tensor::random::{Philox, Purpose};

const BOTH: [Language; 2] = [Language::Small, Language::Large];

/// Sentence number `index`, with its meaning and surface.
fn drawn(language: Language, index: u64) -> (Meaning, Surface, Vec<&'static str>) {
    let seed = test_support::seed();
    let (meaning, surface) =
        (language.random_meaning(seed, index), language.random_surface(seed, index));
    (meaning, surface, language.sentence(&meaning, &surface))
}

#[test]
fn sentences_are_read_back_with_their_meaning_and_surface() {
    for language in BOTH {
        let mut lengths = BTreeSet::new();
        for index in 0..2000 {
            let (meaning, surface, words) = drawn(language, index);
            assert_eq!(language.parse(&words), meaning.map(Some), "{}", words.join(" "));
            let (own, read) = language.read(&words).unwrap();
            assert_eq!(own, meaning, "{}", words.join(" "));
            // What was read is the same sentence, and as likely.
            assert_eq!(language.sentence(&own, &read), words);
            let [drawn, read] = [surface, read].map(|s| language.information(&meaning, &s));
            assert!((drawn - read).abs() < 1e-12, "{drawn} {read}: {}", words.join(" "));
            lengths.insert(words.len());
        }
        let expected = if language == Language::Small { 9..=19 } else { 11..=24 };
        assert!(lengths.iter().all(|length| expected.contains(length)), "{lengths:?}");
        assert!(lengths.len() > 8, "{lengths:?}");
    }
}

#[test]
fn the_vocabulary_has_the_stated_size_and_no_word_two_meanings() {
    for (language, size) in BOTH.into_iter().zip([VOCABULARY_SMALL, VOCABULARY_LARGE]) {
        let words = language.vocabulary();
        assert_eq!(words.len(), size, "{language}");
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase());
        assert!(words.iter().all(is_word));
        let mut seen = BTreeSet::new();
        for index in 0..20_000 {
            seen.extend(drawn(language, index).2);
        }
        assert_eq!(seen, words);
    }
}
const VOCABULARY_SMALL: usize = 173;
const VOCABULARY_LARGE: usize = 387;

/// Removes, doubles or exchanges words.
#[test]
fn damaged_sentences_are_refused_unless_they_say_something_else() {
    for language in BOTH {
        let random = Philox::new(test_support::seed(), Purpose::Test);
        let [mut accepted, mut other] = [0, 0];
        for index in 0..3000 {
            let (meaning, _, words) = drawn(language, index);
            let draw = |at: u64, n: usize| random.below(index, at, n as u64) as usize;
            let [a, b] = [draw(0, words.len()), draw(1, words.len())];
            let mut damaged = words.clone();
            match index % 3 {
                0 => drop(damaged.remove(a)),
                1 => damaged.insert(a, words[a]),
                _ => damaged.swap(a, b),
            }
            if damaged == words {
                continue;
            }
            let parsed = language.parse(&damaged);
            if language.is_grammatical(&damaged) {
                accepted += 1;
                assert!(parsed.iter().all(Option::is_some));
                other += usize::from(parsed != meaning.map(Some));
            }
        }
        // Two persons exchanged are another meaning; opening words never are.
        assert!(accepted == other && (1..90).contains(&accepted), "{language}: {accepted} {other}");
    }
}

#[test]
fn a_word_too_few_or_too_many_is_no_slot() {
    let words = |text: &'static str| text.split(' ').collect::<Vec<_>>();
    let parse = |text| Language::Small.parse(&words(text));
    let whole = "the teacher never gave the kid two big books at the market on monday";
    let found = parse(whole).map(|value| value.unwrap());
    assert_eq!(found, [0, 9, 0, 0, 0, 1, 1, 1, 1, 0]);
    assert!(!Language::Small.is_grammatical(&words(whole)));
    let right = "the teacher never gave the kid the two big books at the market on monday";
    assert!(Language::Small.is_grammatical(&words(right)));
    assert!(!Language::Large.is_grammatical(&words(right)));
    let twice = parse("the teacher never gave the kid the two two big books on friday on monday");
    assert_eq!([twice[slot::COUNT], twice[slot::TIME]], [None; 2]);
    let none = parse("the big books");
    let missing = [slot::AGENT, slot::RECIPIENT, slot::VERB, slot::COUNT, slot::TENSE];
    assert!(missing.iter().all(|slot| none[*slot].is_none()));
    assert_eq!([none[slot::PLACE], none[slot::POLARITY]], [Some(0); 2]);
    // The passive has its own roles and states the tense by its auxiliary verb.
    let passive = parse("the monarch will not be sent the one new lamp by the boss");
    assert_eq!(passive, [10, 8, 1, 6, 3, 0, 0, 0, 1, 2].map(Some));
}

#[test]
fn the_entropy_is_the_mean_information_of_sentences() {
    for (language, expected) in BOTH.into_iter().zip([6.3, 9.1]) {
        let n = 40_000;
        let information = |index| {
            let (meaning, surface, _) = drawn(language, index);
            language.information(&meaning, &surface)
        };
        let all: Vec<f64> = (0..n).map(information).collect();
        let mean = all.iter().sum::<f64>() / n as f64;
        let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        // Five standard errors.
        let entropy = language.entropy();
        assert!((mean - entropy).abs() < 5.0 * (variance / n as f64).sqrt(), "{mean} {entropy}");
        assert!((entropy - expected).abs() < 0.1, "{language}: {entropy}");
    }
}

/// The probabilities of all sentences of a meaning sum to 1.
#[test]
fn the_surfaces_of_a_meaning_are_all_that_there_are() {
    let meaning: Meaning = [3, 5, 1, 2, 0, 1, 2, 0, 1, 1];
    let mut sentences = std::collections::BTreeMap::new();
    for index in 0..20_000 {
        let surface = Language::Small.random_surface(7, index);
        let information = Language::Small.information(&meaning, &surface);
        sentences.insert(Language::Small.sentence(&meaning, &surface), information);
    }
    // 4 voices, 3 negations, 2 prepositions and 6 pairs of words.
    assert!(sentences.len() > 1400 && sentences.len() <= 4 * 3 * 2 * 64, "{}", sentences.len());
    let sum: f64 = sentences.values().map(|nats| (-nats).exp()).sum();
    assert!(sum > 0.99 && sum < 1.0 + 1e-9, "{sum}");
}

#[test]
fn vectors_are_standardised_and_close_for_close_meanings() {
    for language in BOTH {
        let (n, length) = (4000, language.latent_len());
        let vectors: Vec<Vec<f32>> =
            (0..n).map(|index| language.latent(&drawn(language, index).0, None)).collect();
        for d in 0..length {
            let mean = vectors.iter().map(|v| f64::from(v[d])).sum::<f64>() / n as f64;
            let square = vectors.iter().map(|v| f64::from(v[d]).powi(2)).sum::<f64>() / n as f64;
            assert!(mean.abs() < 0.12 && (square - 1.0).abs() < 0.15, "{d}: {mean} {square}");
        }
        let cosine = |a: &[f32], b: &[f32]| {
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
        };
        let mean_of = |of: &dyn Fn(u64) -> f32| (0..200).map(of).sum::<f32>() / 200.0;
        let base = |index| drawn(language, index).0;
        let to = |index, other: &Meaning| {
            cosine(&vectors[index as usize], &language.latent(other, None))
        };
        let noisy = mean_of(&|index| {
            cosine(&vectors[index as usize], &language.latent(&base(index), Some([1, index])))
        });
        let flip = mean_of(&|index| to(index, &flipped(base(index))));
        let swap = mean_of(&|index| to(index, &swapped(base(index))));
        let random = mean_of(&|index| to(index, &base(index + 1000)));
        assert!((noisy - 0.995).abs() < 0.002, "{noisy}");
        assert!(flip < noisy && swap < flip && random.abs() < 0.1, "{flip} {swap} {random}");
    }
}

#[test]
fn test_meanings_are_in_no_training_record_and_minimal_groups_differ_in_one_respect() {
    for language in BOTH {
        let generated = Sentences { language, samples: 3000, seed: 5, test: 300, paired: None };
        let files = generated.files().unwrap();
        let content = |name: &str| &files.iter().find(|file| file.name == name).unwrap().content;
        let rows = |name: &str| -> Vec<serde_json::Value> {
            let text = std::str::from_utf8(content(name)).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
        };
        let meaning = |row: &serde_json::Value| {
            let words: Vec<&str> = row["text"].as_str().unwrap().split(' ').collect();
            language.read(&words).unwrap()
        };
        let training: BTreeSet<Meaning> =
            rows("pairs.jsonl").iter().map(|r| meaning(r).0).collect();
        let test = rows("test.jsonl");
        assert!(test.iter().all(|row| !training.contains(&meaning(row).0)));
        assert_eq!((test.len(), rows("pairs.jsonl").len()), (300 + 200 * 5, 3000));
        let length = language.latent_len();
        assert!(content("test.npy").len() > test.len() * length * 4);
        for group in test[300..].chunks(5) {
            let kinds: Vec<&str> = group.iter().map(|row| row["kind"].as_str().unwrap()).collect();
            assert_eq!(kinds, ["base", "swap", "polarity", "inflection", "slot"]);
            assert!(group.iter().all(|row| row["group"] == group[0]["group"]));
            let [base, swap, polarity, inflection, slot]: [Meaning; 5] =
                std::array::from_fn(|k| meaning(&group[k]).0);
            assert_eq!((swap, polarity), (swapped(base), flipped(base)));
            for other in [inflection, slot] {
                assert_eq!(base.iter().zip(other).filter(|(a, b)| *a != b).count(), 1);
            }
            // Words do not tell who is who.
            let sorted = |row: &serde_json::Value| {
                let mut words: Vec<String> =
                    row["text"].as_str().unwrap().split(' ').map(String::from).collect();
                words.sort();
                words
            };
            assert_eq!(sorted(&group[0]), sorted(&group[1]));
        }
        let scores: Vec<f64> =
            rows("similar.jsonl").iter().map(|row| row["score"].as_f64().unwrap()).collect();
        assert_eq!((scores.len(), scores[0], scores[10]), (400, 0.0, 1.0));
        let few = Sentences { paired: Some(100), ..generated }.files().unwrap();
        let lines = |name: &str| {
            let file = few.iter().find(|file| file.name == name).unwrap();
            file.content.iter().filter(|byte| **byte == b'\n').count()
        };
        assert_eq!([lines("pairs.jsonl"), lines("texts.jsonl")], [100, 1450]);
        let vectors = few.iter().find(|file| file.name == "vectors.npy").unwrap();
        assert_eq!(vectors.content.len(), 128 + 1450 * length * 4);
    }
}
