//! All connection keywords of libpq, with the corresponding environment variables.
//!
//! A keyword that is missing from the table is an error. A keyword in the table that has no effect
//! in this crate is accepted and reported as [`crate::Warning::Ignored`]. Source: PostgreSQL
//! manual, "Parameter Key Words" and "Environment Variables".

/// A keyword of a connection string: a row of the table.
#[derive(Debug)]
pub(crate) struct Keyword {
    pub(crate) name: &'static str,
    /// The environment variable that provides its default value.
    pub(crate) variable: Option<&'static str>,
    pub(crate) effect: KeywordEffect,
}

/// The effect of a keyword in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeywordEffect {
    Supported,
    Ignored,
}

use KeywordEffect::{Ignored, Supported};

const fn row(name: &'static str, variable: &'static str, effect: KeywordEffect) -> Keyword {
    Keyword { name, variable: Some(variable), effect }
}

const fn bare(name: &'static str, effect: KeywordEffect) -> Keyword {
    Keyword { name, variable: None, effect }
}

/// The table, in the manual's order, with obsolete keywords at the end.
pub(crate) static KEYWORDS: &[Keyword] = &[
    row("host", "PGHOST", Supported),
    row("hostaddr", "PGHOSTADDR", Supported),
    row("port", "PGPORT", Supported),
    row("dbname", "PGDATABASE", Supported),
    row("user", "PGUSER", Supported),
    row("password", "PGPASSWORD", Supported),
    row("passfile", "PGPASSFILE", Supported),
    row("require_auth", "PGREQUIREAUTH", Supported),
    row("channel_binding", "PGCHANNELBINDING", Supported),
    row("connect_timeout", "PGCONNECT_TIMEOUT", Supported),
    row("client_encoding", "PGCLIENTENCODING", Supported),
    row("options", "PGOPTIONS", Supported),
    row("application_name", "PGAPPNAME", Supported),
    bare("fallback_application_name", Supported),
    bare("keepalives", Supported),
    bare("keepalives_idle", Supported),
    bare("keepalives_interval", Supported),
    bare("keepalives_count", Supported),
    bare("tcp_user_timeout", Supported),
    bare("replication", Ignored),
    row("gssencmode", "PGGSSENCMODE", Supported),
    row("sslmode", "PGSSLMODE", Supported),
    row("requiressl", "PGREQUIRESSL", Supported),
    row("sslnegotiation", "PGSSLNEGOTIATION", Supported),
    row("sslcompression", "PGSSLCOMPRESSION", Ignored),
    row("sslcert", "PGSSLCERT", Supported),
    row("sslkey", "PGSSLKEY", Supported),
    bare("sslkeylogfile", Ignored),
    bare("sslpassword", Ignored),
    row("sslcertmode", "PGSSLCERTMODE", Supported),
    row("sslrootcert", "PGSSLROOTCERT", Supported),
    row("sslcrl", "PGSSLCRL", Supported),
    row("sslcrldir", "PGSSLCRLDIR", Supported),
    row("sslsni", "PGSSLSNI", Supported),
    row("requirepeer", "PGREQUIREPEER", Supported),
    row("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Supported),
    row("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Supported),
    row("min_protocol_version", "PGMINPROTOCOLVERSION", Ignored),
    row("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    row("krbsrvname", "PGKRBSRVNAME", Ignored),
    row("gsslib", "PGGSSLIB", Ignored),
    row("gssdelegation", "PGGSSDELEGATION", Ignored),
    bare("scram_client_key", Ignored),
    bare("scram_server_key", Ignored),
    row("service", "PGSERVICE", Supported),
    row("servicefile", "PGSERVICEFILE", Supported),
    row("target_session_attrs", "PGTARGETSESSIONATTRS", Supported),
    row("load_balance_hosts", "PGLOADBALANCEHOSTS", Supported),
    bare("oauth_issuer", Ignored),
    bare("oauth_client_id", Ignored),
    bare("oauth_client_secret", Ignored),
    bare("oauth_scope", Ignored),
    bare("authtype", Ignored),
    bare("tty", Ignored),
];

/// Returns the row of `name`, which is case-sensitive as in libpq.
pub(crate) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|row| row.name == name)
}

/// Returns the keyword that `name` was probably meant to be, if one is similar enough.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    // Names that other drivers use.
    let synonym = match name {
        "database" | "db" => Some("dbname"),
        "username" => Some("user"),
        "pass" | "passwd" => Some("password"),
        "hostname" | "server" => Some("host"),
        "ssl" | "ssl_mode" => Some("sslmode"),
        "timeout" => Some("connect_timeout"),
        _ => None,
    };
    synonym.or_else(|| {
        let lower = name.to_ascii_lowercase();
        let allowed = (lower.len() / 3).max(1);
        KEYWORDS
            .iter()
            .map(|row| (edits(&lower, row.name), row.name))
            .filter(|(distance, _)| *distance <= allowed)
            .min_by_key(|(distance, _)| *distance)
            .map(|(_, name)| name)
    })
}

/// Returns the Levenshtein distance in bytes.
fn edits(from: &str, to: &str) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.bytes().enumerate() {
            let replace = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_and_variables_are_unique() {
        for (index, row) in KEYWORDS.iter().enumerate() {
            for other in &KEYWORDS[index + 1..] {
                assert_ne!(row.name, other.name);
                assert!(row.variable.is_none() || row.variable != other.variable, "{row:?}");
            }
        }
    }

    #[test]
    fn typos_are_recognized_but_nonsense_is_not() {
        assert_eq!(nearest("sslmoed"), Some("sslmode"));
        assert_eq!(nearest("aplication_name"), Some("application_name"));
        assert_eq!(nearest("SSLMODE"), Some("sslmode"));
        assert_eq!(nearest("database"), Some("dbname"));
        assert_eq!(nearest("frobnicate"), None);
    }
}
