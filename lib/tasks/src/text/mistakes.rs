//! The report page on a classifier's errors: by label, by length, and the calibration of its probabilities.

use super::metrics::{Reliability, predicted_classes};
use data::text::TokenSet;
use learn::score::Confusion;
use report::axis::{Axis, plain, short};
use report::canvas::{self, Area};
use report::colours::{GREY, distinct};
use report::document::{Cell, Document, Table};
use report::evaluation::MetricsByName;
use report::panel::{Curve, Mark, Panel};
use serde_json::Value;
use unix::Result;

/// Maximum number of labels for which the confusion matrix is shown.
const MAX_MATRIX_LABELS: usize = 24;
/// Number of equally large groups into which texts are divided by length.
const LENGTH_GROUPS: usize = 5;

/// Adds the sections on a classifier with one class per text, given its probabilities [texts, classes] and the true
/// classes of `set`.
pub(super) fn add_class_sections(
    page: &mut Document,
    set: &TokenSet,
    truth: &[usize],
    probabilities: &[f64],
) -> Result<()> {
    let labels = &set.info().labels;
    let (classes, texts) = (labels.len(), set.len());
    let predicted = predicted_classes(probabilities, classes);
    let confidence = |i: usize| probabilities[i * classes + predicted[i]];
    let mut confusion = Confusion::new(classes);
    truth.iter().zip(&predicted).for_each(|(truth, predicted)| confusion.add(*truth, *predicted));
    let right: Vec<bool> = truth.iter().zip(&predicted).map(|(a, b)| a == b).collect();
    page.paragraph(format!(
        "{} of {texts} texts are misclassified. Accuracy {}, macro F1 {}.",
        right.iter().filter(|right| !**right).count(),
        short(confusion.accuracy()),
        short(confusion.macro_average().f1)
    ));
    page.heading("By label");
    page.table(by_label(&confusion, labels));
    if classes <= MAX_MATRIX_LABELS {
        page.heading("Confusion matrix");
        page.paragraph("Rows are true labels, columns predicted ones.");
        page.table(matrix(&confusion, labels));
    }
    page.heading("By length");
    page.paragraph(
        "Texts of similar length, in tokens; confidence is the mean probability of the predicted label.",
    );
    let lengths: Vec<usize> = (0..texts).map(|i| set.text_len(i)).collect();
    page.table(by_length(&lengths, &right, confidence));
    page.heading("Reliability");
    let events = (0..texts).map(|i| (confidence(i), right[i], 1));
    page.picture(
        "How often the predicted label is right, by its probability",
        diagram(&Reliability::of(events))?,
    );
    Ok(())
}

/// Adds the sections on a multi-label classifier, given its metrics and classification report.
pub(super) fn add_label_sections(
    page: &mut Document,
    metrics: &MetricsByName,
    report: &Value,
    set: &TokenSet,
) {
    let labels = &set.info().labels;
    page.paragraph(format!(
        "{} texts, {} labels. Accuracy (all labels of a text correct) {}, macro F1 {}.",
        set.len(),
        labels.len(),
        short(metrics["accuracy"].value),
        short(metrics["f1_macro"].value)
    ));
    page.heading("By label");
    let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
    for label in labels {
        let own = &report[label];
        let number = |key: &str| Cell::number(own[key].as_f64().map_or(String::new(), short));
        let texts = Cell::number(own["support"].to_string());
        let scores = ["precision", "recall", "f1-score"].map(number);
        table.row([Cell::text(label), texts].into_iter().chain(scores));
    }
    page.table(table);
}

/// Scores of each label, and the label that it is most often confused with.
fn by_label(confusion: &Confusion, labels: &[String]) -> Table {
    let mut table = Table::new([
        "label",
        "texts",
        "precision",
        "recall",
        "F1",
        "most often confused with",
        "times",
    ]);
    for (class, scores) in confusion.of_classes() {
        let row = &confusion.counts()[class];
        let others = (0..labels.len()).filter(|other| *other != class);
        let taken = others.max_by_key(|other| (row[*other], std::cmp::Reverse(*other)));
        let taken = taken.filter(|other| row[*other] > 0);
        table.row([
            Cell::text(&labels[class]),
            Cell::number(row.iter().sum::<u64>().to_string()),
            Cell::number(short(scores.precision)),
            Cell::number(short(scores.recall)),
            Cell::number(short(scores.f1)),
            Cell::text(taken.map_or("", |other| labels[other].as_str())),
            Cell::number(taken.map_or(String::new(), |other| row[other].to_string())),
        ]);
    }
    table
}

fn matrix(confusion: &Confusion, labels: &[String]) -> Table {
    let mut table = Table::new(std::iter::once("").chain(labels.iter().map(String::as_str)));
    for (label, row) in labels.iter().zip(confusion.counts()) {
        let counts = row.iter().map(|count| Cell::number(count.to_string()));
        table.row(std::iter::once(Cell::text(label)).chain(counts));
    }
    table
}

fn by_length(lengths: &[usize], right: &[bool], confidence: impl Fn(usize) -> f64) -> Table {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|i| lengths[*i]);
    let mut table = Table::new(["tokens", "texts", "accuracy", "confidence"]);
    for own in order.chunks(lengths.len().div_ceil(LENGTH_GROUPS).max(1)) {
        let n = own.len() as f64;
        let (first, last) = (lengths[own[0]], lengths[own[own.len() - 1]]);
        let range = if first == last { first.to_string() } else { format!("{first}–{last}") };
        table.row([
            Cell::text(range),
            Cell::number(own.len().to_string()),
            Cell::number(short(own.iter().filter(|i| right[**i]).count() as f64 / n)),
            Cell::number(short(own.iter().map(|i| confidence(*i)).sum::<f64>() / n)),
        ]);
    }
    table
}

/// A reliability diagram, with the number of texts of each bin as the size of its mark.
fn diagram(reliability: &Reliability) -> Result<Vec<u8>> {
    let bins: Vec<_> = reliability.bins.iter().filter(|bin| bin.count > 0).collect();
    let all: u64 = bins.iter().map(|bin| bin.count).sum();
    let error = reliability.error().map_or(String::new(), |ece| format!("ECE {}", plain(ece)));
    let diagonal = Curve::new("calibrated", GREY, 1.4, [(0.0, 0.0), (1.0, 1.0)]).dashed(6.0, 4.0);
    let points = bins.iter().map(|bin| (bin.confidence, bin.frequency));
    let mut curves = vec![Curve::new("", distinct(0), 1.4, points)];
    curves.extend(bins.iter().map(|bin| {
        let radius = 3.0 + 12.0 * (bin.count as f64 / all as f64).sqrt();
        let point = [(bin.confidence, bin.frequency)];
        Curve::points("", distinct(0), (Mark::Disc, radius), point)
    }));
    curves.push(diagonal);
    canvas::png(640, 560, |canvas| {
        let area = Area { x: 8.0, y: 8.0, width: 620.0, height: 544.0 };
        let x = Axis::linear("probability", 0.0, 1.0);
        let y = Axis::linear("share of correct predictions", 0.0, 1.0);
        Panel::new(canvas, area, x, y).curves(&error, &curves)
    })
}
