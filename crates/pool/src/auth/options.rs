//! The `options` of a startup packet: a command line for the server, as `PGOPTIONS` has it.
//!
//! ```text
//! -c name=value  -cname=value  --name=value
//! ```
//!
//! Words end at blanks; a backslash takes the next character as it is. In `--name=value` a `-` of the
//! name stands for `_`. Source: `pg_split_opts` in `postinit.c`, `ParseLongOption` in `guc.c`.

use crate::Setting;

/// `options` that hold anything but settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotOnlySettings;

/// The settings, in their order.
pub(super) fn parse(options: &[u8]) -> Result<Vec<Setting>, NotOnlySettings> {
    let mut words = words(options).into_iter();
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let pair = match word.as_slice() {
            b"-c" => words.next().ok_or(NotOnlySettings)?,
            [b'-', b'c', pair @ ..] | [b'-', b'-', pair @ ..] => pair.to_vec(),
            _ => return Err(NotOnlySettings),
        };
        let equals = pair.iter().position(|byte| *byte == b'=').ok_or(NotOnlySettings)?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if name.is_empty() {
            return Err(NotOnlySettings);
        }
        let name: Vec<u8> =
            name.iter().map(|byte| if *byte == b'-' { b'_' } else { *byte }).collect();
        settings.push(Setting::new(name, value));
    }
    Ok(settings)
}

fn words(options: &[u8]) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = options.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => word.get_or_insert_default().extend(bytes.next()),
            // C's isspace, which has the vertical tab too.
            byte if byte.is_ascii_whitespace() || byte == 0x0b => words.extend(word.take()),
            byte => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &str) -> Result<Vec<String>, NotOnlySettings> {
        let found = parse(options.as_bytes())?;
        Ok(found.iter().map(|setting| format!("{setting:?}")).collect())
    }

    #[test]
    fn settings_come_in_three_forms() {
        let text = " -c geqo=off -cDateStyle=ISO\t--search-path=a,b ";
        assert_eq!(settings(text).unwrap(), ["geqo=off", "DateStyle=ISO", "search_path=a,b"]);
        assert_eq!(settings("").unwrap(), [""; 0]);
    }

    #[test]
    fn a_backslash_takes_the_next_character_as_it_is() {
        assert_eq!(settings(r"-c a=b\ c").unwrap(), ["a=b c"]);
        assert_eq!(settings(r"-c a=b\\c=d").unwrap(), [r"a=b\c=d"]);
        assert_eq!(settings(r"-c\ a=b").unwrap(), [" a=b"]);
        assert_eq!(settings(r"-c a=b\").unwrap(), ["a=b"]);
    }

    #[test]
    fn anything_else_is_no_setting() {
        for text in ["-c", "-c a", "--a", "-f s", "a=b", "--=x", "-c =x", "\\"] {
            assert_eq!(settings(text), Err(NotOnlySettings), "{text}");
        }
    }
}
