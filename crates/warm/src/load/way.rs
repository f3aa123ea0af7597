//! The ways to bring pages into the cache, each a statement for the runs of one piece.

use super::{
    catalog::{Found, array},
    plan::{Piece, Run},
};

/// How pages are brought into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// `pg_prewarm()`, any fork of any relation, by blocks.
    PgPrewarm,
}

impl Way {
    /// How it is named in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PgPrewarm => "pg_prewarm",
        }
    }
}

/// A statement that loads a piece, and its values.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) values: Vec<String>,
}

/// Loads by `pg_prewarm()`, which is in the schema `schema` (quoted). It gives the number of pages.
///
/// Without a subquery the planner would fold the set of runs into a single call's arguments.
pub(super) fn by_pg_prewarm(schema: &str, found: &Found, piece: &Piece) -> Statement {
    let sql = format!(
        "SELECT sum({schema}.pg_prewarm($1::oid::regclass, 'buffer', $2, r.first, r.last))
         FROM unnest($3::int8[], $4::int8[]) AS r(first, last)"
    );
    let blocks = |end: fn(&Run) -> u32| array(piece.runs.iter().map(|run| end(run).to_string()));
    let values = vec![
        found.oid.to_string(),
        piece.fork.name().to_owned(),
        blocks(|run| run.first),
        blocks(|run| run.last),
    ];
    Statement { sql, values }
}
