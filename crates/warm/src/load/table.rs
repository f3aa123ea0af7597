//! Warms whole relations by name: a table with its indexes, its TOAST table and its partitions, or
//! a range of blocks of one relation. Works like `pg_prewarm()`, but includes everything that
//! belongs to a table.

use std::collections::BTreeMap;

use howdah_connect::{Client, ConnectTarget};

use super::{
    LoadObserver,
    catalog::{self, LocatedRelation},
    load_threads::{LoadResult, LoadThreads},
    method::{LoadMethod, PrewarmMode},
    plan::{BlockRun, CHUNK_PAGES_MAX, LoadChunk},
    report::{PageCounts, RelationOutcome, RelationProblem},
    session, worker,
};
use crate::{
    diff::RelationIdentity,
    dump::{ClusterInfo, QueryFailure},
    image::{Fork, QualifiedName, RelationName},
};

/// Options for warming relations.
#[derive(Clone, Debug, PartialEq)]
pub struct TableLoadOptions {
    /// Whether pages are loaded into the server's buffers or the operating system's cache.
    pub mode: PrewarmMode,
    /// The fork to load of each relation.
    pub fork: Fork,
    /// First block to load, for a single relation; 0 by default.
    pub first: Option<u32>,
    /// Last block to load, for a single relation; by default, the last block of the fork.
    pub last: Option<u32>,
    /// Whether to warm only the named relations, without indexes, TOAST and partitions.
    pub only: bool,
    /// Rate, connections and timeouts. Nothing is omitted for lack of room: the tables were
    /// requested explicitly.
    pub load: super::LoadOptions,
}

impl Default for TableLoadOptions {
    fn default() -> Self {
        Self {
            mode: PrewarmMode::Buffer,
            fork: Fork::Main,
            first: None,
            last: None,
            only: false,
            load: super::LoadOptions::default(),
        }
    }
}

/// The outcome of warming one relation.
#[derive(Clone, Debug)]
pub struct TableResult {
    /// Schema and name of the relation.
    pub name: QualifiedName,
    /// Number of blocks that were loaded.
    pub blocks: u64,
    /// Number of blocks that were to be loaded.
    pub requested: u64,
    /// The methods by which blocks were loaded.
    pub methods: Vec<LoadMethod>,
    /// Why the relation was not loaded, or not completely.
    pub problem: Option<RelationProblem>,
}

/// An error that prevents all relations from being warmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The server could not be queried.
    #[error("cannot look up the relations on the server")]
    Server(#[source] QueryFailure),
    /// No relation matches the pattern.
    #[error("no table, index, materialized view or sequence matches {pattern}")]
    NoMatch {
        /// The pattern, as given.
        pattern: String,
    },
    /// A block range was given, but several relations match, or none that has storage.
    #[error("a block range needs a single relation, but {count} relations match")]
    NotOneRelation {
        /// Number of matching relations.
        count: usize,
    },
    /// The block range is not within the relation.
    #[error(
        "blocks {first} to {last} are not a range within {name}: they are numbered from 0, and it \
         has {length}"
    )]
    Range {
        /// Schema and name of the relation.
        name: QualifiedName,
        /// Length of the relation's fork, in blocks.
        length: u32,
        /// First requested block.
        first: u32,
        /// Last requested block.
        last: u32,
    },
    /// The server was restarted during the load.
    #[error("the server was restarted during the load")]
    Restarted,
}

/// Warms the relations of `target`'s database that match `patterns`, in which `*` and `?` are
/// wildcards as in psql: `orders`, `sales.*`, `sales.order_?`, `"Odd.Name"`. Without a schema,
/// relations on the search path match.
///
/// # Errors
///
/// A pattern matches nothing, a range is invalid, or the server cannot be queried or was restarted.
/// Problems with single relations are part of the result.
pub fn table(
    target: &ConnectTarget,
    patterns: &[String],
    options: &TableLoadOptions,
    observer: &dyn LoadObserver,
) -> Result<Vec<TableResult>, TableError> {
    let mut client = worker::connect_with_retry(target, options.load.connect_timeout, observer)
        .map_err(TableError::Server)?;
    let cluster_info = ClusterInfo::query(&mut client).map_err(TableError::Server)?;
    let started = client.one_value(session::START_TIME).map_err(QueryFailure::from);
    let started = started.map_err(TableError::Server)?.unwrap_or_default();
    let members = find_members(&mut client, target, patterns, options)?;
    let (names, located): (Vec<_>, Vec<_>) = members.into_values().unzip();
    let mut outcomes: Vec<_> = names.iter().map(empty_outcome).collect();
    let chunks = make_chunks(&names, &located, options, &mut outcomes)?;
    let threads = LoadThreads {
        target,
        options: &options.load,
        observer,
        mode: options.mode,
        started: &started,
        page_bytes: cluster_info.page_bytes,
        postmaster: None,
        located: &located,
        has_room: &|| true,
    };
    let LoadResult { outcomes, .. } =
        threads.load(chunks, outcomes).ok_or(TableError::Restarted)?;
    let warmed = |(name, outcome): (QualifiedName, RelationOutcome)| TableResult {
        name,
        blocks: outcome.pages.loaded,
        requested: outcome.pages.requested,
        methods: outcome.methods,
        problem: outcome.problem,
    };
    Ok(names.into_iter().zip(outcomes).map(warmed).collect())
}

type FamilyMember = (QualifiedName, Result<LocatedRelation, RelationProblem>);

/// Finds the relations to warm, keyed by the index of the pattern and a position among its matches.
fn find_members(
    client: &mut Client,
    target: &ConnectTarget,
    patterns: &[String],
    options: &TableLoadOptions,
) -> Result<BTreeMap<(usize, usize), FamilyMember>, TableError> {
    let server = |failure: howdah_connect::QueryError| TableError::Server(failure.into());
    let lock_timeout = options.load.lock_timeout.as_millis().max(1);
    client.query(&format!("SET lock_timeout = {lock_timeout}")).map_err(server)?;
    let mut members: BTreeMap<(usize, usize), FamilyMember> = BTreeMap::new();
    for (at, pattern) in patterns.iter().enumerate() {
        let (schema, name) = regular_expressions(pattern);
        let follows = if options.only { "f" } else { "t" };
        let values = [Some(&*schema), Some(&*name), Some(follows)];
        let result = client.query_with(&catalog::family_query(FAMILY), &values).map_err(server)?;
        if result.rows.is_empty() {
            return Err(TableError::NoMatch { pattern: pattern.clone() });
        }
        let found = catalog::parse_rows(&result, target).map_err(TableError::Server)?;
        for (place, found) in found {
            // A relation without storage only leads to the relations that belong to it.
            let Ok(relation) = &found else { continue };
            let name = relation.name.clone();
            let is_new = !members.values().any(|(known, _)| *known == name);
            if is_new {
                members.insert((at, place), (name, found));
            }
        }
    }
    match members.len() {
        count if count != 1 && (options.first.is_some() || options.last.is_some()) => {
            Err(TableError::NotOneRelation { count })
        }
        _ => Ok(members),
    }
}

/// Finds relations by name, and those that belong to them: children, indexes, TOAST. System
/// catalogs match only if their schema is named.
const FAMILY: &str = "
WITH RECURSIVE named AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname ~ $2 AND c.relkind IN ('r', 'p', 'm', 'i', 'I', 'S', 't') AND c.relpersistence <> 't'
    AND CASE WHEN $1 = '' THEN pg_table_is_visible(c.oid) ELSE n.nspname ~ $1 END
    AND ($1 ~ '^.[(](pg_|information)' OR n.nspname !~ '^(pg_|information_schema$)')
), tree AS (
    SELECT oid FROM named
    UNION
    SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON t.oid = i.inhparent WHERE $3::bool
), toast AS (
    SELECT c.reltoastrelid AS oid FROM pg_class c JOIN tree t ON t.oid = c.oid
    WHERE c.reltoastrelid <> 0 AND $3::bool
), family AS (
    SELECT oid FROM tree UNION SELECT oid FROM toast
    UNION SELECT i.indexrelid FROM pg_index i JOIN tree t ON t.oid = i.indrelid WHERE $3::bool
    UNION SELECT i.indexrelid FROM pg_index i JOIN toast t ON t.oid = i.indrelid
), w AS (SELECT row_number() OVER (ORDER BY oid) AS at, oid FROM family)";

/// Converts a pattern to regular expressions for schema and name: `*` and `?` are wildcards, the
/// first dot separates, and upper case is preserved only in quotes. Unlike in psql, all other
/// characters are literal. Without a schema, the schema's expression is empty.
fn regular_expressions(pattern: &str) -> (String, String) {
    let (mut parts, mut part, mut is_quoted) = (Vec::new(), String::new(), false);
    for char in pattern.chars() {
        match char {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted && parts.is_empty() => parts.push(std::mem::take(&mut part)),
            '*' if !is_quoted => part.push_str(".*"),
            '?' if !is_quoted => part.push('.'),
            char if char.is_alphanumeric() || char == '_' || !char.is_ascii() => {
                if is_quoted {
                    part.push(char);
                } else {
                    part.extend(char.to_lowercase());
                }
            }
            char => part.extend(['\\', char]),
        }
    }
    let whole = |part: &str| format!("^({part})$");
    (parts.first().map(|schema| whole(schema)).unwrap_or_default(), whole(&part))
}

fn empty_outcome(name: &QualifiedName) -> RelationOutcome {
    RelationOutcome {
        database: None,
        relation: RelationIdentity::Named(RelationName::Own(name.clone())),
        pages: PageCounts::default(),
        is_rewritten: false,
        mapped_by: None,
        renamed: None,
        methods: Vec::new(),
        problem: None,
    }
}

/// Splits the requested blocks into chunks, and records the problems of relations that cannot be
/// loaded.
fn make_chunks(
    names: &[QualifiedName],
    located: &[Result<LocatedRelation, RelationProblem>],
    options: &TableLoadOptions,
    outcomes: &mut [RelationOutcome],
) -> Result<Vec<LoadChunk>, TableError> {
    let mut chunks = Vec::new();
    for (relation, place) in located.iter().enumerate() {
        let length = match place {
            Ok(found) => {
                found.lengths[options.fork.number() as usize].ok_or(RelationProblem::Locked)
            }
            Err(problem) => Err(problem.clone()),
        };
        let length = match length {
            Ok(length) => length,
            Err(problem) => {
                outcomes[relation].problem = Some(problem);
                continue;
            }
        };
        let Some(run) = block_range(&names[relation], length, options)? else { continue };
        outcomes[relation].pages.requested = run.pages();
        let mut first = run.first;
        while first <= run.last {
            let last = run.last.min(first.saturating_add(CHUNK_PAGES_MAX - 1));
            chunks.push(LoadChunk {
                relation,
                fork: options.fork,
                class: 0,
                runs: vec![BlockRun::new(first, last)],
            });
            // The last block of a fork is below `u32::MAX`.
            first = last + 1;
        }
    }
    Ok(chunks)
}

fn block_range(
    name: &QualifiedName,
    length: u32,
    options: &TableLoadOptions,
) -> Result<Option<BlockRun>, TableError> {
    let (first, last) = (options.first.unwrap_or(0), options.last);
    match (last.unwrap_or(length.saturating_sub(1)), length) {
        (_, 0) if options.first.is_none() && last.is_none() => Ok(None),
        (last, length) if first <= last && last < length => Ok(Some(BlockRun::new(first, last))),
        (last, length) => Err(TableError::Range { name: name.clone(), length, first, last }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_follow_psql_syntax() {
        let both = |pattern| {
            let (schema, name) = regular_expressions(pattern);
            format!("{schema} {name}")
        };
        assert_eq!(both("orders"), " ^(orders)$");
        assert_eq!(both("Sales.Order_?"), "^(sales)$ ^(order_.)$");
        assert_eq!(both("*.*"), "^(.*)$ ^(.*)$");
        assert_eq!(both("\"Odd.Schema\".\"ta,ble\""), "^(Odd\\.Schema)$ ^(ta\\,ble)$");
        assert_eq!(both("a$b|c"), " ^(a\\$b\\|c)$");
    }

    #[test]
    fn invalid_block_ranges_are_rejected() {
        let name = QualifiedName { schema: "public".into(), name: "t".into() };
        let run = |first, last, length| {
            block_range(
                &name,
                length,
                &TableLoadOptions { first, last, ..TableLoadOptions::default() },
            )
            .map(|run| run.map(|run| (run.first, run.last)))
        };
        assert_eq!(run(None, None, 0).unwrap(), None);
        assert_eq!(run(None, None, 5).unwrap(), Some((0, 4)));
        assert_eq!(run(Some(3), None, 5).unwrap(), Some((3, 4)));
        assert_eq!(run(Some(2), Some(2), 5).unwrap(), Some((2, 2)));
        assert!(run(Some(3), Some(2), 5).is_err());
        assert!(run(None, Some(5), 5).is_err());
        assert!(run(Some(0), None, 0).is_err());
        assert_eq!(
            run(None, Some(5), 1).unwrap_err().to_string(),
            "blocks 0 to 5 are not a range within public.t: they are numbered from 0, and it has 1"
        );
    }
}
