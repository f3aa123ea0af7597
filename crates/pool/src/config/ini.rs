//! The lines of a `pgbouncer.ini`: sections, keys with their values, `%include`.
//!
//! ```text
//! ; comment            # comment
//! [section]
//! key = value to the end of the line, trailing blanks off
//! 'quoted key' = value
//! %include other.ini
//! ```
//!
//! There are no comments behind values. A key is letters, digits and `_.-*`, or anything between
//! single quotes. The value of one that stands last on its line is empty.

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// `[name]`.
    Section(&'a str),
    /// `key = value`.
    Pair { key: &'a str, value: &'a str },
    /// `%include file`.
    Include(&'a str),
    /// Nothing that anybody understands, and why.
    Broken(&'static str),
}

/// Lines that say something, with their numbers from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, Line<'_>)> {
    let numbered = text.lines().enumerate();
    numbered.filter_map(|(index, line)| Some((index + 1, parse(line.trim())?)))
}

fn parse(line: &str) -> Option<Line<'_>> {
    if line.is_empty() || line.starts_with(['#', ';']) {
        return None;
    }
    if let Some(rest) = line.strip_prefix("%include").filter(|rest| rest.starts_with([' ', '\t'])) {
        return Some(Line::Include(rest.trim()));
    }
    if let Some(rest) = line.strip_prefix('[') {
        return Some(match rest.split_once(']') {
            Some((name, rest)) if rest.trim().is_empty() => Line::Section(name),
            Some(_) => Line::Broken("there is something behind the section's ]"),
            None => Line::Broken("the section's ] is missing"),
        });
    }
    let (key, rest) = match line.strip_prefix('\'') {
        Some(rest) => match rest.split_once('\'') {
            Some(("", _)) => return Some(Line::Broken("the key is empty")),
            Some(parts) => parts,
            None => return Some(Line::Broken("the key's closing quote is missing")),
        },
        None => {
            let is_key = |c: char| c.is_ascii_alphanumeric() || "_.-*".contains(c);
            line.split_at(line.find(|c| !is_key(c)).unwrap_or(line.len()))
        }
    };
    let pair = rest.trim_start().strip_prefix('=');
    Some(match pair {
        Some(_) if key.is_empty() => Line::Broken("there is no key before the ="),
        Some(value) => Line::Pair { key, value: value.trim() },
        None => Line::Broken("this is no `key = value`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sections_pairs_and_includes() {
        let text = "; c\n[databases]\n\n shop = host=a dbname='b c'  \n* = host=x ; no comment\n\
                    '*quoted*'=\n%include more.ini\n%included=1\n[open\n[x] y\nkey\n''=a\n =b\n'k = v\n";
        let broken = |why| Line::Broken(why);
        let expected = [
            (2, Line::Section("databases")),
            (4, Line::Pair { key: "shop", value: "host=a dbname='b c'" }),
            (5, Line::Pair { key: "*", value: "host=x ; no comment" }),
            (6, Line::Pair { key: "*quoted*", value: "" }),
            (7, Line::Include("more.ini")),
            (8, broken("this is no `key = value`")),
            (9, broken("the section's ] is missing")),
            (10, broken("there is something behind the section's ]")),
            (11, broken("this is no `key = value`")),
            (12, broken("the key is empty")),
            (13, broken("there is no key before the =")),
            (14, broken("the key's closing quote is missing")),
        ];
        assert_eq!(lines(text).collect::<Vec<_>>(), expected);
    }
}
