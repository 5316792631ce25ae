//! The text of Markdown without its markup, and the cells of table rows, in time proportional to the length.
//!
//! Markup is found line by line, as in CommonMark 0.31 and the tables and strikethrough of GitHub, with two
//! simplifications: emphasis, code spans and links end on the line on which they begin, and the rows of a table begin with
//! a pipe. Markers without a partner stay, as do HTML, block quotes and indented code.

use std::collections::HashMap;

/// Removes headings' number signs, thematic breaks, markers of lists, pipes and separator rows of tables, lines that fence
/// code, backquotes of code spans, emphasis, strikethrough, backslashes of escapes, and the destinations of links and
/// images. Fenced lines are treated like others, because models put whole answers between fences.
pub fn plain_text(text: &str) -> String {
    let is_markup = |line: &&str| is_fence(line) || is_separator(line) || is_break(line);
    let lines: Vec<String> = text.lines().filter(|line| !is_markup(line)).map(plain_line).collect();
    lines.join("\n")
}

/// The text of a line, or of a cell of a table, without markup within lines.
pub fn plain_inline(text: &str) -> String {
    let mut line = Inline::new(text);
    line.code_and_escapes();
    line.links();
    line.emphasis('*');
    line.emphasis('_');
    line.emphasis('~');
    line.kept.iter().zip(&line.chars).filter(|(kept, _)| **kept).map(|(_, c)| *c).collect()
}

/// The cells of a row of a table, without white space around them: a line that begins with a pipe, unless it separates
/// the header from the rows below. The last pipe may be missing, and `\|` is no pipe.
pub fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.trim().strip_prefix('|')?;
    if is_separator(line) {
        return None;
    }
    let (mut all, mut start, mut is_escaped) = (Vec::new(), 0, false);
    for (at, c) in row.char_indices() {
        if c == '|' && !is_escaped {
            all.push(row[start..at].trim());
            start = at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    if start < row.len() {
        all.push(row[start..].trim());
    }
    Some(all)
}

/// Whether a line opens or closes a block of code.
fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    // A code span may also begin a line.
    let is_span = || line.trim_start_matches('`').contains('`');
    line.starts_with("~~~") || line.starts_with("```") && !is_span()
}

/// Whether a line is the row of dashes below the header of a table.
fn is_separator(line: &str) -> bool {
    let Some(row) = line.trim().strip_prefix('|') else { return false };
    let row = row.strip_suffix('|').unwrap_or(row);
    row.split('|').all(|cell| {
        let cell = cell.trim();
        let cell = cell.strip_prefix(':').unwrap_or(cell);
        let cell = cell.strip_suffix(':').unwrap_or(cell);
        !cell.is_empty() && cell.chars().all(|c| c == '-')
    })
}

/// Whether a line is a thematic break: three or more of one of `*-_`.
fn is_break(line: &str) -> bool {
    let marks = || line.chars().filter(|c| !c.is_whitespace());
    let Some(first @ ('*' | '-' | '_')) = marks().next() else { return false };
    marks().count() >= 3 && marks().all(|c| c == first)
}

/// A line without markup.
fn plain_line(line: &str) -> String {
    let mut rest = line;
    while let Some(item) = after_list_marker(rest) {
        rest = item;
    }
    if let Some(heading) = heading(rest) {
        return plain_inline(heading);
    }
    match cells(rest) {
        Some(cells) => {
            let all: Vec<String> = cells.into_iter().map(plain_inline).collect();
            all.iter()
                .filter(|cell| !cell.is_empty())
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(" ")
        }
        None => plain_inline(rest),
    }
}

/// What follows the marker of a list: `-`, `*`, `+`, or up to nine digits with `.` or `)`, and white space.
fn after_list_marker(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let rest = match digits {
        0 => line.strip_prefix(['-', '*', '+'])?,
        1..=9 => line[digits..].strip_prefix(['.', ')'])?,
        _ => return None,
    };
    (rest.is_empty() || rest.starts_with(char::is_whitespace)).then(|| rest.trim_start())
}

/// The text of a heading.
fn heading(line: &str) -> Option<&str> {
    let line = line.trim();
    let text = line.trim_start_matches('#');
    if !(1..=6).contains(&(line.len() - text.len())) {
        return None;
    }
    let is_heading = text.is_empty() || text.starts_with(char::is_whitespace);
    let open = text.trim_end_matches('#');
    let text = if open.ends_with(char::is_whitespace) { open } else { text };
    is_heading.then(|| text.trim())
}

/// The characters of a line, and what is left of them.
struct Inline {
    chars: Vec<char>,
    /// Whether the plain text has the character.
    kept: Vec<bool>,
    /// Whether the character may be markup.
    is_active: Vec<bool>,
}

impl Inline {
    fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let (kept, is_active) = (vec![true; chars.len()], vec![true; chars.len()]);
        Self { chars, kept, is_active }
    }

    /// Whether `c`, as markup, is in this place.
    fn is(&self, at: usize, c: char) -> bool {
        self.chars.get(at) == Some(&c) && self.is_active[at]
    }

    fn remove(&mut self, at: usize) {
        (self.kept[at], self.is_active[at]) = (false, false);
    }

    /// The runs of `c`, as their beginnings and lengths.
    fn runs(&self, c: char) -> Vec<(usize, usize)> {
        let (mut runs, mut at) = (Vec::new(), 0);
        while at < self.chars.len() {
            let length = (at..self.chars.len()).take_while(|i| self.is(*i, c)).count();
            if length > 0 {
                runs.push((at, length));
            }
            at += length.max(1);
        }
        runs
    }

    /// Removes the backquotes of code spans and the backslashes before punctuation; what they protect is no markup.
    fn code_and_escapes(&mut self) {
        // A backquote in a code span closes it even behind a backslash, so that runs are known before escapes.
        let runs = self.runs('`');
        let (mut next, mut closing) = (HashMap::new(), vec![None; runs.len()]);
        for (number, (_, length)) in runs.iter().enumerate().rev() {
            closing[number] = next.insert(*length, number);
        }
        let (mut number, mut at) = (0, 0);
        while at < self.chars.len() {
            while runs.get(number).is_some_and(|(start, _)| *start < at) {
                number += 1;
            }
            let run = runs.get(number).filter(|(start, _)| *start == at);
            if let Some((start, length)) = run {
                at = start + length;
                if let Some((close, _)) = closing[number].map(|own| runs[own]) {
                    (*start..at).chain(close..close + length).for_each(|i| self.remove(i));
                    self.is_active[at..close].fill(false);
                    at = close + length;
                }
            } else if self.chars[at] == '\\'
                && self.chars.get(at + 1).is_some_and(char::is_ascii_punctuation)
            {
                self.remove(at);
                self.is_active[at + 1] = false;
                at += 2;
            } else {
                at += 1;
            }
        }
    }

    /// Reduces links and images, `[text](destination "title")`, to their texts.
    fn links(&mut self) {
        let length = self.chars.len();
        // The parenthesis that closes the one in each place, and the next white space.
        let (mut partner, mut open) = (vec![None; length], Vec::new());
        for at in 0..length {
            if self.is(at, '(') {
                open.push(at);
            } else if self.is(at, ')')
                && let Some(start) = open.pop()
            {
                partner[start] = Some(at);
            }
        }
        let mut space = vec![length; length + 1];
        for at in (0..length).rev() {
            space[at] = if self.chars[at].is_whitespace() { at } else { space[at + 1] };
        }
        let (mut brackets, mut at) = (Vec::new(), 0);
        while at < length {
            if self.is(at, '[') {
                brackets.push(at);
            } else if self.is(at, ']')
                && let Some(start) = brackets.pop()
                && let Some(end) = partner.get(at + 1).copied().flatten()
                && (space[at + 1] >= end
                    || matches!(self.chars.get(space[at + 1] + 1), Some('"' | '\'')))
            {
                if start > 0 && self.is(start - 1, '!') {
                    self.remove(start - 1);
                }
                self.remove(start);
                (at..=end).for_each(|i| self.remove(i));
                at = end;
            }
            at += 1;
        }
    }

    /// Removes the markers of emphasis that have a partner, by the rules of CommonMark for runs that open and close it.
    fn emphasis(&mut self, c: char) {
        // Ends of the runs that may open emphasis, and the lengths of what is left of them.
        let mut open: Vec<(usize, usize)> = Vec::new();
        for (start, length) in self.runs(c) {
            if c == '~' && length != 2 {
                continue;
            }
            let [before, after] = [start.checked_sub(1), Some(start + length)]
                .map(|at| at.and_then(|at| self.chars.get(at)).copied().unwrap_or(' '));
            let is_punctuation = |c: char| !c.is_alphanumeric() && !c.is_whitespace();
            let faces = |inner: char, outer: char| {
                let is_free = outer.is_whitespace() || is_punctuation(outer);
                !inner.is_whitespace() && (!is_punctuation(inner) || is_free)
            };
            let (left, right) = (faces(after, before), faces(before, after));
            let is_word = c == '_';
            let can_open = left && (!is_word || !right || is_punctuation(before));
            let can_close = right && (!is_word || !left || is_punctuation(after));
            let mut rest = length;
            while can_close
                && rest > 0
                && let Some((end, available)) = open.last_mut()
            {
                let count = rest.min(*available);
                let (own, others) = (start + length - rest, *end - count);
                (*end, *available, rest) = (others, *available - count, rest - count);
                if *available == 0 {
                    open.pop();
                }
                (own..own + count).chain(others..others + count).for_each(|i| self.remove(i));
            }
            if can_open && rest > 0 {
                open.push((start + length, rest));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_removed() {
        for (text, expected) in [
            ("plain, 5*3 = 15 and 2 * 4", "plain, 5*3 = 15 and 2 * 4"),
            ("*a* **b** ***c*** _d_ __e__ ~~f~~", "a b c d e f"),
            ("**bold *and* _more_**", "bold and more"),
            ("**a *b**c* d", "a bc d"),
            ("snake_case_name and _x_", "snake_case_name and x"),
            ("un*frigging*believable", "unfriggingbelievable"),
            ("*open and **closed**", "*open and closed"),
            ("a ~ b ~~~ c", "a ~ b ~~~ c"),
            (
                "# Title #\n### Sub #3\n#no heading\n####### seven",
                "Title\nSub #3\n#no heading\n####### seven",
            ),
            (
                "- a\n  * b\n1. c\n12) d\n- - nested\n-5 degrees\n1.5 m",
                "a\nb\nc\nd\nnested\n-5 degrees\n1.5 m",
            ),
            ("- # **[a _b_](http://x/(y) \"t\")**", "a b"),
            ("[a](b) ![c](d) [e] (f) [g](h i) [j][k]", "a c [e] (f) [g](h i) [j][k]"),
            ("[![badge](x)](y)", "badge"),
            ("`*code*` ``a`b`` `open", "*code* a`b `open"),
            ("\\*a\\* \\# C:\\dir", "*a* # C:\\dir"),
            ("a\n---\nb\n* * *\nc", "a\nb\nc"),
            ("|A|**1**|\n|---|:-:|\n| B | x \\| y |\n|C||", "A 1\nB x | y\nC"),
            ("- |A|1|", "A 1"),
            ("```markdown\n|A|*x*|\n```\n*y*", "A x\ny"),
            ("~~~~ text\n`a`\n~~~~", "a"),
            ("```\nopen *a*", "open a"),
            ("``` a ``` b", " a  b"),
            ("", ""),
        ] {
            assert_eq!(plain_text(text), expected, "{text}");
        }
    }

    #[test]
    fn rows_have_cells() {
        assert_eq!(cells("|WELL|Ada 1|"), Some(vec!["WELL", "Ada 1"]));
        assert_eq!(cells("  | A | b |c "), Some(vec!["A", "b", "c"]));
        assert_eq!(cells("|A\\|B|c\\\\|"), Some(vec!["A\\|B", "c\\\\"]));
        assert_eq!(cells("|DATE|-|"), Some(vec!["DATE", "-"]));
        assert_eq!(cells("||x|"), Some(vec!["", "x"]));
        assert_eq!(cells("|"), Some(vec![]));
        for none in ["", "a | b", "|---|---|", "| :-- | --: |", "|-"] {
            assert_eq!(cells(none), None, "{none}");
        }
    }

    /// Looking for each partner from each marker would take 10¹⁰ steps for each text.
    #[test]
    fn hostile_texts_take_linear_time() {
        let count = 100_000;
        let of = |part: &str| plain_text(&part.repeat(count)).len();
        assert_eq!(of("|"), 0);
        assert_eq!(of("*"), 0);
        assert_eq!(of("- "), 0);
        for part in [
            "*a", "a*", "_a ", "*a _", "[", "[a](", "](", "(", "![", "`a``b```", "~~a", "\\", "#",
            "[a](b ", "|a", "*_", "**a*",
        ] {
            let text = part.repeat(count);
            assert!(plain_text(&text).len() <= text.len());
        }
        let runs: String = (1..600).map(|n| "`".repeat(n) + "a").collect();
        assert_eq!(plain_text(&runs), runs);
        let nested = format!("{}x{}", "[".repeat(count), "](y)".repeat(count));
        assert_eq!(plain_text(&nested), "x");
        let nested = format!("{}{}", "[a](".repeat(count), ")".repeat(count));
        assert_eq!(plain_text(&nested), "a");
        assert_eq!(
            plain_text(&format!("{}x{}", "**".repeat(count), "*".repeat(count))),
            "*".repeat(count) + "x"
        );
    }
}
