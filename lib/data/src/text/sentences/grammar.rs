//! Sentences of a meaning, and their probabilities.

use super::lexicon::{
    ADJECTIVES, COUNTS, FILLERS, NEGATIONS, PERSONS, PLACES, PREPOSITIONS, THINGS, TIMES, VERBS,
};
use super::{Draw, Language, Meaning, slot};
use tensor::random::{Philox, Purpose};

/// Probability of the second word of two with the same meaning.
const SECOND: f64 = 0.35;
/// Number of voices.
const VOICES: usize = 4;

/// The order of a sentence, and the form of its verb.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Voice {
    /// The agent gave the thing to the recipient.
    #[default]
    To,
    /// The agent gave the recipient the thing.
    Dative,
    /// The thing was given to the recipient by the agent.
    Thing,
    /// The recipient was given the thing by the agent.
    Recipient,
}

impl Voice {
    /// All voices.
    pub const ALL: [Self; VOICES] = [Self::To, Self::Dative, Self::Thing, Self::Recipient];
}

/// How a meaning is said. Choices without an effect on the sentence, such as the negation of an affirmative one, have
/// any value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Surface {
    /// Order and form of the verb.
    pub voice: Voice,
    /// The word of a negation.
    pub negation: u8,
    /// The preposition before the place.
    pub preposition: u8,
    /// Whether the second of two words is used for agent, recipient, verb, thing, adjective and place.
    pub second: [bool; 6],
    /// The opening words, in the large language.
    pub opening: u8,
    /// Whether the time comes first, in the large language.
    pub time_first: bool,
}

impl Surface {
    /// Returns the surface for the meaning with agent and recipient exchanged, which has the same words.
    pub fn swapped(mut self) -> Self {
        self.second.swap(0, 1);
        self
    }
}

impl Language {
    /// Returns surface number `index` of a seed, with the probabilities of the language.
    pub fn random_surface(self, seed: u64, index: u64) -> Surface {
        // A stream of its own, apart from that of the meanings.
        let random = Philox::new(seed, Purpose::Texts).at_source(u64::MAX);
        self.draw_surface(&mut Draw::new(random, index))
    }

    pub(super) fn draw_surface(self, draw: &mut Draw) -> Surface {
        Surface {
            voice: draw.pick(&Voice::ALL),
            negation: draw.below(NEGATIONS.len()) as u8,
            preposition: draw.below(PREPOSITIONS.len()) as u8,
            second: std::array::from_fn(|_| draw.chance(SECOND)),
            opening: draw.below(FILLERS.len()) as u8,
            time_first: draw.chance(0.5),
        }
    }

    /// Returns the words of a sentence.
    pub fn sentence(self, meaning: &Meaning, surface: &Surface) -> Vec<&'static str> {
        let at = |slot: usize| usize::from(meaning[slot]);
        let second = surface.second.map(usize::from);
        let agent = ["the", PERSONS[at(slot::AGENT)][second[0]]];
        let recipient = ["the", PERSONS[at(slot::RECIPIENT)][second[1]]];
        let is_plural = at(slot::COUNT) > 0;
        let things = [
            "the",
            COUNTS[at(slot::COUNT)],
            ADJECTIVES[at(slot::ADJECTIVE)][second[4]],
            THINGS[at(slot::THING)][second[3]][usize::from(is_plural)],
        ];
        let time = at(slot::TIME).checked_sub(1).map_or(&[][..], |time| TIMES[time]);
        let mut words = Vec::with_capacity(24);
        let time_first = self == Self::Large && surface.time_first;
        if self == Self::Large {
            words.extend(FILLERS[usize::from(surface.opening)]);
        }
        if time_first {
            words.extend(time);
        }
        let [active, passive] =
            [Form::Active, Form::Passive { is_plural }].map(|form| verb(meaning, surface, form));
        match surface.voice {
            Voice::To => {
                words.extend(agent.into_iter().chain(active).chain(things).chain(["to"]));
                words.extend(recipient);
            }
            Voice::Dative => {
                words.extend(agent.into_iter().chain(active).chain(recipient).chain(things));
            }
            Voice::Thing => {
                words.extend(things.into_iter().chain(passive).chain(["to"]).chain(recipient));
                words.extend(["by"].into_iter().chain(agent));
            }
            Voice::Recipient => {
                let passive = verb(meaning, surface, Form::Passive { is_plural: false });
                words.extend(recipient.into_iter().chain(passive).chain(things));
                words.extend(["by"].into_iter().chain(agent));
            }
        }
        if let Some(place) = at(slot::PLACE).checked_sub(1) {
            let preposition = PREPOSITIONS[usize::from(surface.preposition)];
            words.extend([preposition, "the", PLACES[place][second[5]]]);
        }
        if !time_first {
            words.extend(time);
        }
        words
    }

    /// Returns -log p of a surface given the meaning, in nats; the surface is that of one sentence.
    pub fn information(self, meaning: &Meaning, surface: &Surface) -> f64 {
        let has = |slot: usize| meaning[slot] > 0;
        let mut nats = (VOICES as f64).ln();
        let used = if has(slot::PLACE) { 6 } else { 5 };
        for second in &surface.second[..used] {
            nats -= if *second { SECOND } else { 1.0 - SECOND }.ln();
        }
        let uniform = [
            (has(slot::POLARITY), NEGATIONS.len()),
            (has(slot::PLACE), PREPOSITIONS.len()),
            (self == Self::Large, FILLERS.len()),
            (self == Self::Large && has(slot::TIME), 2),
        ];
        nats + uniform.iter().filter(|(has, _)| *has).map(|(_, n)| (*n as f64).ln()).sum::<f64>()
    }

    /// Returns the mean of [`information`](Self::information) over meanings and surfaces: the entropy of sentences
    /// given their meanings, in nats per sentence.
    pub fn entropy(self) -> f64 {
        let sizes = self.slot_sizes().map(|size| size as f64);
        let [place, time] = [slot::PLACE, slot::TIME].map(|slot| 1.0 - 1.0 / sizes[slot]);
        let synonym = -(SECOND * SECOND.ln() + (1.0 - SECOND) * (1.0 - SECOND).ln());
        let small = (VOICES as f64).ln()
            + (NEGATIONS.len() as f64).ln() / 2.0
            + place * (PREPOSITIONS.len() as f64).ln()
            + (5.0 + place) * synonym;
        match self {
            Self::Small => small,
            Self::Large => small + (FILLERS.len() as f64).ln() + time * 2.0_f64.ln(),
        }
    }
}

#[derive(Clone, Copy)]
enum Form {
    Active,
    Passive { is_plural: bool },
}

/// Returns the words of the verb.
fn verb(meaning: &Meaning, surface: &Surface, form: Form) -> Vec<&'static str> {
    let [base, third, past, participle] =
        VERBS[usize::from(meaning[slot::VERB])][usize::from(surface.second[2])];
    let negation = (meaning[slot::POLARITY] > 0).then(|| NEGATIONS[usize::from(surface.negation)]);
    let tense = usize::from(meaning[slot::TENSE]);
    let ([before, after], rest) = match form {
        Form::Passive { is_plural } => {
            let to_be = [["was", "were"], ["is", "are"], ["will", "will"]][tense];
            let be = if tense == 2 { Some("be") } else { None };
            ([Some(to_be[usize::from(is_plural)]), be], participle)
        }
        Form::Active if tense == 2 => ([Some("will"), None], base),
        Form::Active if negation == Some(NEGATIONS[0]) => {
            ([Some(["did", "does"][tense]), None], base)
        }
        Form::Active => ([None, None], [past, third][tense]),
    };
    [before, negation, after, Some(rest)].into_iter().flatten().collect()
}
