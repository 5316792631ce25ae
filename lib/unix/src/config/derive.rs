//! Converts the JSON Schema that `schemars` derives from a type to a [`Schema`].

use serde_json::{Map, Value};

use super::schema::{Bounds, Record, Schema, Shape};

/// Maximum depth to which recursive types are followed.
const MAX_DEPTH: usize = 24;

/// Returns the schema of a whole document.
pub(super) fn schema(json: &Value) -> Schema {
    let none = Map::new();
    let named = json.get("$defs").and_then(Value::as_object).unwrap_or(&none);
    Reader { named }.schema(json, 0)
}

struct Reader<'a> {
    named: &'a Map<String, Value>,
}

impl Reader<'_> {
    fn schema(&self, json: &Value, depth: usize) -> Schema {
        let Some(json) = json.as_object().filter(|_| depth < MAX_DEPTH) else {
            return Schema::any();
        };
        let mut schema = self.schema_without_doc(json, depth);
        if let Some(doc) = json.get("description").and_then(Value::as_str) {
            schema.doc = first_paragraph(doc);
        }
        if let Some(default) = json.get("default") {
            schema.default = Some(default.clone());
        }
        schema
    }

    /// Converts a schema except for doc and default.
    fn schema_without_doc(&self, json: &Map<String, Value>, depth: usize) -> Schema {
        if let Some(name) = json.get("$ref").and_then(Value::as_str) {
            let name = name.trim_start_matches("#/$defs/").replace("~1", "/").replace("~0", "~");
            let named =
                self.named.get(&name).map_or_else(Schema::any, |s| self.schema(s, depth + 1));
            // Keys next to `$ref` are the keys that a tagged enum adds to a struct.
            return if json.contains_key("properties") {
                prepend_fields(named, self.object(json, depth))
            } else {
                named
            };
        }
        let several =
            ["anyOf", "oneOf", "allOf"].iter().find_map(|name| json.get(*name)?.as_array());
        if let Some(several) = several {
            return either(several.iter().map(|one| self.schema(one, depth + 1)).collect());
        }
        if let Some(words) = json.get("enum").and_then(Value::as_array) {
            let nullable = words.contains(&Value::Null);
            let words = words.iter().filter_map(Value::as_str).map(String::from).collect();
            return Schema { nullable, shape: Shape::Choice(words), ..Schema::any() };
        }
        if let Some(word) = json.get("const").and_then(Value::as_str) {
            let shape = Shape::Choice(vec![word.into()]);
            return Schema { nullable: false, shape, ..Schema::any() };
        }
        let kinds: Vec<&str> = match json.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => return Schema::any(),
        };
        let one = |kind: &str| Schema {
            nullable: kind == "null",
            shape: self.shape(kind, json, depth),
            ..Schema::any()
        };
        either(kinds.into_iter().map(one).collect())
    }

    fn shape(&self, kind: &str, json: &Map<String, Value>, depth: usize) -> Shape {
        match kind {
            "string" => Shape::Text,
            "boolean" => Shape::Flag,
            "integer" => integer(json),
            "number" => {
                let bound = |name: &str| json.get(name).and_then(Value::as_f64);
                Shape::Number(Bounds {
                    minimum: bound("minimum"),
                    above: bound("exclusiveMinimum"),
                    maximum: bound("maximum"),
                    below: bound("exclusiveMaximum"),
                })
            }
            "array" => {
                let count = |name: &str| json.get(name).and_then(Value::as_u64);
                let items = json
                    .get("items")
                    .map_or_else(Schema::any, |items| self.schema(items, depth + 1));
                let most = count("maxItems").map_or(usize::MAX, |n| n as usize);
                Shape::List(Box::new(items), count("minItems").unwrap_or(0) as usize, most)
            }
            "object" => self.object(json, depth),
            _ => Shape::Any, // "null", which `either` drops
        }
    }

    fn object(&self, json: &Map<String, Value>, depth: usize) -> Shape {
        let Some(properties) = json.get("properties").and_then(Value::as_object) else {
            return match json.get("additionalProperties") {
                Some(Value::Bool(false)) => Shape::Record(Record::default()),
                Some(items) => Shape::Map(Box::new(self.schema(items, depth + 1))),
                None => Shape::Map(Box::new(Schema::any())),
            };
        };
        let required = json.get("required").and_then(Value::as_array);
        let fields = properties.iter().map(|(name, field)| {
            let needed = required.is_some_and(|names| names.iter().any(|n| n == name.as_str()));
            (name.clone(), self.schema(field, depth + 1), needed)
        });
        Shape::Record(Record { fields: fields.collect() })
    }
}

/// Prepends additional keys to a record.
fn prepend_fields(mut named: Schema, more: Shape) -> Schema {
    if let (Shape::Record(record), Shape::Record(mut more)) = (&mut named.shape, more) {
        more.fields.append(&mut record.fields);
        record.fields = more.fields;
    }
    named
}

/// Combines alternatives into the simplest shape that accepts all of them.
fn either(mut several: Vec<Schema>) -> Schema {
    // Both "null" alone and "anything" are read as `Any`; `Option` adds the former.
    let null = |s: &Schema| s.nullable && s.shape == Shape::Any;
    let nullable = several.iter().any(|s| s.nullable);
    if several.len() > 1 {
        several.retain(|s| !null(s));
    }
    if several.len() == 1 {
        let mut only = several.remove(0);
        only.nullable |= nullable;
        return only;
    }
    let shape = choice(&several).or_else(|| tagged(&several)).unwrap_or(Shape::Either(several));
    Schema { nullable, shape, ..Schema::any() }
}

/// Merges the alternatives into one choice, if all of them are choices.
fn choice(several: &[Schema]) -> Option<Shape> {
    let words = several.iter().map(|one| match &one.shape {
        Shape::Choice(words) => Some(words.clone()),
        _ => None,
    });
    Some(Shape::Choice(words.collect::<Option<Vec<_>>>()?.concat()))
}

/// Merges the alternatives into a tagged union, if all of them are records that share a required key with a single,
/// distinct value.
fn tagged(several: &[Schema]) -> Option<Shape> {
    let word = |record: &Record, tag: &str| match record.fields.iter().find(|f| f.0 == tag) {
        Some((_, Schema { shape: Shape::Choice(words), .. }, true)) if words.len() == 1 => {
            Some(words[0].clone())
        }
        _ => None,
    };
    let record = |schema: &Schema| match &schema.shape {
        Shape::Record(record) => Some(record.clone()),
        _ => None,
    };
    let records: Vec<Record> = several.iter().map(record).collect::<Option<_>>()?;
    let names = records.first()?.fields.iter().map(|(name, ..)| name.clone());
    for tag in names {
        let words: Option<Vec<String>> = records.iter().map(|r| word(r, &tag)).collect();
        if let Some(words) = words {
            let without = |mut record: Record| {
                record.fields.retain(|(name, ..)| *name != tag);
                record
            };
            let records = records.into_iter().map(without);
            return Some(Shape::Tagged { variants: words.into_iter().zip(records).collect(), tag });
        }
    }
    None
}

/// Maximum of a size or count (`usize`) whose schema sets no bound, so that products of two of them do not overflow.
/// Like the limits of other types, it is omitted from descriptions.
const MAX_SIZE: i128 = (1 << 24) - 1;

/// Returns the bounds of an integer: the range of its Rust type, narrowed by the bounds in the schema.
fn integer(json: &Map<String, Value>) -> Shape {
    let format = json.get("format").and_then(Value::as_str).unwrap_or("int64");
    let is_size = format == "uint" && !json.contains_key("maximum");
    let bits = format.trim_start_matches("uint").trim_start_matches("int").parse::<u32>();
    let bits = bits.map_or(64, |bits| bits.min(64));
    let (lowest, highest) = match format.starts_with('u') {
        true if is_size => (0, MAX_SIZE),
        true => (0, (1_i128 << bits) - 1),
        false => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
    };
    let bound = |name: &str| {
        let number = json.get(name)?;
        let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        exact.or_else(|| number.as_f64().map(|x| x as i128))
    };
    Shape::Integer(
        bound("minimum").map_or(lowest, |n| n.max(lowest)),
        bound("maximum").map_or(highest, |n| n.min(highest)),
    )
}

/// Returns the first paragraph, joined into one line.
fn first_paragraph(doc: &str) -> String {
    let lines = doc.lines().map(str::trim).skip_while(|line| line.is_empty());
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
