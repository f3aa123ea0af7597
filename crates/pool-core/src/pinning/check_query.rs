//! The query that asks a server which session state it has.

use howdah_sql::StateKinds;

/// The questions that one query asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateQuestions {
    /// Kinds of state that may be there.
    pub(crate) kinds: StateKinds,
    /// Settings that may have been changed. The server does not report them.
    pub(crate) settings: Vec<Box<str>>,
    /// Functions that were called and may be volatile, as `name` or `schema.name`.
    pub(crate) functions: Vec<Box<str>>,
}

impl StateQuestions {
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds.is_none() && self.settings.is_empty() && self.functions.is_empty()
    }

    /// Returns the query. Each row of its result is a [`StateRow`].
    pub(crate) fn query(&self) -> String {
        let parts = KIND_QUERIES.iter().filter(|(kind, _)| self.kinds.intersects(*kind));
        let mut parts: Vec<String> = parts.map(|(_, sql)| (*sql).to_owned()).collect();
        if !self.settings.is_empty() {
            let names = literals(self.settings.iter().map(|name| &**name));
            parts.push(format!(
                "SELECT 's', s, pg_catalog.current_setting(s, true) \
                 FROM pg_catalog.unnest(ARRAY[{names}]::pg_catalog.text[]) s"
            ));
        }
        if !self.functions.is_empty() {
            let split = |name: &'_ str| match name.split_once('.') {
                Some((schema, name)) => (schema.to_owned(), name.to_owned()),
                None => (String::new(), name.to_owned()),
            };
            let (schemas, names): (Vec<_>, Vec<_>) =
                self.functions.iter().map(|name| split(name)).unzip();
            let schemas = literals(schemas.iter().map(String::as_str));
            let names = literals(names.iter().map(String::as_str));
            parts.push(format!(
                "SELECT 'f', CASE f.s WHEN '' THEN f.n ELSE f.s || '.' || f.n END, NULL \
                 FROM ROWS FROM (pg_catalog.unnest(ARRAY[{schemas}]::pg_catalog.text[]), \
                 pg_catalog.unnest(ARRAY[{names}]::pg_catalog.text[])) f (s, n) \
                 WHERE EXISTS (SELECT FROM pg_catalog.pg_proc p \
                 JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace \
                 WHERE p.proname = f.n AND p.provolatile = 'v' AND n.nspname <> 'pg_catalog' \
                 AND f.s IN ('', n.nspname))"
            ));
        }
        format!("{MARK} {}", parts.join(" UNION ALL "))
    }
}

/// A comment at the start of the query, for readers of the server's log or statistics.
pub(crate) const MARK: &str = "/* howdah: session state */";

/// The queries for the kinds of state, without settings by name and functions.
const KIND_QUERIES: [(StateKinds, &str); 6] = [
    (
        StateKinds::TEMPORARY,
        "(SELECT 't', pg_catalog.pg_describe_object(d.classid, d.objid, 0), NULL::pg_catalog.text \
         FROM pg_catalog.pg_depend d \
         WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass \
         AND d.refobjid = pg_catalog.pg_my_temp_schema() AND d.refobjid <> 0 LIMIT 3)",
    ),
    (
        StateKinds::LOCKS,
        "(SELECT 'l', pg_catalog.count(*)::pg_catalog.text, NULL::pg_catalog.text \
         FROM pg_catalog.pg_locks WHERE locktype = 'advisory' \
         AND pid = pg_catalog.pg_backend_pid() HAVING pg_catalog.count(*) > 0)",
    ),
    (
        StateKinds::CURSORS,
        "(SELECT 'c', c.name, NULL::pg_catalog.text FROM pg_catalog.pg_cursors c \
         WHERE c.is_holdable LIMIT 3)",
    ),
    (
        StateKinds::PREPARED,
        "(SELECT 'p', p.name, NULL::pg_catalog.text FROM pg_catalog.pg_prepared_statements p \
         WHERE p.from_sql LIMIT 3)",
    ),
    (
        StateKinds::CHANNELS,
        "(SELECT 'n', n, NULL::pg_catalog.text FROM pg_catalog.pg_listening_channels() n LIMIT 3)",
    ),
    // The settings of transactions end with the check's own transaction.
    (
        StateKinds::SETTINGS,
        "(SELECT 's', s.name, pg_catalog.current_setting(s.name, true) \
         FROM pg_catalog.pg_settings s WHERE s.source = 'session' \
         AND s.name NOT LIKE 'transaction!_%' ESCAPE '!' \
         UNION ALL SELECT 's', 'role', pg_catalog.current_setting('role'))",
    ),
];

/// A row of the result of [`StateQuestions::query`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateRow<'a> {
    /// State of one kind is there: its name, or for locks their number.
    Found(StateKinds, &'a [u8]),
    /// The value of a setting; `None` if the server does not know it.
    Setting(&'a [u8], Option<&'a [u8]>),
    /// One of the functions, which turned out to be volatile.
    VolatileFunction(&'a [u8]),
}

impl<'a> StateRow<'a> {
    /// Reads a row from its cells; `None` if it is not one of the query.
    pub(crate) fn from_cells(
        mut cells: impl Iterator<Item = Option<&'a [u8]>>,
    ) -> Option<StateRow<'a>> {
        let (kind, name, value) = (cells.next()??, cells.next()??, cells.next()?);
        Some(match kind {
            b"t" => Self::Found(StateKinds::TEMPORARY, name),
            b"l" => Self::Found(StateKinds::LOCKS, name),
            b"c" => Self::Found(StateKinds::CURSORS, name),
            b"p" => Self::Found(StateKinds::PREPARED, name),
            b"n" => Self::Found(StateKinds::CHANNELS, name),
            b"s" => Self::Setting(name, value),
            b"f" => Self::VolatileFunction(name),
            _ => return None,
        })
    }
}

/// Whether a name can be part of the query: ASCII characters of names, none of which ends a string
/// or starts an escape, in any encoding.
pub(crate) fn is_quotable(name: &str) -> bool {
    name.len() <= 2 * 63 + 1
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.$".contains(&byte))
}

fn literals<'n>(names: impl Iterator<Item = &'n str>) -> String {
    let quoted = names.filter(|name| is_quotable(name)).map(|name| format!("'{name}'"));
    quoted.collect::<Vec<_>>().join(", ")
}
