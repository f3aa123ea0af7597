//! Why a query changed: its plan on either server, asked by EXPLAIN, which runs nothing.

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    time::Duration,
};

use howdah_connect::{Client, ConnectError, QueryError, ResultSet, Target};
use howdah_dataset::{ReadError, Run, Statement};
use howdah_sql::{Command, Fingerprint, placeholder_count, split_statements};
use howdah_traffic::Parameter;
use serde_json::Value;

use crate::{Comparison, ReadRunError, plan};

/// How long a server may plan one statement.
const PLANNING_TIME_MAX: Duration = Duration::from_secs(10);

/// Changed queries that are explained, the worst first: each costs two connections' worth of
/// round trips.
const QUERIES_MAX: usize = 20;

/// `GENERIC_PLAN` plans a statement whose values are not known, since this version.
const GENERIC_PLAN_SINCE: u32 = 160_000;

/// An execution of each of some queries.
#[derive(Debug, Default)]
pub struct Examples(HashMap<Fingerprint, Statement>);

/// A statement's plan could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The server cannot be reached.
    #[error("cannot connect to {target}")]
    Connect {
        /// The server.
        target: String,
        /// What is wrong.
        source: Box<ConnectError>,
    },
    /// The server would not plan it.
    #[error("{target} does not plan it")]
    Query {
        /// The server.
        target: String,
        /// What it said.
        source: Box<QueryError>,
    },
    /// The run holds no execution of it.
    #[error("the run holds no example of it")]
    NoExample,
    /// EXPLAIN does not take it: it is no query, or several.
    #[error("EXPLAIN does not take it")]
    NotExplainable,
    /// It is not UTF-8, the only encoding in which servers are asked.
    #[error("it is not UTF-8")]
    NotUtf8,
    /// The values of its parameters are not known, and the server plans nothing without.
    #[error("its values were not captured, and {target} is older than PostgreSQL 16")]
    ValuesUnknown {
        /// The server.
        target: String,
    },
    /// The answer is not JSON.
    #[error("{target} gave no plan")]
    NoPlan {
        /// The server.
        target: String,
    },
}

impl ExplainError {
    /// Whether the next statement would fail alike: the server is away, not just one database.
    fn is_fatal(&self) -> bool {
        const NO_SUCH_DATABASE: &str = "3D000";
        match self {
            Self::Connect { source, .. } => source.sqlstate() != Some(NO_SUCH_DATABASE),
            _ => false,
        }
    }
}

impl Examples {
    /// The examples that the run in the folder `path` holds of the queries that changed.
    ///
    /// # Errors
    ///
    /// There is no run, or it is damaged.
    pub fn of_changed(comparison: &Comparison, path: &Path) -> Result<Self, ReadRunError> {
        let wanted: HashSet<Fingerprint> = changed(comparison).collect();
        let read = || -> Result<Self, ReadError> {
            let statements = Run::open(path)?.statements()?.into_iter();
            let named = statements.map(|statement| (Fingerprint(statement.fingerprint), statement));
            Ok(Self(named.filter(|(fingerprint, _)| wanted.contains(fingerprint)).collect()))
        };
        read().map_err(|source| ReadRunError { path: path.to_owned(), source })
    }

    /// Adds an example.
    pub fn insert(&mut self, statement: Statement) {
        self.0.insert(Fingerprint(statement.fingerprint), statement);
    }
}

/// The queries worth explaining.
fn changed(comparison: &Comparison) -> impl Iterator<Item = Fingerprint> {
    let slower = comparison.slower();
    let faster = comparison.faster().collect::<Vec<_>>().into_iter().rev();
    slower.chain(faster).take(QUERIES_MAX).map(|query| query.fingerprint)
}

/// Fills in [`QueryComparison::because`](crate::QueryComparison::because) of the queries that
/// changed, by asking both servers for the plan of one execution, with its values.
///
/// Gives the queries whose plans could not be had, and why; a plan that did not change is neither.
/// Nothing is executed: it is plain EXPLAIN, in a transaction that may only read.
///
/// # Errors
///
/// A server cannot be reached: then no query is explained.
pub fn explain(
    comparison: &mut Comparison,
    examples: &Examples,
    base: &Target,
    run: &Target,
) -> Result<Vec<(Fingerprint, ExplainError)>, ExplainError> {
    let (mut base, mut run) = (Server::new(base, examples), Server::new(run, examples));
    let mut failures = Vec::new();
    let wanted: HashSet<Fingerprint> = changed(comparison).collect();
    let queries = comparison.queries.iter_mut();
    for query in queries.filter(|query| wanted.contains(&query.fingerprint)) {
        let because = match examples.0.get(&query.fingerprint) {
            Some(example) => because(example, &mut base, &mut run),
            None => Err(ExplainError::NoExample),
        };
        match because {
            Ok(because) => query.because = because,
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => failures.push((query.fingerprint, error)),
        }
    }
    Ok(failures)
}

fn because(
    example: &Statement,
    base: &mut Server<'_>,
    run: &mut Server<'_>,
) -> Result<Option<String>, ExplainError> {
    let ((_, before), (database, after)) = (base.plan(example)?, run.plan(example)?);
    let Some(mut sentence) = plan::difference(&before, &after) else { return Ok(None) };
    for index in plan::indexes_given_up(&before, &after) {
        if !run.has_index(&database, &index)? {
            sentence.push_str(&format!("; there is no index {index} any more"));
        }
    }
    Ok(Some(sentence))
}

/// One of the two servers, with a connection per database.
struct Server<'t> {
    target: &'t Target,
    /// Whether statements are planned in the database they were captured in, not the target's.
    ///
    /// A target whose database is one of the captured ones is a copy of the captured server. Any
    /// other is a place that sessions were mapped to, or no choice of the user's at all.
    as_captured: bool,
    clients: HashMap<String, Client>,
}

impl<'t> Server<'t> {
    fn new(target: &'t Target, examples: &Examples) -> Self {
        let as_captured =
            examples.0.values().any(|example| *example.database == *target.database());
        Self { target, as_captured, clients: HashMap::new() }
    }

    /// The plan of an execution, as EXPLAIN's JSON, and the database that it is for.
    fn plan(&mut self, example: &Statement) -> Result<(String, Value), ExplainError> {
        let (captured, own) = (example.database.to_string(), self.target.database().to_owned());
        if captured.is_empty() || captured == own {
            return self.plan_in(own, example);
        }
        if self.as_captured {
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
        example: &Statement,
    ) -> Result<(String, Value), ExplainError> {
        let bytes = example.example_sql.as_bytes();
        let sql = example.example_sql.to_str().ok_or(ExplainError::NotUtf8)?;
        if !Command::of(bytes).is_explainable() || split_statements(bytes).count() != 1 {
            return Err(ExplainError::NotExplainable);
        }
        let values = match &example.example_parameters {
            Some(parameters) => values(parameters)?,
            None => Some(Vec::new()).filter(|_| placeholder_count(bytes) == 0),
        };
        let target = self.target.to_string();
        let client = self.client(&database)?;
        let version = client.server_version_num().unwrap_or(0);
        let answer = match values {
            Some(values) => read_only(client, |client| {
                client.query_with(&format!("EXPLAIN (FORMAT JSON) {sql}"), &values)
            }),
            None if version < GENERIC_PLAN_SINCE => {
                return Err(ExplainError::ValuesUnknown { target });
            }
            None => read_only(client, |client| {
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

    /// Whether a database has an index of that name in any schema.
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
            // The server's own limit comes first; this one is for a network that went.
            client.set_timeout(Some(PLANNING_TIME_MAX * 2));
            self.clients.insert(database.to_owned(), client);
        }
        Ok(self.clients.get_mut(database).expect("it was inserted above if it was not there"))
    }
}

/// Whether there is no such database, or it lacks what the statement speaks of: an undefined table,
/// schema or function.
fn is_wrong_database(error: &ExplainError) -> bool {
    match error {
        ExplainError::Connect { .. } => !error.is_fatal(),
        ExplainError::Query { source, .. } => {
            matches!(source.sqlstate(), Some("42P01" | "3F000" | "42883"))
        }
        _ => false,
    }
}

/// Runs `query` in a transaction that may only read and takes no more than its time.
fn read_only(
    client: &mut Client,
    query: impl FnOnce(&mut Client) -> Result<ResultSet, QueryError>,
) -> Result<ResultSet, QueryError> {
    let limit_ms = PLANNING_TIME_MAX.as_millis();
    client.query(&format!("BEGIN READ ONLY; SET LOCAL statement_timeout = {limit_ms}"))?;
    let answer = query(client);
    let ended = client.query("ROLLBACK");
    answer.and_then(|answer| ended.map(|_| answer))
}

/// The values of a captured execution, or `None` if not all of them are known.
fn values(parameters: &[Parameter]) -> Result<Option<Vec<Option<&str>>>, ExplainError> {
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
