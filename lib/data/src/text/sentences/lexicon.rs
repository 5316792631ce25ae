//! The words of the synthetic language. The small language has the first entries of each list.

/// Two words with the same meaning.
pub type Pair = [&'static str; 2];

pub const PERSONS: [Pair; 32] = [
    ["teacher", "instructor"],
    ["doctor", "physician"],
    ["lawyer", "attorney"],
    ["farmer", "grower"],
    ["soldier", "trooper"],
    ["singer", "vocalist"],
    ["author", "writer"],
    ["thief", "robber"],
    ["king", "monarch"],
    ["child", "kid"],
    ["boss", "manager"],
    ["guest", "visitor"],
    ["pilot", "aviator"],
    ["sailor", "seaman"],
    ["cook", "chef"],
    ["nurse", "carer"],
    ["judge", "magistrate"],
    ["priest", "vicar"],
    ["student", "pupil"],
    ["merchant", "trader"],
    ["painter", "artist"],
    ["hunter", "trapper"],
    ["driver", "chauffeur"],
    ["friend", "pal"],
    ["cousin", "relative"],
    ["actor", "performer"],
    ["tailor", "dressmaker"],
    ["guard", "sentry"],
    ["servant", "butler"],
    ["clerk", "secretary"],
    ["scientist", "researcher"],
    ["detective", "investigator"],
];

/// Base form, third person singular, past and past participle.
pub type Verb = [&'static str; 4];

pub const VERBS: [[Verb; 2]; 14] = [
    [["give", "gives", "gave", "given"], ["hand", "hands", "handed", "handed"]],
    [["send", "sends", "sent", "sent"], ["mail", "mails", "mailed", "mailed"]],
    [["show", "shows", "showed", "shown"], ["present", "presents", "presented", "presented"]],
    [["sell", "sells", "sold", "sold"], ["trade", "trades", "traded", "traded"]],
    [["lend", "lends", "lent", "lent"], ["loan", "loans", "loaned", "loaned"]],
    [["offer", "offers", "offered", "offered"], ["propose", "proposes", "proposed", "proposed"]],
    [["bring", "brings", "brought", "brought"], ["carry", "carries", "carried", "carried"]],
    [["throw", "throws", "threw", "thrown"], ["toss", "tosses", "tossed", "tossed"]],
    [["award", "awards", "awarded", "awarded"], ["grant", "grants", "granted", "granted"]],
    [["pass", "passes", "passed", "passed"], ["slip", "slips", "slipped", "slipped"]],
    [["promise", "promises", "promised", "promised"], ["pledge", "pledges", "pledged", "pledged"]],
    [["leave", "leaves", "left", "left"], ["bequeath", "bequeaths", "bequeathed", "bequeathed"]],
    [["rent", "rents", "rented", "rented"], ["lease", "leases", "leased", "leased"]],
    [["ship", "ships", "shipped", "shipped"], ["forward", "forwards", "forwarded", "forwarded"]],
];

/// Singular and plural of the first and of the second word.
pub const THINGS: [[Pair; 2]; 32] = [
    [["book", "books"], ["volume", "volumes"]],
    [["letter", "letters"], ["note", "notes"]],
    [["coat", "coats"], ["jacket", "jackets"]],
    [["picture", "pictures"], ["portrait", "portraits"]],
    [["chair", "chairs"], ["stool", "stools"]],
    [["bag", "bags"], ["sack", "sacks"]],
    [["lamp", "lamps"], ["lantern", "lanterns"]],
    [["cup", "cups"], ["mug", "mugs"]],
    [["box", "boxes"], ["crate", "crates"]],
    [["stone", "stones"], ["rock", "rocks"]],
    [["horse", "horses"], ["pony", "ponies"]],
    [["boat", "boats"], ["canoe", "canoes"]],
    [["coin", "coins"], ["token", "tokens"]],
    [["hat", "hats"], ["cap", "caps"]],
    [["knife", "knives"], ["blade", "blades"]],
    [["rope", "ropes"], ["cord", "cords"]],
    [["carpet", "carpets"], ["rug", "rugs"]],
    [["flower", "flowers"], ["blossom", "blossoms"]],
    [["plate", "plates"], ["dish", "dishes"]],
    [["bottle", "bottles"], ["flask", "flasks"]],
    [["basket", "baskets"], ["hamper", "hampers"]],
    [["mirror", "mirrors"], ["reflector", "reflectors"]],
    [["drum", "drums"], ["tambour", "tambours"]],
    [["map", "maps"], ["chart", "charts"]],
    [["key", "keys"], ["passkey", "passkeys"]],
    [["candle", "candles"], ["taper", "tapers"]],
    [["shirt", "shirts"], ["blouse", "blouses"]],
    [["wheel", "wheels"], ["tyre", "tyres"]],
    [["bell", "bells"], ["chime", "chimes"]],
    [["dog", "dogs"], ["hound", "hounds"]],
    [["cake", "cakes"], ["tart", "tarts"]],
    [["sword", "swords"], ["sabre", "sabres"]],
];

pub const ADJECTIVES: [Pair; 12] = [
    ["big", "large"],
    ["small", "little"],
    ["old", "ancient"],
    ["new", "modern"],
    ["cheap", "inexpensive"],
    ["pretty", "beautiful"],
    ["heavy", "weighty"],
    ["broken", "damaged"],
    ["dirty", "filthy"],
    ["rare", "scarce"],
    ["strange", "odd"],
    ["shiny", "gleaming"],
];

/// The first is singular.
pub const COUNTS: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

/// Places, after `in` or `at`.
pub const PLACES: [Pair; 15] = [
    ["market", "bazaar"],
    ["school", "academy"],
    ["station", "terminal"],
    ["library", "archive"],
    ["museum", "gallery"],
    ["hotel", "inn"],
    ["office", "bureau"],
    ["theatre", "playhouse"],
    ["airport", "airfield"],
    ["hospital", "clinic"],
    ["church", "chapel"],
    ["cafe", "bistro"],
    ["harbour", "port"],
    ["stadium", "arena"],
    ["castle", "fortress"],
];

/// Times; the last word of each occurs nowhere else.
pub const TIMES: [&[&str]; 11] = [
    &["on", "monday"],
    &["on", "friday"],
    &["at", "noon"],
    &["at", "night"],
    &["in", "winter"],
    &["on", "sunday"],
    &["in", "summer"],
    &["in", "the", "morning"],
    &["in", "the", "evening"],
    &["at", "midnight"],
    &["on", "thursday"],
];

pub const PREPOSITIONS: Pair = ["in", "at"];

/// The negations: the first with an auxiliary verb, the others before the verb.
pub const NEGATIONS: [&str; 3] = ["not", "never", "hardly"];

/// Auxiliary verbs: the tense that each states, if any (past, present, future), and whether it makes the passive.
pub const AUXILIARIES: [(&str, Option<u8>, bool); 8] = [
    ("did", Some(0), false),
    ("does", Some(1), false),
    ("will", Some(2), false),
    ("was", Some(0), true),
    ("were", Some(0), true),
    ("is", Some(1), true),
    ("are", Some(1), true),
    ("be", None, true),
];

/// What a sentence of the large language begins with.
pub const FILLERS: [&[&str]; 8] = [
    &["of", "course"],
    &["it", "seems"],
    &["as", "usual"],
    &["so", "we", "hear"],
    &["without", "any", "doubt"],
    &["as", "everyone", "knows"],
    &["if", "memory", "serves"],
    &["according", "to", "our", "records"],
];
