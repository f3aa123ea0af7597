//! Warms whole relations by name: a table with its indexes, its TOAST table and its partitions, or a
//! range of blocks of one relation. What `pg_prewarm()` does, for everything that belongs together.

use std::collections::BTreeMap;

use howdah_connect::{Client, Target};

use super::{
    Observer,
    catalog::{self, Found},
    crew::{Crew, Worked},
    plan::{PIECE_PAGES, Piece, Run},
    report::{Outcome, Pages, Problem},
    session,
    way::{Mode, Way},
    worker,
};
use crate::{
    diff::Known,
    dump::{Facts, QueryFailure},
    image::{Fork, QualifiedName, RelationName},
};

/// What to warm, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Where pages go.
    pub mode: Mode,
    /// Which fork of each relation.
    pub fork: Fork,
    /// First block, of a single relation; 0 without it.
    pub first: Option<u32>,
    /// Last block, of a single relation; its last one without it.
    pub last: Option<u32>,
    /// Only the relations that are named, without indexes, TOAST and partitions.
    pub only: bool,
    /// Pace, connections and patience. Nothing is left out for lack of room: who names a table wants it.
    pub pace: super::Options,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Buffer,
            fork: Fork::Main,
            first: None,
            last: None,
            only: false,
            pace: super::Options::default(),
        }
    }
}

/// What became of one relation.
#[derive(Clone, Debug)]
pub struct Warmed {
    /// Its schema and name.
    pub name: QualifiedName,
    /// Blocks that were loaded.
    pub blocks: u64,
    /// Blocks that were asked for.
    pub wanted: u64,
    /// The ways by which they were loaded.
    pub ways: Vec<Way>,
    /// What stopped it, or part of it.
    pub problem: Option<Problem>,
}

/// Why no relation was warmed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The server could not be asked.
    #[error("the server could not be asked about its relations")]
    Server(#[source] QueryFailure),
    /// Nothing has such a name.
    #[error("no table, index, materialised view or sequence is named {pattern}")]
    NoMatch {
        /// As it was typed.
        pattern: String,
    },
    /// Blocks were asked for of more than one relation.
    #[error("first and last block are of one relation, and {count} have such a name")]
    SeveralRanges {
        /// How many.
        count: usize,
    },
    /// The relation does not have these blocks.
    #[error("{name} has {length} blocks, from 0 on: {first} to {last} is no range of them")]
    Range {
        /// The relation.
        name: QualifiedName,
        /// How long its fork is.
        length: u32,
        /// First block that was asked for.
        first: u32,
        /// Last block that was asked for.
        last: u32,
    },
    /// The server restarted meanwhile.
    #[error("the server was restarted meanwhile")]
    Restarted,
}

/// Warms the relations of the database of `target` that `patterns` name, as psql understands patterns:
/// `orders`, `sales.*`, `sales.order_?`, `"Odd.Name"`. Without a schema, those that the search path finds.
///
/// # Errors
///
/// A pattern names nothing, a range is none, or the server cannot be asked. What stops single relations
/// is in the result.
pub fn table(
    target: &Target,
    patterns: &[String],
    options: &Options,
    observer: &dyn Observer,
) -> Result<Vec<Warmed>, TableError> {
    let mut client =
        worker::reach(target, options.pace.patience, observer).map_err(TableError::Server)?;
    let facts = Facts::ask(&mut client).map_err(TableError::Server)?;
    let started = client.one_value(session::STARTED).map_err(QueryFailure::from);
    let started = started.map_err(TableError::Server)?.unwrap_or_default();
    let members = members(&mut client, target, patterns, options)?;
    let (names, places): (Vec<_>, Vec<_>) = members.into_values().unzip();
    let mut outcomes: Vec<_> = names.iter().map(empty).collect();
    let pieces = pieces(&names, &places, options, &mut outcomes)?;
    let crew = Crew {
        target,
        options: &options.pace,
        observer,
        mode: options.mode,
        started: &started,
        page_bytes: facts.page_bytes,
        places: &places,
        has_room: &|| true,
    };
    let Worked { outcomes, .. } = crew.work(pieces, outcomes).ok_or(TableError::Restarted)?;
    let warmed = |(name, outcome): (QualifiedName, Outcome)| Warmed {
        name,
        blocks: outcome.pages.loaded,
        wanted: outcome.pages.wanted,
        ways: outcome.ways,
        problem: outcome.problem,
    };
    Ok(names.into_iter().zip(outcomes).map(warmed).collect())
}

type Member = (QualifiedName, Result<Found, Problem>);

/// The relations to warm, by the order in which they were found.
fn members(
    client: &mut Client,
    target: &Target,
    patterns: &[String],
    options: &Options,
) -> Result<BTreeMap<(usize, usize), Member>, TableError> {
    let server = |failure: howdah_connect::QueryError| TableError::Server(failure.into());
    let lock_timeout = options.pace.lock_timeout.as_millis().max(1);
    client.query(&format!("SET lock_timeout = {lock_timeout}")).map_err(server)?;
    let mut members: BTreeMap<(usize, usize), Member> = BTreeMap::new();
    for (at, pattern) in patterns.iter().enumerate() {
        let (schema, name) = regular_expressions(pattern);
        let follows = if options.only { "f" } else { "t" };
        let values = [Some(&*schema), Some(&*name), Some(follows)];
        let result = client.query_with(&catalog::family(FAMILY), &values).map_err(server)?;
        if result.rows.is_empty() {
            return Err(TableError::NoMatch { pattern: pattern.clone() });
        }
        let found = catalog::read(&result, target).map_err(TableError::Server)?;
        for (place, found) in found {
            // What has no pages of its own is only followed to what belongs to it.
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
            Err(TableError::SeveralRanges { count })
        }
        _ => Ok(members),
    }
}

/// Relations of a name, and what belongs to them: children, indexes, TOAST. Catalogs are meant only
/// where their schema is named.
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

/// Of schema and name, as psql makes them: `*` and `?` are wild, the first dot parts, capitals count only
/// in quotes. No schema is the empty text.
fn regular_expressions(pattern: &str) -> (String, String) {
    let (mut parts, mut part, mut is_quoted) = (Vec::new(), String::new(), false);
    for char in pattern.chars() {
        match char {
            '"' => is_quoted = !is_quoted,
            '.' if !is_quoted && parts.is_empty() => parts.push(std::mem::take(&mut part)),
            '*' if !is_quoted => part.push_str(".*"),
            '?' if !is_quoted => part.push('.'),
            char if char.is_alphanumeric() || char == '_' || !char.is_ascii() => match is_quoted {
                true => part.push(char),
                false => part.extend(char.to_lowercase()),
            },
            char => part.extend(['\\', char]),
        }
    }
    let whole = |part: &str| format!("^({part})$");
    (parts.first().map(|schema| whole(schema)).unwrap_or_default(), whole(&part))
}

fn empty(name: &QualifiedName) -> Outcome {
    Outcome {
        database: None,
        relation: Known::Named(RelationName::Own(name.clone())),
        pages: Pages::default(),
        is_rewritten: false,
        renamed: None,
        ways: Vec::new(),
        problem: None,
    }
}

/// The blocks asked for, cut into pieces, and what is wrong with relations that have none.
fn pieces(
    names: &[QualifiedName],
    places: &[Result<Found, Problem>],
    options: &Options,
    outcomes: &mut [Outcome],
) -> Result<Vec<Piece>, TableError> {
    let mut pieces = Vec::new();
    for (relation, place) in places.iter().enumerate() {
        let length = match place {
            Ok(found) => found.lengths[options.fork.number() as usize].ok_or(Problem::Locked),
            Err(problem) => Err(problem.clone()),
        };
        let length = match length {
            Ok(length) => length,
            Err(problem) => {
                outcomes[relation].problem = Some(problem);
                continue;
            }
        };
        let Some(run) = run(&names[relation], length, options)? else { continue };
        outcomes[relation].pages.wanted = run.pages();
        let mut first = run.first;
        while first <= run.last {
            let last = run.last.min(first.saturating_add(PIECE_PAGES - 1));
            pieces.push(Piece {
                relation,
                fork: options.fork,
                class: 0,
                runs: vec![Run::of(first, last)],
            });
            // The last block of a fork is below the highest number.
            first = last + 1;
        }
    }
    Ok(pieces)
}

fn run(name: &QualifiedName, length: u32, options: &Options) -> Result<Option<Run>, TableError> {
    let (first, last) = (options.first.unwrap_or(0), options.last);
    match (last.unwrap_or(length.saturating_sub(1)), length) {
        (_, 0) if options.first.is_none() && last.is_none() => Ok(None),
        (last, length) if first <= last && last < length => Ok(Some(Run::of(first, last))),
        (last, length) => Err(TableError::Range { name: name.clone(), length, first, last }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_of_psql() {
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
    fn a_range_has_to_be_one() {
        let name = QualifiedName { schema: "public".into(), name: "t".into() };
        let run = |first, last, length| {
            run(&name, length, &Options { first, last, ..Options::default() })
                .map(|run| run.map(|run| (run.first, run.last)))
        };
        assert_eq!(run(None, None, 0).unwrap(), None);
        assert_eq!(run(None, None, 5).unwrap(), Some((0, 4)));
        assert_eq!(run(Some(3), None, 5).unwrap(), Some((3, 4)));
        assert_eq!(run(Some(2), Some(2), 5).unwrap(), Some((2, 2)));
        assert!(run(Some(3), Some(2), 5).is_err());
        assert!(run(None, Some(5), 5).is_err());
        assert!(run(Some(0), None, 0).is_err());
    }
}
