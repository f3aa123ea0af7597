//! [`ConnectQuery`]: what is run on every new server connection, and again after each reset of it.

use howdah_sql::{Command, split_statements};

/// The `connect-query` of a database.
///
/// A reset of a server connection (`RESET ALL`, `DISCARD ALL`, `SET SESSION AUTHORIZATION DEFAULT`) undoes the
/// settings that the query has made, so the query follows each reset in the same write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectQuery {
    /// SQL, without a zero byte.
    pub query: Box<[u8]>,
    /// Whether running it again restores what it did: it consists of `SET` statements and of queries without
    /// side effects. Otherwise (temporary tables, functions of the user, `PREPARE`) a connection that would
    /// have to be reset is closed instead.
    pub is_repeatable: bool,
}

impl ConnectQuery {
    /// The query of a configuration.
    pub fn new(sql: &str) -> Self {
        let mut statements = split_statements(sql.as_bytes());
        Self { query: sql.as_bytes().into(), is_repeatable: statements.all(is_repeatable) }
    }

    /// Whether the query contains a name, compared without regard to ASCII case.
    pub(crate) fn mentions(&self, name: &[u8]) -> bool {
        !name.is_empty() && self.query.windows(name.len()).any(|it| it.eq_ignore_ascii_case(name))
    }
}

fn is_repeatable(statement: &[u8]) -> bool {
    match Command::of(statement) {
        Command::Set | Command::Show | Command::Empty => true,
        Command::Select | Command::Values | Command::With | Command::Table => {
            is_read_only(statement)
        }
        _ => false,
    }
}

#[cfg(feature = "grammar")]
fn is_read_only(statement: &[u8]) -> bool {
    use howdah_sql::grammar::{Effect, judge};

    judge(statement).effect == Effect::ReadOnly
}

/// Without PostgreSQL's grammar any query may have side effects.
#[cfg(not(feature = "grammar"))]
fn is_read_only(_: &[u8]) -> bool {
    false
}

#[cfg(feature = "grammar")]
#[test]
fn only_settings_and_plain_reads_are_repeatable() {
    for sql in [
        "",
        "set search_path = tenant, public; set enable_seqscan = off",
        "SET ROLE alice;",
        "set session authorization 'alice'",
        "select 1; select 2",
        "/* tenant */ select pg_catalog.set_config('search_path', 'tenant', false)",
    ] {
        assert!(ConnectQuery::new(sql).is_repeatable, "{sql}");
    }
    for sql in [
        "create temp table t (n int)",
        "set role alice; select app.begin_session()",
        "select pg_advisory_lock_shared(1)",
        "prepare p as select 1",
        "select 1 into temp t",
        "listen news",
        "do $$ begin set work_mem = '1MB'; end $$",
    ] {
        assert!(!ConnectQuery::new(sql).is_repeatable, "{sql}");
    }
}
