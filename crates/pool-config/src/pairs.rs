//! Parser for the connection strings of a `pgbouncer.ini`: `key=value key='value with blanks'`.
//!
//! A quote inside quotes is doubled. A backslash has no special meaning. As in PgBouncer, an empty
//! value is refused unless it is quoted.

/// The reason why a text is not a valid list of pairs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PairsError {
    /// A key is empty, contains whitespace, or is not followed by `=`.
    #[error("expected `key=value`")]
    NoEquals,
    /// The closing quote is missing.
    #[error("the value's closing quote is missing")]
    Unclosed,
    /// A key has no value: nothing follows `=`.
    #[error("{key} has no value: write an empty value as ''")]
    NoValue { key: String },
}

/// Parses the pairs, in the order given.
pub(super) fn parse(text: &str) -> Result<Vec<(&str, String)>, PairsError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').ok_or(PairsError::NoEquals)?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(PairsError::NoEquals);
        }
        let (value, after) = value(key, after.trim_start_matches([' ', '\t']))?;
        pairs.push((key, value));
        rest = after.trim_start();
    }
    Ok(pairs)
}

/// Parses the value of `key` at the start of `text`. Returns the value and the remaining text.
fn value<'t>(key: &str, text: &'t str) -> Result<(String, &'t str), PairsError> {
    let Some(mut rest) = text.strip_prefix('\'') else {
        let (value, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        return if value.is_empty() {
            Err(PairsError::NoValue { key: key.to_owned() })
        } else {
            Ok((value.to_owned(), rest))
        };
    };
    let mut value = String::new();
    loop {
        let (part, after) = rest.split_once('\'').ok_or(PairsError::Unclosed)?;
        value.push_str(part);
        match after.strip_prefix('\'') {
            Some(after) => {
                value.push('\'');
                rest = after;
            }
            None => return Ok((value, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(&str, String)> {
        parse(text).unwrap()
    }

    fn no_value<T>(key: &str) -> Result<T, PairsError> {
        Err(PairsError::NoValue { key: key.to_owned() })
    }

    #[test]
    fn values_may_be_quoted() {
        let own = |value: &str| value.to_owned();
        let text = "host=a  port = 5433 dbname='b c' password='it''s \\'x=";
        assert_eq!(parse(text), no_value("x"));
        let found = pairs("host=a  port = 5433 dbname='b c' password='it''s \\' connect_query=''");
        assert_eq!(found[0], ("host", own("a")));
        assert_eq!(found[1], ("port", own("5433")));
        assert_eq!(found[2], ("dbname", own("b c")));
        assert_eq!(found[3], ("password", own("it's \\")));
        assert_eq!(found[4], ("connect_query", own("")));
        assert_eq!(pairs("  "), []);
    }

    #[test]
    fn invalid_pair_reports_reason() {
        assert_eq!(parse("host"), Err(PairsError::NoEquals));
        assert_eq!(parse("=a"), Err(PairsError::NoEquals));
        assert_eq!(parse("a b=c"), Err(PairsError::NoEquals));
        assert_eq!(parse("a='b"), Err(PairsError::Unclosed));
        assert_eq!(parse("a='b''"), Err(PairsError::Unclosed));
        assert_eq!(parse("a="), no_value("a"));
    }
}
