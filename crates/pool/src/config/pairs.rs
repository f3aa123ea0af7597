//! `key=value key='value with blanks'`: the connection strings of a `pgbouncer.ini`.
//!
//! A quote within quotes is doubled. A backslash is a backslash. An empty value is refused, as
//! PgBouncer does it, but for one within quotes.

/// Why a text is no list of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PairsError {
    /// A key without `=`.
    #[error("`key=value` is expected")]
    NoEquals,
    /// The closing quote is missing.
    #[error("the value's closing quote is missing")]
    Unclosed,
    /// Nothing behind `=`.
    #[error("a value is missing: an empty one is written ''")]
    NoValue,
}

/// The pairs, in their order.
pub(super) fn parse(text: &str) -> Result<Vec<(&str, String)>, PairsError> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, behind) = rest.split_once('=').ok_or(PairsError::NoEquals)?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(PairsError::NoEquals);
        }
        let (value, behind) = value(behind.trim_start_matches([' ', '\t']))?;
        pairs.push((key, value));
        rest = behind.trim_start();
    }
    Ok(pairs)
}

/// Takes one value from the front.
fn value(text: &str) -> Result<(String, &str), PairsError> {
    let Some(mut rest) = text.strip_prefix('\'') else {
        let (value, rest) = text.split_at(text.find(char::is_whitespace).unwrap_or(text.len()));
        return match value.is_empty() {
            true => Err(PairsError::NoValue),
            false => Ok((value.to_owned(), rest)),
        };
    };
    let mut value = String::new();
    loop {
        let (part, behind) = rest.split_once('\'').ok_or(PairsError::Unclosed)?;
        value.push_str(part);
        match behind.strip_prefix('\'') {
            Some(behind) => {
                value.push('\'');
                rest = behind;
            }
            None => return Ok((value, behind)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(&str, String)> {
        parse(text).unwrap()
    }

    #[test]
    fn values_may_be_quoted() {
        let own = |value: &str| value.to_owned();
        let text = "host=a  port = 5433 dbname='b c' password='it''s \\'x=";
        assert_eq!(parse(text), Err(PairsError::NoValue), "the last value is missing");
        let found = pairs("host=a  port = 5433 dbname='b c' password='it''s \\' connect_query=''");
        assert_eq!(found[0], ("host", own("a")));
        assert_eq!(found[1], ("port", own("5433")));
        assert_eq!(found[2], ("dbname", own("b c")));
        assert_eq!(found[3], ("password", own("it's \\")));
        assert_eq!(found[4], ("connect_query", own("")));
        assert_eq!(pairs("  "), []);
    }

    #[test]
    fn what_is_no_pair_says_why() {
        assert_eq!(parse("host"), Err(PairsError::NoEquals));
        assert_eq!(parse("=a"), Err(PairsError::NoEquals));
        assert_eq!(parse("a b=c"), Err(PairsError::NoEquals));
        assert_eq!(parse("a='b"), Err(PairsError::Unclosed));
        assert_eq!(parse("a='b''"), Err(PairsError::Unclosed));
        assert_eq!(parse("a="), Err(PairsError::NoValue));
    }
}
