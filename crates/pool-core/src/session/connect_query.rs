//! [`ConnectQuery`]: the query that runs on every new server connection and, if it can be repeated,
//! again after each reset.

use howdah_sql::{SqlCommand, split_statements};

/// The `connect-query` setting of a database, and whether the query can be repeated.
///
/// A reset of a server connection (`RESET ALL`, `DISCARD ALL`, `SET SESSION AUTHORIZATION DEFAULT`)
/// undoes the parameters that the query has set, so the query follows each reset in the same write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectQuery {
    /// SQL text, without a zero byte.
    pub query: Box<[u8]>,
    /// Whether running the query again restores its effect: it consists of `SET` statements and of
    /// queries without side effects. If not (temporary tables, user functions, `PREPARE`), a
    /// connection that needs a reset is closed instead.
    pub is_repeatable: bool,
}

impl ConnectQuery {
    /// Creates the query from the SQL in the configuration, which must not contain a zero byte.
    pub fn new(sql: &str) -> Self {
        let mut statements = split_statements(sql.as_bytes());
        Self { query: sql.as_bytes().into(), is_repeatable: statements.all(is_repeatable) }
    }

    /// Whether the query's text contains `name`, ignoring ASCII case.
    pub(crate) fn mentions(&self, name: &[u8]) -> bool {
        !name.is_empty() && self.query.windows(name.len()).any(|it| it.eq_ignore_ascii_case(name))
    }
}

fn is_repeatable(statement: &[u8]) -> bool {
    match SqlCommand::from_sql(statement) {
        SqlCommand::Set | SqlCommand::Show | SqlCommand::Empty => true,
        SqlCommand::Select | SqlCommand::Values | SqlCommand::With | SqlCommand::Table => {
            is_read_only(statement)
        }
        _ => false,
    }
}

#[cfg(feature = "grammar")]
fn is_read_only(statement: &[u8]) -> bool {
    use howdah_sql::grammar::{Effect, classify};

    classify(statement).effect == Effect::ReadOnly
}

/// Always `false`: without PostgreSQL's grammar, any query may have side effects.
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
