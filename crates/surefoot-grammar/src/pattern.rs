//! Patterns as JSON schemas (ECMA 262) and other servers understand them: classes mean ASCII, and a
//! bracket in a class is itself.

/// A pattern in which `\d` and `\w` are ASCII.
pub(crate) fn ascii_classes(pattern: &str) -> String {
    let mut written = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('d') => written.push_str(if in_class { "0-9" } else { "[0-9]" }),
                Some('D') if !in_class => written.push_str("[^0-9]"),
                Some('w') => written.push_str(if in_class { "0-9A-Za-z_" } else { "[0-9A-Za-z_]" }),
                Some('W') if !in_class => written.push_str("[^0-9A-Za-z_]"),
                Some('/') => written.push('/'),
                Some(other) => written.extend(['\\', other]),
                None => written.push('\\'),
            },
            '[' if in_class => written.push_str("\\["),
            '[' => {
                in_class = true;
                written.push(c);
            }
            ']' => {
                in_class = false;
                written.push(c);
            }
            '&' | '~' if in_class => written.extend(['\\', c]),
            other => written.push(other),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ascii_and_signs_in_classes_are_themselves() {
        assert_eq!(ascii_classes(r"\d+\.\w"), r"[0-9]+\.[0-9A-Za-z_]");
        assert_eq!(ascii_classes(r"[\d[&]\W\/"), r"[0-9\[\&][^0-9A-Za-z_]/");
    }
}
