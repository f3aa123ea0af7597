//! Explains why a query changed by comparing its plans on both servers, using EXPLAIN without
//! executing anything.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use howdah_connect::{Client, ConnectError, ConnectTarget, QueryError, ResultSet};
use howdah_dataset::{ReadError, ReplayRun, StatementInfo};
use howdah_sql::{Fingerprint, SqlCommand, placeholder_count, split_statements};
use howdah_traffic::Parameter;
use serde_json::Value;

use crate::{Comparison, Plans, ReadRunError, plan};

/// Time limit for planning one statement.
const PLANNING_TIME_MAX: Duration = Duration::from_secs(10);

/// Maximum number of changed queries that are explained, the worst first. Each one costs round
/// trips on two connections.
const QUERIES_MAX: usize = 20;

/// First server version whose EXPLAIN supports `GENERIC_PLAN`, which plans a statement without its
/// parameter values.
const GENERIC_PLAN_SINCE: u32 = 160_000;

/// Example executions to plan, at most one per query.
#[derive(Debug, Default)]
pub struct Examples(HashMap<Fingerprint, StatementInfo>);

/// The reason why the plan of a statement is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The server cannot be reached, or refused the connection.
    #[error("cannot connect to {target}")]
    Connect {
        /// Address of the server, without a password.
        target: String,
        /// The cause, such as network, TLS, authentication or a missing database.
        source: Box<ConnectError>,
    },
    /// The server refused to plan the statement or to look up an index, or the connection was lost.
    #[error("{target} cannot plan the statement")]
    Query {
        /// Address of the server, without a password.
        target: String,
        /// The server's error.
        source: Box<QueryError>,
    },
    /// The run has no example of the query.
    #[error("the run has no example of the statement")]
    NoExample,
    /// The text is not a single statement with a keyword that EXPLAIN is used for.
    #[error("only a single query, INSERT, UPDATE, DELETE or MERGE can be explained")]
    NotExplainable,
    /// The statement or one of its parameter values is not UTF-8, the only encoding used for
    /// EXPLAIN.
    #[error("the statement or one of its parameter values is not UTF-8")]
    NotUtf8,
    /// The parameter values are not known, and the server cannot plan without them.
    #[error(
        "the statement's parameter values are not known, and {target} is older than PostgreSQL 16"
    )]
    ValuesUnknown {
        /// Address of the server, without a password.
        target: String,
    },
    /// The reply is not JSON.
    #[error("the reply of {target} to EXPLAIN (FORMAT JSON) is not valid JSON")]
    NoPlan {
        /// Address of the server, without a password.
        target: String,
    },
}

impl ExplainError {
    /// Whether the next statement would probably fail too: the server could not be reached, or
    /// refused the connection for another reason than a missing database.
    fn is_fatal(&self) -> bool {
        const NO_SUCH_DATABASE: &str = "3D000";
        match self {
            Self::Connect { source, .. } => source.sqlstate() != Some(NO_SUCH_DATABASE),
            _ => false,
        }
    }
}

impl Examples {
    /// Reads the examples of the changed queries from the run in the folder `path`.
    ///
    /// # Errors
    ///
    /// The folder does not contain a run that can be read.
    pub fn for_changed(comparison: &Comparison, path: &Path) -> Result<Self, ReadRunError> {
        let wanted: HashSet<Fingerprint> = changed_queries(comparison).collect();
        let read = || -> Result<Self, ReadError> {
            let statements = ReplayRun::open(path)?.statements()?.into_iter();
            let named = statements.map(|statement| (Fingerprint(statement.fingerprint), statement));
            Ok(Self(named.filter(|(fingerprint, _)| wanted.contains(fingerprint)).collect()))
        };
        read().map_err(|source| ReadRunError { path: path.to_owned(), source })
    }

    /// Adds an example, replacing an earlier one of the same query.
    pub fn insert(&mut self, statement: StatementInfo) {
        self.0.insert(Fingerprint(statement.fingerprint), statement);
    }
}

/// Returns the changed queries to explain, the worst first.
fn changed_queries(comparison: &Comparison) -> impl Iterator<Item = Fingerprint> {
    let slower = comparison.slower();
    let faster = comparison.faster().collect::<Vec<_>>().into_iter().rev();
    slower.chain(faster).take(QUERIES_MAX).map(|query| query.fingerprint)
}

/// Sets [`plan_change`](crate::QueryComparison::plan_change) and
/// [`plans`](crate::QueryComparison::plans) of the changed queries, at most 20, by requesting the
/// plan of one execution from both servers.
///
/// Returns the queries whose plans are not available, with the errors. Nothing is executed: plain
/// EXPLAIN is used, in a read-only transaction.
///
/// # Errors
///
/// A server cannot be reached, or refuses the connection for another reason than a missing
/// database. Queries explained before that keep their plans.
pub fn explain(
    comparison: &mut Comparison,
    examples: &Examples,
    base: &ConnectTarget,
    run: &ConnectTarget,
) -> Result<Vec<(Fingerprint, ExplainError)>, ExplainError> {
    let (mut base, mut run) = (PlanServer::new(base, examples), PlanServer::new(run, examples));
    let mut failures = Vec::new();
    let wanted: HashSet<Fingerprint> = changed_queries(comparison).collect();
    let queries = comparison.queries.iter_mut();
    for query in queries.filter(|query| wanted.contains(&query.fingerprint)) {
        let compared = match examples.0.get(&query.fingerprint) {
            Some(example) => compare_plans(example, &mut base, &mut run),
            None => Err(ExplainError::NoExample),
        };
        match compared {
            Ok((plan_change, plans)) => (query.plan_change, query.plans) = (plan_change, plans),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => failures.push((query.fingerprint, error)),
        }
    }
    Ok(failures)
}

/// Returns the difference between the plans in one sentence, if they differ, and both plans.
fn compare_plans(
    example: &StatementInfo,
    base: &mut PlanServer<'_>,
    run: &mut PlanServer<'_>,
) -> Result<(Option<String>, Option<Plans>), ExplainError> {
    let ((_, before), (database, after)) = (base.plan(example)?, run.plan(example)?);
    let plans = plan::outline(&before).zip(plan::outline(&after));
    let plans = plans.map(|(base, run)| Plans { base, run });
    let Some(mut sentence) = plan::difference(&before, &after) else { return Ok((None, plans)) };
    for index in plan::dropped_indexes(&before, &after) {
        if !run.has_index(&database, &index)? {
            sentence.push_str(&format!("; index {index} no longer exists"));
        }
    }
    Ok((Some(sentence), plans))
}

/// One of the two servers, with one connection per database.
struct PlanServer<'t> {
    target: &'t ConnectTarget,
    /// Whether statements are planned in the database they were captured in, not in the target's.
    ///
    /// True if the target's database is one of the captured ones: the target is then a copy of the
    /// captured server. Otherwise, the target's database is tried first.
    uses_captured_database: bool,
    clients: HashMap<String, Client>,
}

impl<'t> PlanServer<'t> {
    fn new(target: &'t ConnectTarget, examples: &Examples) -> Self {
        let as_captured =
            examples.0.values().any(|example| *example.database == *target.database());
        Self { target, uses_captured_database: as_captured, clients: HashMap::new() }
    }

    /// Returns the plan of an execution as EXPLAIN's JSON, and the name of the database it was
    /// planned in.
    fn plan(&mut self, example: &StatementInfo) -> Result<(String, Value), ExplainError> {
        let (captured, own) = (example.database.to_string(), self.target.database().to_owned());
        if captured.is_empty() || captured == own {
            return self.plan_in(own, example);
        }
        if self.uses_captured_database {
            return self.plan_in(captured, example);
        }
        match self.plan_in(own, example) {
            Err(error) if is_wrong_database(&error) => {
                self.plan_in(captured, example).map_err(|_| error)
            }
            plan => plan,
        }
    }

    fn plan_in(
        &mut self,
        database: String,
        example: &StatementInfo,
    ) -> Result<(String, Value), ExplainError> {
        let bytes = example.example_sql.as_bytes();
        let sql = example.example_sql.to_str().ok_or(ExplainError::NotUtf8)?;
        if !SqlCommand::from_sql(bytes).is_explainable() || split_statements(bytes).count() != 1 {
            return Err(ExplainError::NotExplainable);
        }
        let values = match &example.example_parameters {
            Some(parameters) => parameter_values(parameters)?,
            None => Some(Vec::new()).filter(|_| placeholder_count(bytes) == 0),
        };
        let target = self.target.to_string();
        let client = self.client(&database)?;
        let version = client.server_version_num().unwrap_or(0);
        let answer = match values {
            Some(values) => run_read_only(client, |client| {
                client.query_with(&format!("EXPLAIN (FORMAT JSON) {sql}"), &values)
            }),
            None if version < GENERIC_PLAN_SINCE => {
                return Err(ExplainError::ValuesUnknown { target });
            }
            None => run_read_only(client, |client| {
                let explain = format!("EXPLAIN (FORMAT JSON, GENERIC_PLAN) {sql}");
                client.query(&explain).map(|mut results| results.pop().unwrap_or_default())
            }),
        };
        let answer = answer.map_err(|source| ExplainError::Query {
            target: target.clone(),
            source: Box::new(source),
        })?;
        let text = answer.rows.first().and_then(|row| row.bytes(0)).unwrap_or_default();
        let plan = serde_json::from_slice(text).map_err(|_| ExplainError::NoPlan { target })?;
        Ok((database, plan))
    }

    /// Whether a database has an index of this name in any schema.
    fn has_index(&mut self, database: &str, name: &str) -> Result<bool, ExplainError> {
        const SQL: &str = "SELECT 1 FROM pg_catalog.pg_class \
                           WHERE relkind IN ('i', 'I') AND relname = $1::pg_catalog.name LIMIT 1";
        let target = self.target.to_string();
        let found = self.client(database)?.query_with(SQL, &[Some(name)]);
        match found {
            Ok(found) => Ok(!found.rows.is_empty()),
            Err(source) => Err(ExplainError::Query { target, source: Box::new(source) }),
        }
    }

    fn client(&mut self, database: &str) -> Result<&mut Client, ExplainError> {
        if !self.clients.contains_key(database) {
            let target = self.target.with_database(database);
            let mut client = Client::connect(&target).map_err(|source| ExplainError::Connect {
                target: target.to_string(),
                source: Box::new(source),
            })?;
            // Only for a broken network: the server's own limit is shorter.
            client.set_timeout(Some(PLANNING_TIME_MAX * 2));
            self.clients.insert(database.to_owned(), client);
        }
        Ok(self.clients.get_mut(database).expect("it was inserted above if missing"))
    }
}

/// Whether the error says that the database does not exist, or lacks a table, schema or function of
/// the statement.
fn is_wrong_database(error: &ExplainError) -> bool {
    match error {
        ExplainError::Connect { .. } => !error.is_fatal(),
        ExplainError::Query { source, .. } => {
            matches!(source.sqlstate(), Some("42P01" | "3F000" | "42883"))
        }
        _ => false,
    }
}

/// Runs `query` in a read-only transaction with a time limit.
fn run_read_only(
    client: &mut Client,
    query: impl FnOnce(&mut Client) -> Result<ResultSet, QueryError>,
) -> Result<ResultSet, QueryError> {
    let limit_ms = PLANNING_TIME_MAX.as_millis();
    client.query(&format!("BEGIN READ ONLY; SET LOCAL statement_timeout = {limit_ms}"))?;
    let answer = query(client);
    let ended = client.query("ROLLBACK");
    answer.and_then(|answer| ended.map(|_| answer))
}

/// Returns the parameter values of a captured execution, or `None` if some are not known.
fn parameter_values(parameters: &[Parameter]) -> Result<Option<Vec<Option<&str>>>, ExplainError> {
    let mut values = Vec::with_capacity(parameters.len());
    for parameter in parameters {
        values.push(match parameter {
            Parameter::Null => None,
            Parameter::Value(text) => Some(text.to_str().ok_or(ExplainError::NotUtf8)?),
            Parameter::Truncated(_) => return Ok(None),
        });
    }
    Ok(Some(values))
}
