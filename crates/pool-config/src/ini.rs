//! Lexer for the lines of a `pgbouncer.ini`: sections, keys with values, `%include`.
//!
//! ```text
//! ; comment            # comment
//! [section]
//! key = value to the end of the line, without trailing blanks
//! 'quoted key' = value
//! %include other.ini
//! ```
//!
//! A comment cannot follow a value on its line. A key consists of `A-Z`, `a-z`, `0-9` and `_.-*`,
//! or of anything in single quotes. A value may be empty.

/// A line of a `pgbouncer.ini`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IniLine<'a> {
    /// `[name]`.
    Section(&'a str),
    /// A key, without quotes if it had any, and the text after `=`.
    Pair { key: &'a str, value: &'a str },
    /// `%include file`.
    Include(&'a str),
    /// An invalid line; the text says what is wrong.
    Invalid(&'static str),
}

/// Returns the lines that are neither empty nor comments, with their numbers from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, IniLine<'_>)> {
    let numbered = text.lines().enumerate();
    numbered.filter_map(|(index, line)| Some((index + 1, parse(line.trim())?)))
}

fn parse(line: &str) -> Option<IniLine<'_>> {
    if line.is_empty() || line.starts_with(['#', ';']) {
        return None;
    }
    if let Some(rest) = line.strip_prefix("%include").filter(|rest| rest.starts_with([' ', '\t'])) {
        return Some(IniLine::Include(rest.trim()));
    }
    if let Some(rest) = line.strip_prefix('[') {
        return Some(match rest.split_once(']') {
            Some((name, rest)) if rest.trim().is_empty() => IniLine::Section(name),
            Some(_) => IniLine::Invalid("unexpected text after the section's ]"),
            None => IniLine::Invalid("the section's ] is missing"),
        });
    }
    let (key, rest) = match line.strip_prefix('\'') {
        Some(rest) => match rest.split_once('\'') {
            Some(("", _)) => return Some(IniLine::Invalid("the key is empty")),
            Some(parts) => parts,
            None => return Some(IniLine::Invalid("the key's closing quote is missing")),
        },
        None => {
            let is_key = |c: char| c.is_ascii_alphanumeric() || "_.-*".contains(c);
            line.split_at(line.find(|c| !is_key(c)).unwrap_or(line.len()))
        }
    };
    let pair = rest.trim_start().strip_prefix('=');
    Some(match pair {
        Some(_) if key.is_empty() => IniLine::Invalid("there is no key before the ="),
        Some(value) => IniLine::Pair { key, value: value.trim() },
        None => IniLine::Invalid("this is not `key = value`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_section_pair_or_include() {
        let text = "; c\n[databases]\n\n shop = host=a dbname='b c'  \n* = host=x ; no comment\n\
                    '*quoted*'=\n%include more.ini\n%included=1\n[open\n[x] y\nkey\n''=a\n =b\n'k = v\n";
        let broken = |why| IniLine::Invalid(why);
        let expected = [
            (2, IniLine::Section("databases")),
            (4, IniLine::Pair { key: "shop", value: "host=a dbname='b c'" }),
            (5, IniLine::Pair { key: "*", value: "host=x ; no comment" }),
            (6, IniLine::Pair { key: "*quoted*", value: "" }),
            (7, IniLine::Include("more.ini")),
            (8, broken("this is not `key = value`")),
            (9, broken("the section's ] is missing")),
            (10, broken("unexpected text after the section's ]")),
            (11, broken("this is not `key = value`")),
            (12, broken("the key is empty")),
            (13, broken("there is no key before the =")),
            (14, broken("the key's closing quote is missing")),
        ];
        assert_eq!(lines(text).collect::<Vec<_>>(), expected);
    }
}
