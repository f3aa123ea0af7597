//! Skips tests when no PostgreSQL is found.

use std::io::Write as _;

use crate::error::ClusterError;

/// Unwraps the cluster. If no usable PostgreSQL was found, prints on stderr that the test is
/// skipped, and returns `None`.
///
/// The message is written to stderr directly, so that the test harness does not hide it when the
/// test passes. With `HOWDAH_LAB_REQUIRED=1` in the environment no test is skipped.
///
/// # Panics
///
/// On any other error, because a PostgreSQL that cannot be started is a failure; with
/// `HOWDAH_LAB_REQUIRED=1`, on every error.
pub fn skip_without_postgres<T>(test: &str, result: Result<T, ClusterError>) -> Option<T> {
    let required = std::env::var_os("HOWDAH_LAB_REQUIRED").is_some_and(|value| value == "1");
    match result {
        Err(error) if error.is_postgres_missing() && !required => {
            // A closed stderr is ignored: the message has no reader then.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {}", with_causes(&error));
            None
        }
        result => Some(result.expect("cannot start a throw-away PostgreSQL")),
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
    use crate::search::BinariesSearch;

    #[test]
    #[should_panic(expected = "cannot start a throw-away PostgreSQL")]
    fn unsupported_major_is_not_skipped() {
        skip_without_postgres("unsupported", BinariesSearch::new().major(13).find());
    }
}
