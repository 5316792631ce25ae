//! From words to meanings.

use super::lexicon::{
    ADJECTIVES, AUXILIARIES, COUNTS, FILLERS, NEGATIONS, PERSONS, PLACES, PREPOSITIONS, THINGS,
    TIMES, VERBS,
};
use super::{Language, Meaning, SLOTS, Surface, Voice, slot};
use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

/// What a word says. Persons, verbs, things, adjectives and places have two words for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Person(u8, bool),
    /// The tense that the form states without an auxiliary verb, if any.
    Verb(u8, bool, Option<u8>),
    Thing(u8, bool),
    Adjective(u8, bool),
    Count(u8),
    Place(u8, bool),
    Time(u8),
    Negation(u8),
    Auxiliary(Option<u8>, bool),
}

/// Returns the words with a meaning of their own, in the order of the lists.
fn content(language: Language) -> impl Iterator<Item = (&'static str, Word)> {
    let sizes = language.slot_sizes();
    let both = [(0, false), (1, true)];
    let pairs = move |list: &'static [[&'static str; 2]], n: usize, word: fn(u8, bool) -> Word| {
        let of = move |(value, pair): (usize, &[&'static str; 2])| {
            let pair = *pair;
            both.map(|(at, second)| (pair[at], word(value as u8, second)))
        };
        list[..n].iter().enumerate().flat_map(of)
    };
    let verbs = VERBS[..sizes[slot::VERB]].iter().enumerate().flat_map(move |(value, verbs)| {
        both.into_iter().flat_map(move |(at, second)| {
            // The past may also be the participle; an auxiliary verb tells them apart.
            let tenses = [None, Some(1), Some(0), None];
            let [base, third, past, participle] = verbs[at];
            let forms = [(base, 0), (third, 1), (participle, 3), (past, 2)];
            forms.map(|(word, form)| (word, Word::Verb(value as u8, second, tenses[form])))
        })
    });
    let things =
        THINGS[..sizes[slot::THING]].iter().enumerate().flat_map(move |(value, things)| {
            both.into_iter().flat_map(move |(at, second)| {
                things[at].map(|word| (word, Word::Thing(value as u8, second)))
            })
        });
    let counts = COUNTS[..sizes[slot::COUNT]].iter().enumerate();
    let counts = counts.map(|(value, word)| (*word, Word::Count(value as u8)));
    let times = TIMES[..sizes[slot::TIME] - 1].iter().enumerate();
    let times = times.filter_map(|(i, time)| Some((*time.last()?, Word::Time(i as u8 + 1))));
    let negations = NEGATIONS.iter().enumerate();
    let negations = negations.map(|(value, word)| (*word, Word::Negation(value as u8)));
    let auxiliaries = AUXILIARIES.iter();
    let auxiliaries =
        auxiliaries.map(|(word, tense, passive)| (*word, Word::Auxiliary(*tense, *passive)));
    let place = |value: u8, second| Word::Place(value + 1, second);
    pairs(&PERSONS, sizes[slot::AGENT], Word::Person)
        .chain(verbs)
        .chain(things)
        .chain(pairs(&ADJECTIVES, sizes[slot::ADJECTIVE], Word::Adjective))
        .chain(counts)
        .chain(pairs(&PLACES, sizes[slot::PLACE] - 1, place))
        .chain(times)
        .chain(negations)
        .chain(auxiliaries)
}

fn known(language: Language) -> &'static HashMap<&'static str, Word> {
    static ALL: LazyLock<[HashMap<&'static str, Word>; 2]> = LazyLock::new(|| {
        [Language::Small, Language::Large].map(|language| content(language).collect())
    });
    &ALL[language as usize]
}

/// Returns the item if there is exactly one.
fn only<T: Copy>(found: &[T]) -> Option<T> {
    match found {
        [one] => Some(*one),
        _ => None,
    }
}

impl Language {
    /// Returns all words, in alphabetical order.
    pub fn vocabulary(self) -> BTreeSet<&'static str> {
        let times = TIMES[..self.slot_sizes()[slot::TIME] - 1].iter().copied().flatten();
        let openings = FILLERS.iter().copied().flatten().filter(|_| self == Self::Large);
        let others = PREPOSITIONS.iter().chain(&["the", "to", "by"]);
        let all = content(self).map(|(word, _)| word);
        all.chain(times.chain(openings).chain(others).copied()).collect()
    }

    /// Returns the value of each slot of a text; None where the words that state it are missing or doubled. The text
    /// need not be a sentence of the language: see [`is_grammatical`](Self::is_grammatical).
    pub fn parse(self, words: &[&str]) -> [Option<u8>; SLOTS] {
        let known = known(self);
        let said: Vec<(usize, Word)> = words
            .iter()
            .enumerate()
            .filter_map(|(at, word)| Some((at, *known.get(word)?)))
            .collect();
        let values = |of: fn(&Word) -> Option<u8>| -> Vec<u8> {
            said.iter().filter_map(|(_, word)| of(word)).collect()
        };
        let is_passive = said.iter().any(|(_, word)| matches!(word, Word::Auxiliary(_, true)));
        let [mut agents, mut recipients] = [Vec::new(), Vec::new()];
        for (at, word) in &said {
            let Word::Person(person, _) = *word else { continue };
            let before = |n: usize| at.checked_sub(n).map_or("", |at| words[at]);
            let role = if before(1) == "the" { before(2) } else { before(1) };
            let is_recipient = match role {
                "to" => true,
                "by" => false,
                _ => is_passive || !agents.is_empty(),
            };
            if is_recipient { recipients.push(person) } else { agents.push(person) }
        }
        let verbs = values(|word| match word {
            Word::Verb(verb, ..) => Some(*verb),
            _ => None,
        });
        let optional = |found: Vec<u8>| if found.is_empty() { Some(0) } else { only(&found) };
        let stated = values(|word| match word {
            Word::Auxiliary(tense, _) => *tense,
            _ => None,
        });
        let of_verb = values(|word| match word {
            Word::Verb(_, _, tense) => *tense,
            _ => None,
        });
        [
            only(&agents),
            only(&recipients),
            only(&verbs),
            only(&values(|word| match word {
                Word::Thing(thing, _) => Some(*thing),
                _ => None,
            })),
            only(&values(|word| match word {
                Word::Adjective(adjective, _) => Some(*adjective),
                _ => None,
            })),
            only(&values(|word| match word {
                Word::Count(count) => Some(*count),
                _ => None,
            })),
            optional(values(|word| match word {
                Word::Place(place, _) => Some(*place),
                _ => None,
            })),
            optional(values(|word| match word {
                Word::Time(time) => Some(*time),
                _ => None,
            })),
            optional(values(|word| match word {
                Word::Negation(_) => Some(1),
                _ => None,
            })),
            if stated.is_empty() { only(&of_verb) } else { only(&stated) },
        ]
    }

    /// Returns meaning and surface of a sentence; None for words that are no sentence of the language. Choices without
    /// an effect have their default.
    pub fn read(self, words: &[&str]) -> Option<(Meaning, Surface)> {
        let mut meaning: Meaning = [0; SLOTS];
        for (own, found) in meaning.iter_mut().zip(self.parse(words)) {
            *own = found?;
        }
        if meaning[slot::AGENT] == meaning[slot::RECIPIENT] {
            return None;
        }
        let mut surface = Surface::default();
        for (at, word) in words.iter().enumerate() {
            match known(self).get(word) {
                Some(Word::Person(person, second)) => {
                    let is_recipient = *person == meaning[slot::RECIPIENT];
                    surface.second[usize::from(is_recipient)] = *second;
                }
                Some(Word::Verb(_, second, _)) => surface.second[2] = *second,
                Some(Word::Thing(_, second)) => surface.second[3] = *second,
                Some(Word::Adjective(_, second)) => surface.second[4] = *second,
                Some(Word::Place(_, second)) => {
                    surface.second[5] = *second;
                    let before = words[..at].iter().nth_back(1);
                    surface.preposition = u8::from(before == Some(&PREPOSITIONS[1]));
                }
                Some(Word::Negation(negation)) => surface.negation = *negation,
                _ => {}
            }
        }
        let opening = FILLERS.iter().position(|opening| words.starts_with(opening));
        surface.opening = opening.filter(|_| self == Self::Large).unwrap_or(0) as u8;
        let first = [false, true];
        let times = if self == Self::Large && meaning[slot::TIME] > 0 { 2 } else { 1 };
        let orders = Voice::ALL
            .into_iter()
            .flat_map(|voice| first[..times].iter().map(move |t| (voice, *t)));
        let surfaces = orders.map(|(voice, time_first)| Surface { voice, time_first, ..surface });
        let found = surfaces.into_iter().find(|own| self.sentence(&meaning, own) == words);
        found.map(|surface| (meaning, surface))
    }

    /// Whether the words are a sentence of the language.
    pub fn is_grammatical(self, words: &[&str]) -> bool {
        self.read(words).is_some()
    }
}
