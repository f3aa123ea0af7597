//! The plan of a statement that somebody else runs, without running anything.
//!
//! The text was written by whoever runs it, and it is given to the server in our role's name. So:
//!
//! - It goes over a connection of its own, in transactions that only read, with limits of half a second, which
//!   is closed afterwards.
//! - It goes by the extended protocol, as `PREPARE name AS text`: the server refuses a second statement there,
//!   and everything but one that selects or changes rows. `EXPLAIN ANALYZE` as a text is refused by grammar.
//! - A text that the server cut, or that is not shown exactly as it is, is not sent.
//! - What is explained is `EXECUTE name (NULL, …)` under `plan_cache_mode = force_generic_plan`: the plan does
//!   not depend on values, and there are none to be had. Before 12 there is no such setting, and a text with
//!   parameters is refused.
//! - Planning evaluates functions that claim to be immutable or stable. Whoever made one of them would have
//!   it run by us. So a role that can do more than read is refused where the database has such a function of
//!   somebody who is no superuser. Between that look and the plan lie some milliseconds.

use howdah_connect::{Client, ConnectError, QueryError, Target};

use crate::{
    Backend, Version,
    text::shown_line,
    view::{Since, chosen},
};

/// A plan, as `EXPLAIN` writes it, safe to show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Its lines.
    pub lines: Vec<String>,
    /// How many parameters the statement has. Their values are not known: it is the plan for any.
    pub parameters: usize,
}

/// Why there is no plan. Nothing was run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The session's statement is not known.
    #[error("its statement is not known: it is hidden from this role, or there is none")]
    NoText,
    /// The session's database is not known.
    #[error("its database is not known")]
    NoDatabase,
    /// The server keeps only the beginning of the text.
    #[error(
        "the server keeps no more than the beginning of its text: raise track_activity_query_size"
    )]
    Truncated,
    /// The text has characters that were replaced to show it.
    #[error("its text has characters that are not shown as they are")]
    NotExact,
    /// Without values there is no plan in this version.
    #[error("its parameters are not known, and PostgreSQL {version} plans for any from 12 on")]
    Parameters {
        /// The server's.
        version: Version,
    },
    /// Planning could run a function of somebody else.
    #[error(
        "planning could run {function} of {owner} with what {role} may do: \
         name a role that may only read with --plan-user"
    )]
    ForeignCode {
        /// The first such function.
        function: String,
        /// Whose it is.
        owner: String,
        /// Ours.
        role: String,
    },
    /// The server refused: the text is no single statement that has a plan, or the role may not read what
    /// it reads.
    #[error("the server makes no plan of it: {message}")]
    Refused {
        /// In its words.
        message: String,
        /// SQLSTATE.
        sqlstate: String,
    },
    /// No connection could be had.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The connection failed.
    #[error("asking for the plan: {0}")]
    Connection(#[source] QueryError),
}

/// Makes a plan of the statement that a session runs, or ran last. `target`: the server, as the role that is
/// to ask; its database is replaced by the session's.
///
/// # Errors
///
/// There is none, for the reason that the error says.
pub fn plan(target: &Target, backend: &Backend) -> Result<Plan, PlanError> {
    let query = backend.query.as_ref().ok_or(PlanError::NoText)?;
    if query.is_truncated {
        return Err(PlanError::Truncated);
    }
    if !query.is_exact {
        return Err(PlanError::NotExact);
    }
    let database = backend.database.as_deref().ok_or(PlanError::NoDatabase)?;
    let mut client = Client::connect(&target.with_database(database))?;
    client.set_timeout(Some(std::time::Duration::from_secs(5)));
    let version = Version(client.server_version_num().unwrap_or(0));
    set_up(&mut client, version)?;
    refuse_foreign_code(&mut client)?;
    run(&mut client, &format!("PREPARE howdah_plan AS {}", query.as_str()))?;
    let parameters = "SELECT coalesce(cardinality(parameter_types), 0) FROM pg_prepared_statements \
        WHERE name = 'howdah_plan'";
    let parameters: usize =
        run(&mut client, parameters)?.first().and_then(|count| count.parse().ok()).unwrap_or(0);
    if parameters > 0 && version.major() < 12 {
        return Err(PlanError::Parameters { version });
    }
    let values = vec!["NULL"; parameters].join(", ");
    let values = if parameters > 0 { format!("({values})") } else { values };
    let lines = run(&mut client, &format!("EXPLAIN (FORMAT TEXT) EXECUTE howdah_plan{values}"))?;
    Ok(Plan { lines, parameters })
}

/// Settings of the connection, each a statement of its own.
fn set_up(client: &mut Client, version: Version) -> Result<(), PlanError> {
    const SETTINGS: &[&[Since]] = &[
        &[(9, "SET default_transaction_read_only = on")],
        &[(9, "SET statement_timeout = '500ms'")],
        &[(9, "SET lock_timeout = '500ms'")],
        &[(9, ""), (11, "SET jit = off")],
        &[(9, ""), (12, "SET plan_cache_mode = force_generic_plan")],
    ];
    let settings = SETTINGS.iter().filter_map(|list| chosen(list, version));
    settings.into_iter().try_for_each(|sql| run(client, sql).map(drop))
}

/// Refuses if our role can do more than read, and planning could run what somebody else has written. The
/// first oid that is not the server's own is 16384 (`FirstNormalObjectId` in `transam.h`).
fn refuse_foreign_code(client: &mut Client) -> Result<(), PlanError> {
    let acts = "SELECT current_user FROM pg_roles r WHERE r.rolname = current_user AND \
        (r.rolsuper OR r.rolcreaterole OR r.rolreplication OR EXISTS (SELECT FROM pg_roles granted \
        WHERE granted.rolname IN ('pg_signal_backend', 'pg_execute_server_program', \
        'pg_write_server_files', 'pg_read_server_files', 'pg_write_all_data', 'pg_maintain', \
        'pg_create_subscription', 'pg_checkpoint') AND pg_has_role(current_user, granted.oid, 'MEMBER')))";
    let Some(role) = run(client, acts)?.into_iter().next() else { return Ok(()) };
    let runs = "SELECT p.oid::regprocedure || chr(10) || o.rolname FROM pg_proc p \
        JOIN pg_roles o ON o.oid = p.proowner WHERE p.oid >= 16384 AND p.provolatile IN ('i', 's') \
        AND NOT o.rolsuper AND o.rolname <> current_user ORDER BY p.oid LIMIT 1";
    let Some(found) = first(client, runs)? else { return Ok(()) };
    let (function, owner) = found.split_once('\n').unwrap_or((&found, "somebody"));
    let shown = |text: &str| shown_line(text).into_owned();
    Err(PlanError::ForeignCode { function: shown(function), owner: shown(owner), role })
}

/// Runs one statement by the extended protocol, and gives the first column as lines that are safe to show.
fn run(client: &mut Client, sql: &str) -> Result<Vec<String>, PlanError> {
    let rows = client.query_with(sql, &[]).map_err(error)?.rows;
    let line = |row: &howdah_connect::Row| {
        row.text(0).map_or_else(String::new, |text| shown_line(&text).into_owned())
    };
    Ok(rows.iter().map(line).collect())
}

/// The first value, as it is.
fn first(client: &mut Client, sql: &str) -> Result<Option<String>, PlanError> {
    let rows = client.query_with(sql, &[]).map_err(error)?.rows;
    Ok(rows.first().and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned))
}

fn error(error: QueryError) -> PlanError {
    match error {
        QueryError::Sql(refusal) if !refusal.ends_session() => PlanError::Refused {
            message: shown_line(&refusal.message).into_owned(),
            sqlstate: refusal.sqlstate.to_string(),
        },
        error => PlanError::Connection(error),
    }
}
