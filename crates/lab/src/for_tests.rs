//! What tests do when there is no PostgreSQL.

use std::io::Write as _;

use crate::error::Error;

/// The cluster; or `None`, after saying on stderr why the test has to be skipped: no fitting
/// PostgreSQL could be had.
///
/// The words go to stderr itself, which the test harness does not hide even when a test passes.
/// With `HOWDAH_LAB_REQUIRED=1` in the environment there is no skipping.
///
/// # Panics
///
/// On any other error: that PostgreSQL cannot be started is a failure.
pub fn or_say_why_not<T>(test: &str, result: Result<T, Error>) -> Option<T> {
    let required = std::env::var_os("HOWDAH_LAB_REQUIRED").is_some_and(|value| value == "1");
    match result {
        Err(error) if error.is_no_postgres() && !required => {
            // Nobody is left to be told when stderr is closed.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {}", with_causes(&error));
            None
        }
        result => Some(result.expect("a throw-away PostgreSQL starts")),
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::Search;

    #[test]
    #[should_panic(expected = "a throw-away PostgreSQL starts")]
    fn only_a_missing_postgresql_is_an_excuse() {
        or_say_why_not("unsupported", Search::new().major(13).find());
    }
}
