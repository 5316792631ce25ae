//! Reports the worst items of an evaluation as JSON lines and as an HTML page.

use super::ItemLoss;
use crate::score::Bits;
use report::axis::short;
use report::document::{Cell, Comparison, Document, Table};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::PathBuf;
use unix::{Error, Result};

/// Maximum number of characters of a value shown on the page.
const MAX_VALUE_CHARS: usize = 400;

/// Presentation of an item.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Fields of the item: its ID, ground truth, prediction, etc.
    pub fields: Map<String, Value>,
    /// PNG image.
    pub picture: Option<Vec<u8>>,
    /// The true text and the one that the model wrote instead, whose differences the page marks.
    pub texts: Option<[String; 2]>,
}

/// Items with the largest losses so far, in descending order; ties are ordered by descending confidence, then by index.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WorstItems(Vec<(u64, ItemLoss)>);

impl WorstItems {
    /// Adds the items from index `first` on with their losses, and keeps the `most` worst items. A NaN loss counts as
    /// infinite.
    pub fn add(&mut self, first: u64, losses: &[ItemLoss], most: usize) {
        self.0.extend((first..).zip(losses.iter().copied()));
        let key = |x: Bits| if x.0.is_nan() { f64::INFINITY } else { x.0 };
        self.0.sort_by(|(a, x), (b, y)| {
            let by_loss = key(y.value).total_cmp(&key(x.value));
            by_loss.then(key(y.confidence).total_cmp(&key(x.confidence))).then(a.cmp(b))
        });
        self.0.truncate(most);
    }

    /// The indices of the items, the worst first.
    pub fn items(&self) -> Vec<u64> {
        self.0.iter().map(|(item, _)| *item).collect()
    }

    /// Returns `worst.jsonl` with one line per item, `worst.html`, which is `page` with these items added, and the
    /// pictures that `show` makes. `name` is the name of the loss.
    pub fn files(
        &self,
        name: &str,
        mut page: Document,
        show: impl Fn(u64) -> Result<Shown>,
    ) -> Result<Vec<(PathBuf, Vec<u8>)>> {
        let (mut text, mut files) = (Vec::new(), Vec::new());
        let (mut lines, mut figures) = (Vec::new(), Vec::new());
        for (rank, (item, loss)) in self.0.iter().enumerate() {
            let Shown { fields, picture, texts } = show(*item)?;
            let loss = Some(loss.value.0).filter(|loss| loss.is_finite());
            let mut line = Map::from_iter([
                ("item".to_string(), Value::from(*item)),
                (name.to_string(), Value::from(loss)),
            ]);
            line.extend(fields);
            if let Some(png) = &picture {
                let path = format!("pictures/worst-{}.png", rank + 1);
                line.insert("picture".into(), path.clone().into());
                files.push((path.into(), png.clone()));
            }
            figures.push((format!("{}: item {item}", rank + 1), picture, texts));
            serde_json::to_writer(&mut text, &line).map_err(Error::bug)?;
            text.push(b'\n');
            lines.push(line);
        }
        page.heading("Worst items");
        page.paragraph(format!("Those with the largest {name}, the largest first."));
        page.table(table(&lines));
        for (caption, png, texts) in figures {
            match (texts, png) {
                (Some([reference, answer]), png) => page.comparison(Comparison {
                    caption,
                    png,
                    reference: ("Reference; struck through: not in the answer".into(), reference),
                    answer: ("Answer; underlined: not in the reference".into(), answer),
                }),
                (None, Some(png)) => page.picture(caption, png),
                (None, None) => {}
            }
        }
        files.push(("worst.jsonl".into(), text));
        files.push(("worst.html".into(), page.html().into_bytes()));
        Ok(files)
    }
}

/// Builds a table with a row for each line and a column for each key; objects and lists are shown as JSON text.
fn table(lines: &[Map<String, Value>]) -> Table {
    let mut columns: Vec<&String> = Vec::new();
    for key in lines.iter().flat_map(Map::keys).filter(|key| *key != "picture") {
        if !columns.contains(&key) {
            columns.push(key);
        }
    }
    let mut table = Table::new(columns.iter().map(|key| key.as_str()));
    let cell = |value: Option<&Value>| match value {
        None | Some(Value::Null) => Cell::text(""),
        Some(Value::Number(number)) => match number.as_f64() {
            Some(value) if number.is_f64() => Cell::number(short(value)),
            _ => Cell::number(number.to_string()),
        },
        Some(Value::String(text)) => Cell::text(truncate(text)),
        Some(other) => Cell::text(truncate(&other.to_string())),
    };
    for line in lines {
        table.row(columns.iter().map(|key| cell(line.get(*key))));
    }
    table
}

/// Truncates a text to [`MAX_VALUE_CHARS`] characters, with an ellipsis if it is longer.
fn truncate(text: &str) -> String {
    let mut shown: String = text.chars().take(MAX_VALUE_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_do_not_depend_on_the_blocks() {
        let loss =
            |value, confidence| ItemLoss { value: Bits(value), confidence: Bits(confidence) };
        let all = [
            loss(0.5, 0.0),
            loss(f64::NAN, 0.0),
            loss(0.5, 2.0),
            loss(0.1, 9.0),
            loss(0.5, 0.0),
            loss(3.0, 0.0),
        ];
        let (mut whole, mut parts) = (WorstItems::default(), WorstItems::default());
        whole.add(0, &all, 4);
        for (number, own) in all.chunks(2).enumerate() {
            parts.add(2 * number as u64, own, 4);
        }
        assert_eq!((whole.items(), parts.items()), (vec![1, 5, 2, 0], vec![1, 5, 2, 0]));
        let show = |item| {
            let fields = Map::from_iter([("id".into(), format!("r{item}").into())]);
            let texts = (item == 2).then(|| ["1 < 2".into(), "1 < 3".into()]);
            Ok(Shown { fields, picture: (item == 5).then(|| vec![1]), texts })
        };
        let files = whole.files("nrmse", Document::new("Worst"), show).unwrap();
        let paths: Vec<_> = files.iter().map(|(path, _)| path.to_str().unwrap()).collect();
        assert_eq!(paths, ["pictures/worst-2.png", "worst.jsonl", "worst.html"]);
        let text = String::from_utf8(files[1].1.clone()).unwrap();
        assert!(text.starts_with("{\"item\":1,\"nrmse\":null,\"id\":\"r1\"}\n"), "{text}");
        assert!(text.contains("\"picture\":\"pictures/worst-2.png\"") && text.lines().count() == 4);
        let page = String::from_utf8(files[2].1.clone()).unwrap();
        let first = page.find("2: item 5").unwrap();
        let second = page.find("1 &lt; <del>2</del></pre>").unwrap();
        assert!(first < second && page.contains("1 &lt; <ins>3</ins></pre>"), "{page}");
    }
}
