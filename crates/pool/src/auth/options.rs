//! The `options` of a startup packet: command-line options for the server, as in `PGOPTIONS`.
//!
//! ```text
//! -c name=value  -cname=value  --name=value
//! ```
//!
//! Arguments are separated by whitespace; a backslash escapes the next character. A `-` in a name
//! means `_`. Source: `pg_split_opts` in `postinit.c`, `ParseLongOption` in `guc.c`.

/// The error for `options` that contain anything other than `-c name=value` and `--name=value`.
use howdah_pool_core::SessionParameter;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnsupportedOptions;

/// Parses the parameters, in the order given.
pub(super) fn parse(options: &[u8]) -> Result<Vec<SessionParameter>, UnsupportedOptions> {
    let mut arguments = split_options(options).into_iter();
    let mut settings = Vec::new();
    while let Some(argument) = arguments.next() {
        let pair = match argument.as_slice() {
            b"-c" => arguments.next().ok_or(UnsupportedOptions)?,
            [b'-', b'c', pair @ ..] | [b'-', b'-', pair @ ..] => pair.to_vec(),
            _ => return Err(UnsupportedOptions),
        };
        let equals = pair.iter().position(|byte| *byte == b'=').ok_or(UnsupportedOptions)?;
        let (name, value) = (&pair[..equals], &pair[equals + 1..]);
        if name.is_empty() {
            return Err(UnsupportedOptions);
        }
        let name: Vec<u8> =
            name.iter().map(|byte| if *byte == b'-' { b'_' } else { *byte }).collect();
        settings.push(SessionParameter::new(name, value));
    }
    Ok(settings)
}

fn split_options(options: &[u8]) -> Vec<Vec<u8>> {
    let mut arguments = Vec::new();
    let mut argument: Option<Vec<u8>> = None;
    let mut bytes = options.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => argument.get_or_insert_default().extend(bytes.next()),
            // C's isspace, which includes the vertical tab.
            byte if byte.is_ascii_whitespace() || byte == 0x0b => arguments.extend(argument.take()),
            byte => argument.get_or_insert_default().push(byte),
        }
    }
    arguments.extend(argument);
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(options: &str) -> Result<Vec<String>, UnsupportedOptions> {
        let found = parse(options.as_bytes())?;
        Ok(found.iter().map(|setting| format!("{setting:?}")).collect())
    }

    #[test]
    fn parameters_have_three_forms() {
        let text = " -c geqo=off -cDateStyle=ISO\t--search-path=a,b ";
        assert_eq!(settings(text).unwrap(), ["geqo=off", "DateStyle=ISO", "search_path=a,b"]);
        assert_eq!(settings("").unwrap(), [""; 0]);
    }

    #[test]
    fn backslash_escapes_next_character() {
        assert_eq!(settings(r"-c a=b\ c").unwrap(), ["a=b c"]);
        assert_eq!(settings(r"-c a=b\\c=d").unwrap(), [r"a=b\c=d"]);
        assert_eq!(settings(r"-c\ a=b").unwrap(), [" a=b"]);
        assert_eq!(settings(r"-c a=b\").unwrap(), ["a=b"]);
    }

    #[test]
    fn other_options_are_refused() {
        for text in ["-c", "-c a", "--a", "-f s", "a=b", "--=x", "-c =x", "\\"] {
            assert_eq!(settings(text), Err(UnsupportedOptions), "{text}");
        }
    }
}
