//! Plans another session's statement without executing it.
//!
//! The text was written by the owner of that session, but it is sent with our role's privileges.
//! Therefore:
//!
//! - A separate connection is used, with limits of half a second. It is closed afterwards.
//! - The text is planned in one read-only transaction. Functions that are executed while planning
//!   can change the default for later transactions, but PostgreSQL refuses to make a transaction
//!   read-write after its first query.
//! - The text is sent with the extended protocol as `PREPARE name AS text`, where the server
//!   refuses a second statement, and every statement that neither selects nor changes rows. The
//!   grammar refuses `EXPLAIN ANALYZE` as text.
//! - A text that the server truncated, or that sanitizing has changed, is not sent.
//! - The explained statement is `EXECUTE name (NULL, …)` under `plan_cache_mode =
//!   force_generic_plan`: the plan does not depend on parameter values, which are unknown. That
//!   setting has existed since PostgreSQL 12; in older versions, texts with parameters are refused.
//! - Planning evaluates functions declared immutable or stable, with our privileges, and parsing
//!   evaluates the constraints of domains for constants, as in `'{1}'::domain[]`. A role that is
//!   privileged (a superuser, or with CREATEROLE, REPLICATION or a predefined role that allows more
//!   than reading tables and statistics) is therefore refused where the database has such a
//!   function or domain whose owner is neither a superuser nor the role itself. A few milliseconds
//!   pass between this check and the planning.

use howdah_connect::{Client, ConnectError, ConnectTarget, QueryError};

use crate::{
    BackendActivity, ServerVersion,
    text::sanitized_line,
    view::{VersionedSql, sql_for_version},
};

/// A plan in EXPLAIN's text format, without control characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GenericPlan {
    /// Lines of the plan, in EXPLAIN's order.
    pub lines: Vec<String>,
    /// Number of parameters. The plan is generic, since their values are unknown.
    pub parameters: usize,
}

/// The reason why a statement was not planned. The statement was not executed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenericPlanError {
    /// The session's statement is unknown.
    #[error(
        "the session's statement is unknown: it has run none, or this role lacks pg_read_all_stats"
    )]
    NoText,
    /// The session has no database, as with most background processes.
    #[error("the session is not connected to a database")]
    NoDatabase,
    /// The server truncated the text, or may have done so.
    #[error("the server truncated the statement, or may have: raise track_activity_query_size")]
    Truncated,
    /// Sanitizing replaced characters of the text, or its bytes are invalid in its encoding.
    #[error(
        "the statement has characters that were replaced for display, so its text is not exact"
    )]
    NotExact,
    /// This server version cannot plan without parameter values.
    #[error(
        "parameter values are unknown, and PostgreSQL {version} cannot be made to use a generic plan: that needs 12 or later"
    )]
    Parameters {
        /// Version of the server, which is below 12.
        version: ServerVersion,
    },
    /// Planning could execute a function or domain constraint of another role.
    #[error(
        "planning could execute {function} of role {owner} with the privileges of {role}: \
         name a read-only role with --plan-user"
    )]
    ForeignCode {
        /// The first function found, or a phrase that names the domain.
        function: String,
        /// Owner of the function or domain.
        owner: String,
        /// The role that would plan the statement.
        role: String,
    },
    /// The server refused, for example because the text is not a single plannable statement, or the
    /// role lacks privileges on its tables.
    #[error("the server cannot plan the statement: {message}")]
    Refused {
        /// The server's message.
        message: String,
        /// SQLSTATE of the server's error.
        sqlstate: String,
    },
    /// The connection could not be established.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A request failed after the connection had been established, other than by a refusal.
    #[error("cannot request the plan: {0}")]
    Connection(#[source] QueryError),
}

/// Plans the statement that a session is running, or that it ran last. `target` names the server
/// and the role to plan as; its database is ignored in favour of the session's.
///
/// # Errors
///
/// The statement cannot be planned; see [`GenericPlanError`].
pub fn explain_generic(
    target: &ConnectTarget,
    backend: &BackendActivity,
) -> Result<GenericPlan, GenericPlanError> {
    let query = backend.query.as_ref().ok_or(GenericPlanError::NoText)?;
    if query.is_truncated {
        return Err(GenericPlanError::Truncated);
    }
    if !query.is_exact {
        return Err(GenericPlanError::NotExact);
    }
    let database = backend.database.as_deref().ok_or(GenericPlanError::NoDatabase)?;
    let mut client = Client::connect(&target.with_database(database))?;
    client.set_timeout(Some(std::time::Duration::from_secs(5)));
    let version = ServerVersion(client.server_version_num().unwrap_or(0));
    apply_settings(&mut client, version)?;
    run(&mut client, "BEGIN READ ONLY")?;
    // Contains the first query, after which the transaction cannot become read-write.
    refuse_foreign_code(&mut client)?;
    run(&mut client, &format!("PREPARE howdah_plan AS {}", query.as_str()))?;
    let parameters = "SELECT coalesce(cardinality(parameter_types), 0) FROM pg_prepared_statements \
        WHERE name = 'howdah_plan'";
    let parameters: usize =
        run(&mut client, parameters)?.first().and_then(|count| count.parse().ok()).unwrap_or(0);
    if parameters > 0 && version.major() < 12 {
        return Err(GenericPlanError::Parameters { version });
    }
    let values = vec!["NULL"; parameters].join(", ");
    let values = if parameters > 0 { format!("({values})") } else { values };
    let lines = run(&mut client, &format!("EXPLAIN (FORMAT TEXT) EXECUTE howdah_plan{values}"))?;
    Ok(GenericPlan { lines, parameters })
}

/// Applies the connection's settings, one statement each.
fn apply_settings(client: &mut Client, version: ServerVersion) -> Result<(), GenericPlanError> {
    const SETTINGS: &[&[VersionedSql]] = &[
        &[(9, "SET default_transaction_read_only = on")],
        &[(9, "SET statement_timeout = '500ms'")],
        &[(9, "SET lock_timeout = '500ms'")],
        &[(9, ""), (11, "SET jit = off")],
        &[(9, ""), (12, "SET plan_cache_mode = force_generic_plan")],
    ];
    let settings = SETTINGS.iter().filter_map(|list| sql_for_version(list, version));
    settings.into_iter().try_for_each(|sql| run(client, sql).map(drop))
}

/// Refuses to plan if our role is privileged (see the module) and planning could execute the code
/// of a role that is neither ours nor a superuser. The first oid that is not the server's own is
/// 16384 (`FirstNormalObjectId` in `transam.h`).
fn refuse_foreign_code(client: &mut Client) -> Result<(), GenericPlanError> {
    let acts = "SELECT current_user FROM pg_roles r WHERE r.rolname = current_user AND \
        (r.rolsuper OR r.rolcreaterole OR r.rolreplication OR EXISTS (SELECT FROM pg_roles granted \
        WHERE granted.rolname IN ('pg_signal_backend', 'pg_execute_server_program', \
        'pg_write_server_files', 'pg_read_server_files', 'pg_write_all_data', 'pg_maintain', \
        'pg_create_subscription', 'pg_checkpoint') AND pg_has_role(current_user, granted.oid, 'MEMBER')))";
    let Some(role) = run(client, acts)?.into_iter().next() else { return Ok(()) };
    let runs = "SELECT code.name || chr(10) || o.rolname FROM ( \
        SELECT oid, oid::regprocedure::text AS name, proowner AS owner FROM pg_proc \
        WHERE provolatile IN ('i', 's') \
        UNION ALL \
        SELECT t.oid, 'the constraints of domain ' || t.oid::regtype, t.typowner FROM pg_type t \
        WHERE EXISTS (SELECT FROM pg_constraint c WHERE c.contypid = t.oid) \
        ) code JOIN pg_roles o ON o.oid = code.owner WHERE code.oid >= 16384 \
        AND NOT o.rolsuper AND o.rolname <> current_user ORDER BY code.oid LIMIT 1";
    let Some(found) = first_value(client, runs)? else { return Ok(()) };
    let (function, owner) = found.split_once('\n').unwrap_or((&found, "unknown"));
    let shown = |text: &str| sanitized_line(text).into_owned();
    Err(GenericPlanError::ForeignCode { function: shown(function), owner: shown(owner), role })
}

/// Runs one statement with the extended protocol and returns the sanitized first column.
fn run(client: &mut Client, sql: &str) -> Result<Vec<String>, GenericPlanError> {
    let rows = client.query_with(sql, &[]).map_err(plan_error)?.rows;
    let line = |row: &howdah_connect::ResultRow| {
        row.text(0).map_or_else(String::new, |text| sanitized_line(&text).into_owned())
    };
    Ok(rows.iter().map(line).collect())
}

/// Runs one statement with the extended protocol and returns the first value, not sanitized; `None`
/// without rows or for NULL.
fn first_value(client: &mut Client, sql: &str) -> Result<Option<String>, GenericPlanError> {
    let rows = client.query_with(sql, &[]).map_err(plan_error)?.rows;
    Ok(rows.first().and_then(|row| row.text(0)).map(std::borrow::Cow::into_owned))
}

fn plan_error(error: QueryError) -> GenericPlanError {
    match error {
        QueryError::Sql(refusal) if !refusal.closes_connection() => GenericPlanError::Refused {
            message: sanitized_line(&refusal.message).into_owned(),
            sqlstate: refusal.sqlstate.to_string(),
        },
        error => GenericPlanError::Connection(error),
    }
}
