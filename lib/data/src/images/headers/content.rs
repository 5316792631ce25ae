//! What a header says: fields with random values.

use crate::draw::Draw;

/// A kind of field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    Well,
    Company,
    Field,
    County,
    State,
    /// Number of the American Petroleum Institute, which identifies a well.
    Api,
    Date,
    /// Elevation of the surface.
    Elevation,
    Depth,
    Run,
}

/// A field of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The kind, which determines the label.
    pub kind: Kind,
    /// The value as printed.
    pub value: String,
}

const CONSONANTS: &[u8] = b"BCDFGHJKLMNPRSTVWZ";
const VOWELS: &[u8] = b"AEIOUY";
/// Consonants at the end of a syllable.
const ENDINGS: &[u8] = b"LMNRSTX";
const SUFFIXES: [&str; 6] = ["OIL", "GAS", "INC", "LTD", "CO", "LLC"];

impl Kind {
    /// Every kind, in the order of a clean page.
    pub const ALL: [Self; 10] = [
        Self::Well,
        Self::Company,
        Self::Field,
        Self::County,
        Self::State,
        Self::Api,
        Self::Date,
        Self::Elevation,
        Self::Depth,
        Self::Run,
    ];

    /// The label as printed.
    pub fn label(self) -> &'static str {
        match self {
            Self::Well => "WELL",
            Self::Company => "COMPANY",
            Self::Field => "FIELD",
            Self::County => "COUNTY",
            Self::State => "STATE",
            Self::Api => "API",
            Self::Date => "DATE",
            Self::Elevation => "ELEV",
            Self::Depth => "DEPTH",
            Self::Run => "RUN",
        }
    }

    /// Draws a value, of at most 13 characters, of a log of this well.
    fn value(self, well: &str, draw: &mut Draw) -> String {
        match self {
            Self::Well => well.into(),
            Self::Company => {
                let name = short_name(draw);
                format!("{name} {}", draw.pick(&SUFFIXES))
            }
            Self::Field | Self::County => short_name(draw),
            Self::State => name(2, draw),
            Self::Api => {
                // State, county and well; counties have odd numbers.
                let [state, county] = [1 + draw.below(50), 1 + 2 * draw.below(250)];
                format!("{state:02}-{county:03}-{:05}", draw.below(100_000))
            }
            Self::Date => {
                let [year, month] = [1940 + draw.below(80), 1 + draw.below(12)];
                let day = 1 + draw.below(28);
                match draw.chance(0.5) {
                    true => format!("{year}-{month:02}-{day:02}"),
                    false => format!("{month:02}/{day:02}/{year}"),
                }
            }
            Self::Elevation => format!("{}.{} FT", draw.below(8000), draw.below(10)),
            Self::Depth => match draw.chance(0.5) {
                true => format!("{} FT", 1000 + draw.below(19_000)),
                false => format!("{}.{} M", 300 + draw.below(5700), draw.below(10)),
            },
            Self::Run => {
                let number = 1 + draw.below(99);
                format!("{number}{}", char::from(b'A' + draw.below(26) as u8))
            }
        }
    }
}

/// Draws the name of a well, such as `TORVEK 12`.
pub fn well_name(draw: &mut Draw) -> String {
    let name = short_name(draw);
    format!("{name} {}", 1 + draw.below(99))
}

/// Draws `count` fields of different kinds, at most all of them, in random order or in that of [`Kind::ALL`].
pub fn fields(count: usize, well: &str, shuffled: bool, draw: &mut Draw) -> Vec<Field> {
    let mut kinds = Kind::ALL;
    for at in 0..count {
        let other = at + draw.below(kinds.len() - at);
        kinds.swap(at, other);
    }
    let chosen = &mut kinds[..count];
    if !shuffled {
        chosen.sort_unstable();
    }
    chosen.iter().map(|kind| Field { kind: *kind, value: kind.value(well, draw) }).collect()
}

/// Draws a name of two or three syllables, of at most nine letters.
fn short_name(draw: &mut Draw) -> String {
    let syllables = 2 + draw.below(2);
    name(syllables, draw)
}

/// Draws a name. Two syllables have about 700 thousand forms, too many to remember.
fn name(syllables: usize, draw: &mut Draw) -> String {
    let mut name = String::new();
    for _ in 0..syllables {
        name.push(char::from(draw.pick(CONSONANTS)));
        name.push(char::from(draw.pick(VOWELS)));
        if let Some(ending) = ENDINGS.get(draw.below(ENDINGS.len() + 1)) {
            name.push(char::from(*ending));
        }
    }
    name
}
