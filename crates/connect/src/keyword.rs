//! Every connection keyword that libpq knows, with the environment variable that stands for it.
//!
//! One row each. A keyword that is not in this table is an error; one that is, but that nothing here
//! acts on, is accepted and reported as [`crate::Warning::Ignored`].
//! Source: PostgreSQL manual, "Parameter Key Words" and "Environment Variables".

/// One row: a keyword of a connection string.
#[derive(Debug)]
pub(crate) struct Keyword {
    pub(crate) name: &'static str,
    /// The environment variable that gives its default.
    pub(crate) variable: Option<&'static str>,
    pub(crate) effect: Effect,
}

/// Whether a keyword changes what happens here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Acted,
    Ignored,
}

use Effect::{Acted, Ignored};

const fn row(name: &'static str, variable: &'static str, effect: Effect) -> Keyword {
    Keyword { name, variable: Some(variable), effect }
}

const fn bare(name: &'static str, effect: Effect) -> Keyword {
    Keyword { name, variable: None, effect }
}

/// The table, in the manual's order.
pub(crate) static KEYWORDS: &[Keyword] = &[
    row("host", "PGHOST", Acted),
    row("hostaddr", "PGHOSTADDR", Acted),
    row("port", "PGPORT", Acted),
    row("dbname", "PGDATABASE", Acted),
    row("user", "PGUSER", Acted),
    row("password", "PGPASSWORD", Acted),
    row("passfile", "PGPASSFILE", Acted),
    row("require_auth", "PGREQUIREAUTH", Acted),
    row("channel_binding", "PGCHANNELBINDING", Acted),
    row("connect_timeout", "PGCONNECT_TIMEOUT", Acted),
    row("client_encoding", "PGCLIENTENCODING", Acted),
    row("options", "PGOPTIONS", Acted),
    row("application_name", "PGAPPNAME", Acted),
    bare("fallback_application_name", Acted),
    bare("keepalives", Acted),
    bare("keepalives_idle", Acted),
    bare("keepalives_interval", Acted),
    bare("keepalives_count", Acted),
    bare("tcp_user_timeout", Acted),
    bare("replication", Ignored),
    row("gssencmode", "PGGSSENCMODE", Acted),
    row("sslmode", "PGSSLMODE", Acted),
    row("requiressl", "PGREQUIRESSL", Acted),
    row("sslnegotiation", "PGSSLNEGOTIATION", Acted),
    row("sslcompression", "PGSSLCOMPRESSION", Ignored),
    row("sslcert", "PGSSLCERT", Acted),
    row("sslkey", "PGSSLKEY", Acted),
    bare("sslkeylogfile", Ignored),
    bare("sslpassword", Ignored),
    row("sslcertmode", "PGSSLCERTMODE", Acted),
    row("sslrootcert", "PGSSLROOTCERT", Acted),
    row("sslcrl", "PGSSLCRL", Acted),
    row("sslcrldir", "PGSSLCRLDIR", Acted),
    row("sslsni", "PGSSLSNI", Acted),
    row("requirepeer", "PGREQUIREPEER", Acted),
    row("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Acted),
    row("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Acted),
    row("min_protocol_version", "PGMINPROTOCOLVERSION", Ignored),
    row("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    row("krbsrvname", "PGKRBSRVNAME", Ignored),
    row("gsslib", "PGGSSLIB", Ignored),
    row("gssdelegation", "PGGSSDELEGATION", Ignored),
    bare("scram_client_key", Ignored),
    bare("scram_server_key", Ignored),
    row("service", "PGSERVICE", Acted),
    row("servicefile", "PGSERVICEFILE", Acted),
    row("target_session_attrs", "PGTARGETSESSIONATTRS", Acted),
    row("load_balance_hosts", "PGLOADBALANCEHOSTS", Acted),
    bare("oauth_issuer", Ignored),
    bare("oauth_client_id", Ignored),
    bare("oauth_client_secret", Ignored),
    bare("oauth_scope", Ignored),
    bare("authtype", Ignored),
    bare("tty", Ignored),
];

/// The row of `name`, which is case-sensitive as in libpq.
pub(crate) fn find(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|row| row.name == name)
}

/// The keyword that `name` was probably meant to be, if one is near enough.
pub(crate) fn nearest(name: &str) -> Option<&'static str> {
    // What other drivers call the same thing.
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

/// Levenshtein distance: single-byte insertions, deletions and replacements from one to the other.
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
    fn no_keyword_or_variable_is_listed_twice() {
        for (index, row) in KEYWORDS.iter().enumerate() {
            for other in &KEYWORDS[index + 1..] {
                assert_ne!(row.name, other.name);
                assert!(row.variable.is_none() || row.variable != other.variable, "{row:?}");
            }
        }
    }

    #[test]
    fn a_slip_of_the_finger_is_recognised_and_nonsense_is_not() {
        assert_eq!(nearest("sslmoed"), Some("sslmode"));
        assert_eq!(nearest("aplication_name"), Some("application_name"));
        assert_eq!(nearest("SSLMODE"), Some("sslmode"));
        assert_eq!(nearest("database"), Some("dbname"));
        assert_eq!(nearest("frobnicate"), None);
    }
}
