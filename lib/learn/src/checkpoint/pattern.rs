//! Name patterns with `*` and `?`, as in a shell.

/// Whether `name` matches `pattern`: `*` matches any characters, dots included, `?` exactly one.
pub fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to continue when the last `*` has to match one more character.
    let mut again: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                again = Some((p + 1, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match again {
                Some((star, taken)) => {
                    again = Some((star, taken + 1));
                    p = star;
                    n = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        let cases = [
            ("*", "", true),
            ("*.weight", "core.0.weight", true),
            ("*.weight", "core.0.weights", false),
            ("core.?.w*t", "core.1.weight", true),
            ("core.?.w*t", "core.10.weight", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("", "a", false),
            ("ν?", "νx", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
