//! Synthetic annotations: sentences of posts that state a symptom of depression, or do not.
//!
//! A sentence has two clauses, one with a symptom and one with something harmless. Each clause has a marker that says
//! who it is about, when it was, or whether it is denied. The symptom is present if its clause has the affirming
//! marker; the other clause has the opposite one. The order of the clauses is random, and filler words separate marker
//! and symptom. Both classes therefore have the same words and bigrams, and only long-range word order tells them
//! apart. Easy sentences have a single clause, whose marker decides.

use crate::draw::Draw;
use tensor::random::{Philox, Purpose};
use unix::{Error, Result};

/// How difficult synthetic texts are: how many sentences can be decided by their words alone, and how long the questions of
/// dialogues are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, strum::Display)]
#[strum(serialize_all = "lowercase")]
pub enum Difficulty {
    /// All sentences; tables of two entries, sums of numbers below 20, two numbers.
    Easy,
    /// Three of ten, in the others order decides who is affected and what is denied; tables of four entries, sums of two
    /// numbers, three numbers.
    #[default]
    Medium,
    /// None; time, `not only` and double negation occur as well, and clauses of no importance; tables of eight entries,
    /// sums of three numbers, five numbers.
    Hard,
}

/// Parameters of the generated annotations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Criteria {
    /// Number of annotated sentences.
    pub samples: usize,
    /// Equal seeds give equal files.
    pub seed: u64,
    /// Maximum number of annotated sentences per post, from 1 to the number of symptoms.
    pub per_post: usize,
    /// How strongly the labels depend on word order.
    pub difficulty: Difficulty,
    /// Ratio of positive to negative sentences.
    pub imbalance: f64,
    /// Fraction of wrong labels.
    pub noise: f64,
}

/// An annotation, with the columns of the file in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    /// Identifies the post.
    pub post_id: String,
    /// Identifies the sentence.
    pub sentence_id: String,
    /// Text of the sentence.
    pub sentence: String,
    /// The symptom.
    pub symptom: &'static str,
    /// 1 if the writer has the symptom, else 0; flipped for the fraction `noise` of the sentences.
    pub status: u8,
    /// Explanation of the true status.
    pub explanation: &'static str,
    /// The text of the post, in which the sentence occurs once.
    pub post: String,
}

/// The names of the columns.
pub const COLUMNS: [&str; 7] = [
    "post_id",
    "sentence_id",
    "sentence_text",
    "DSM5_symptom",
    "status",
    "explanation",
    "post_text",
];

/// The file columns.yaml for these columns, to predict the class of a sentence.
pub const COLUMNS_YAML: &str = "\
text: sentence_text
label: status
group: post_id
id: sentence_id
criterion: DSM5_symptom
labels: [\"0\", \"1\"]
";

/// The file spans.yaml, to find the sentence of a post that is about a symptom.
pub const SPANS_YAML: &str = "\
text: DSM5_symptom
context: post_text
answer: sentence_text
group: post_id
id: sentence_id
";

/// The file joint.yaml, to predict the class of a sentence and find it in the post.
pub const JOINT_YAML: &str = "\
text: sentence_text
label: status
labels: [\"0\", \"1\"]
context: post_text
answer: sentence_text
group: post_id
id: sentence_id
";

/// Number of symptoms.
pub const SYMPTOM_COUNT: usize = SYMPTOMS.len();

const SYMPTOMS: [(&str, [&str; 3]); 10] = [
    ("DEPRESSED_MOOD", ["feel empty inside", "cry for no reason", "feel hopeless all day"]),
    ("ANHEDONIA", ["lose interest in everything", "find no joy in music", "drop every hobby"]),
    ("APPETITE_CHANGE", ["skip most meals", "lose weight without trying", "eat far too much"]),
    ("SLEEP_ISSUES", ["lie awake until dawn", "wake up at three", "sleep through whole days"]),
    ("PSYCHOMOTOR", ["move as if through mud", "pace the room for hours", "speak very slowly"]),
    (
        "FATIGUE",
        ["run out of energy by noon", "feel drained after nothing", "need hours to get up"],
    ),
    ("WORTHLESSNESS", ["feel like a burden", "blame myself for everything", "feel worth nothing"]),
    (
        "COGNITIVE_ISSUES",
        ["forget what was said", "stare at one page for hours", "fail to decide on anything"],
    ),
    (
        "SUICIDAL_THOUGHTS",
        ["think about not being here", "wish never to wake up", "plan for an end"],
    ),
    (
        "SPECIAL_CASE",
        ["worry about every illness", "see patterns that nobody sees", "hide from all visitors"],
    ),
];
const HARMLESS: [&str; 16] = [
    "cook for friends",
    "walk along the river",
    "play chess online",
    "water the plants",
    "take the early train",
    "read the local paper",
    "repair old radios",
    "swim on weekends",
    "sing in a choir",
    "paint small boats",
    "study for exams",
    "write long letters",
    "bake bread at home",
    "watch the football",
    "learn a new language",
    "clean the kitchen",
];
const FILLERS: [&str; 12] = [
    "as far as anyone can tell,",
    "to be honest,",
    "on most days,",
    "when the week is long,",
    "after the work is done,",
    "in one way or another,",
    "as the doctor once put it,",
    "whatever the weather,",
    "at home and elsewhere,",
    "strange as it sounds,",
    "in the city and outside,",
    "with or without company,",
];
const CONNECTORS: [&str; 3] = ["while", "and", "whereas"];
const NEUTRAL: [&str; 8] = [
    "Thank you for reading this far.",
    "The week was long and it rained a lot.",
    "I am new to this forum.",
    "My neighbour has two dogs.",
    "We moved here last spring.",
    "Does anybody else live in a small town?",
    "I wrote this on the train.",
    "There is not much more to say.",
];
const ASIDES: [&str; 4] = [
    "by the way, the bus was late,",
    "it is raining here,",
    "my phone is nearly empty,",
    "this is my second post,",
];

/// The marker of a clause that holds, the marker of one that does not, and the explanation of each class.
struct Markers {
    holds: &'static str,
    fails: &'static str,
    present: &'static str,
    absent: &'static str,
}

const NEGATION: Markers = Markers {
    holds: "I really do,",
    fails: "I do not,",
    present: "The writer affirms the symptom.",
    absent: "The writer denies the symptom.",
};
const PERSON: Markers = Markers {
    holds: "I tend to,",
    fails: "my sister tends to,",
    present: "The writer has the symptom.",
    absent: "Somebody else has the symptom.",
};
const TIME: Markers = Markers {
    holds: "these days I,",
    fails: "years ago I used to,",
    present: "The symptom is present now.",
    absent: "The symptom is in the past.",
};
const NOT_ONLY: Markers = Markers {
    holds: "not only do I,",
    fails: "not only does my brother,",
    present: "`Not only` affirms the symptom of the writer.",
    absent: "`Not only` affirms the symptom of somebody else.",
};
const DOUBLE: Markers = Markers {
    holds: "nobody can say that I do not,",
    fails: "nobody can say that I do,",
    present: "Two negations affirm the symptom.",
    absent: "The negation denies the symptom.",
};

impl Criteria {
    /// Generates all annotations, post by post.
    pub fn annotations(self) -> impl Iterator<Item = Annotation> {
        let random = Philox::new(self.seed, Purpose::Texts);
        let posts = (0..).scan(0, move |made, post| {
            let left = self.samples - *made;
            let draw = Draw::new(random, post);
            let own = (left > 0).then(|| self.post(draw, left))?;
            *made += own.len();
            Some(own)
        });
        posts.flatten()
    }

    /// Returns the annotations as a CSV file.
    pub fn csv(self) -> Result<Vec<u8>> {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(COLUMNS).map_err(Error::bug)?;
        for annotation in self.annotations() {
            let Annotation { post_id, sentence_id, sentence, symptom, status, .. } = &annotation;
            let status = status.to_string();
            let explanation = annotation.explanation;
            let row: [&str; 7] =
                [post_id, sentence_id, sentence, symptom, &status, explanation, &annotation.post];
            writer.write_record(row).map_err(Error::bug)?;
        }
        writer.into_inner().map_err(Error::bug)
    }

    /// Generates the annotations of one post, at most `left`.
    fn post(self, mut draw: Draw, left: usize) -> Vec<Annotation> {
        let count = (1 + draw.below(self.per_post)).min(left);
        let mut own: Vec<Annotation> = Vec::with_capacity(count);
        let mut sentences: Vec<String> = Vec::new();
        while own.len() < count {
            let (sentence, distractors, mut annotation) = self.sentence(&mut draw);
            // Each sentence must occur once in the post, and each symptom in one sentence.
            let is_new =
                |other: &String| !other.contains(&sentence) && !sentence.contains(other.as_str());
            let is_known = own.iter().any(|other| other.symptom == annotation.symptom);
            if is_known || !sentences.iter().all(is_new) {
                continue;
            }
            annotation.post_id = format!("p{:06}", draw.sample);
            annotation.sentence_id = format!("p{:06}_{}", draw.sample, own.len());
            sentences.push(sentence);
            sentences.extend(distractors);
            own.push(annotation);
        }
        for _ in 0..=draw.below(3) {
            sentences.push(draw.pick(&NEUTRAL).into());
        }
        for i in (1..sentences.len()).rev() {
            let other = draw.below(i + 1);
            sentences.swap(i, other);
        }
        let post = sentences.join(" ");
        own.iter_mut().for_each(|annotation| annotation.post.clone_from(&post));
        own
    }

    /// Generates a sentence, one or two distractors with the same words that state no symptom, and the annotation.
    fn sentence(self, draw: &mut Draw) -> (String, Vec<String>, Annotation) {
        let present = draw.chance(self.imbalance / (1.0 + self.imbalance));
        let (symptom, phrases) = draw.pick(&SYMPTOMS.each_ref());
        let (phrase, harmless) = (draw.pick(phrases), draw.pick(&HARMLESS));
        let fillers = [draw.pick(&FILLERS), draw.pick(&FILLERS)];
        let has_order = match self.difficulty {
            Difficulty::Easy => false,
            Difficulty::Medium => draw.chance(0.7),
            Difficulty::Hard => true,
        };
        let all = [NEGATION, PERSON, TIME, NOT_ONLY, DOUBLE];
        let known = if self.difficulty == Difficulty::Hard { all.len() } else { 2 };
        let markers = &all[draw.below(known)];
        let [own, opposite] = match present {
            true => [markers.holds, markers.fails],
            false => [markers.fails, markers.holds],
        };
        let mut sentence = format!("{own} {} {phrase}", fillers[0]);
        if has_order {
            let other = format!("{opposite} {} {harmless}", fillers[1]);
            let connector = draw.pick(&CONNECTORS);
            sentence = match draw.chance(0.5) {
                true => format!("{sentence}, {connector} {other}"),
                false => format!("{other}, {connector} {sentence}"),
            };
        }
        if self.difficulty == Difficulty::Hard && draw.chance(0.5) {
            sentence = format!("{} {sentence}", draw.pick(&ASIDES));
        }
        let sentence = capitalised(&sentence);
        let mut distractors =
            vec![format!("Somebody asked whether people {phrase}, or {} {harmless}.", fillers[0])];
        if draw.chance(0.5) {
            distractors.push(format!("The leaflet says that some {phrase}."));
        }
        let annotation = Annotation {
            post_id: String::new(),
            sentence_id: String::new(),
            sentence: sentence.clone(),
            symptom,
            status: u8::from(present != draw.chance(self.noise)),
            explanation: if present { markers.present } else { markers.absent },
            post: String::new(),
        };
        (sentence, distractors, annotation)
    }
}

fn capitalised(sentence: &str) -> String {
    let mut chars = sentence.chars();
    let first = chars.next().map(|c| c.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}
