//! The ways to bring pages into the cache: the statements for the runs of a piece.
//!
//! Where `pg_prewarm` is installed and the role may read the relation, it is the way for everything.
//! Else plain queries have to do, which need nothing but the right to SELECT:
//!
//! - **Pages of the heap** are fetched by `ctid`, one row pointer a page. That the row is dead or was
//!   never there does not matter: the page was read. Such a scan has no ring of buffers, unlike a
//!   sequential scan of a large table, which keeps 32 pages of it. It touches one row a page, where a scan
//!   over a range of `ctid` looks at all of them, and may mark them as seen and so dirty the page.
//! - **A btree** is read from end to end by an index-only scan. That is chosen by the planner, so it is
//!   looked at before; and it reads the table's pages as well where they are not marked all-visible, so
//!   it is done only where nearly all are. Pages above the leaves beside the first path stay out.
//! - Nothing reaches free space and visibility maps, or indexes of other kinds.

use super::{
    catalog::array,
    plan::{Piece, Run},
};
use crate::image::Fork;

/// How pages are brought into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Way {
    /// `pg_prewarm()`: any fork of any relation, by blocks.
    PgPrewarm,
    /// A query for row pointers: pages of a table.
    RowPointers,
    /// An index-only scan: leaves of a btree, all of them.
    IndexOnlyScan,
}

impl Way {
    /// How it is named in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::PgPrewarm => "pg_prewarm",
            Self::RowPointers => "row pointers",
            Self::IndexOnlyScan => "index-only scan",
        }
    }
}

/// Where `pg_prewarm()` puts pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Into the server's buffers.
    #[default]
    Buffer,
    /// Into the operating system's cache, one after another.
    Read,
    /// Into the operating system's cache, which is told and does it when it likes.
    Prefetch,
}

impl Mode {
    /// PostgreSQL's name for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Read => "read",
            Self::Prefetch => "prefetch",
        }
    }
}

/// A statement and its values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) sql: String,
    pub(super) values: Vec<String>,
}

/// Loads by `pg_prewarm()`, which is in the schema `schema` (quoted), the relation `oid`. It gives the
/// number of pages.
pub(super) fn by_pg_prewarm(schema: &str, oid: u32, piece: &Piece, mode: Mode) -> Statement {
    let sql = format!(
        "SELECT sum({schema}.pg_prewarm($1::oid::regclass, $2, $3, r.first, r.last))
         FROM unnest($4::int8[], $5::int8[]) AS r(first, last)"
    );
    let blocks = |end: fn(&Run) -> u32| array(piece.runs.iter().map(|run| end(run).to_string()));
    let values = vec![
        oid.to_string(),
        mode.name().to_owned(),
        piece.fork.name().to_owned(),
        blocks(|run| run.first),
        blocks(|run| run.last),
    ];
    Statement { sql, values }
}

/// Loads pages of the table `relation` (qualified and quoted). `ONLY`: its children have pages of their
/// own.
pub(super) fn by_row_pointers(relation: &str, piece: &Piece) -> Statement {
    let blocks = piece.runs.iter().flat_map(|run| run.first..=run.last);
    let pointers = array(blocks.map(|block| format!("({block},1)")));
    let sql = format!("SELECT count(*) FROM ONLY {relation} WHERE ctid = ANY ($1::tid[])");
    Statement { sql, values: vec![pointers] }
}

/// The qualified and quoted name of a relation. The value is its oid.
pub(super) const NAME: &str = "
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::oid";

/// The query that reads a btree in its own order, then its quoted name as a plan shows it; no row where
/// there is none, because it is on expressions. Third: whether nearly all of the table is all-visible.
///
/// `OFFSET 0` keeps the planner from dropping the order. The value is the index's oid.
pub(super) const INDEX_ONLY_SCAN: &str = "
    SELECT format('SELECT count(*) FROM (SELECT 1 FROM ONLY %I.%I%s ORDER BY %s OFFSET 0) AS s',
               n.nspname, t.relname,
               COALESCE(' WHERE ' || pg_get_expr(i.indpred, i.indrelid), ''), k.columns),
           quote_ident(c.relname), t.relallvisible::float8 >= t.relpages * 0.9
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid
    JOIN pg_class t ON t.oid = i.indrelid
    JOIN pg_namespace n ON n.oid = t.relnamespace
    CROSS JOIN LATERAL (
        SELECT string_agg(quote_ident(a.attname)
                   || CASE WHEN o.option & 1 = 1 THEN ' DESC' ELSE ' ASC' END
                   || CASE WHEN o.option & 2 = 2 THEN ' NULLS FIRST' ELSE ' NULLS LAST' END,
                   ', ' ORDER BY o.place) AS columns
        FROM unnest(i.indoption::int2[]) WITH ORDINALITY AS o(option, place)
        JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[(o.place - 1)::int4]
    ) k
    WHERE i.indexrelid = $1::oid AND i.indexprs IS NULL AND i.indisvalid";

/// Whether the lines of a plan scan the index `name` (quoted) and nothing but it.
pub(super) fn is_index_only_scan<'a>(mut plan: impl Iterator<Item = &'a str>, name: &str) -> bool {
    plan.any(|line| {
        let line = line.trim_start_matches([' ', '-', '>']);
        let scanned = ["Index Only Scan using ", "Index Only Scan Backward using "]
            .into_iter()
            .find_map(|scan| line.strip_prefix(scan));
        scanned
            .and_then(|rest| rest.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with(" on "))
    })
}

/// What has no other way than `pg_prewarm`.
pub(super) fn beyond_queries(fork: Fork) -> &'static str {
    match fork {
        Fork::Main => "indexes of this kind",
        Fork::FreeSpaceMap => "free space maps",
        Fork::VisibilityMap => "visibility maps",
        Fork::Init => "init forks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece() -> Piece {
        let runs = vec![Run::of(3, 4), Run::of(9, 9)];
        Piece { relation: 0, fork: Fork::Main, class: 1, runs }
    }

    #[test]
    fn each_page_is_named_by_its_first_row() {
        let Statement { sql, values } = by_row_pointers("public.\"a b\"", &piece());
        assert_eq!(values, [r#"{"(3,1)","(4,1)","(9,1)"}"#]);
        assert!(sql.contains("FROM ONLY public.\"a b\" WHERE ctid = ANY"));
    }

    #[test]
    fn runs_are_two_arrays() {
        let Statement { values, .. } = by_pg_prewarm("public", 17, &piece(), Mode::Read);
        assert_eq!(values, ["17", "read", "main", r#"{"3","9"}"#, r#"{"4","9"}"#]);
    }

    #[test]
    fn another_index_than_ours_is_seen_in_the_plan() {
        let plan = ["Aggregate", "  ->  Index Only Scan using orders_pkey on orders"];
        assert!(is_index_only_scan(plan.into_iter(), "orders_pkey"));
        assert!(!is_index_only_scan(plan.into_iter(), "orders"));
        let backward = ["->  Index Only Scan Backward using \"o k\" on orders"];
        assert!(is_index_only_scan(backward.into_iter(), "\"o k\""));
        let plan = ["Aggregate", "  ->  Index Scan using orders_pkey on orders"];
        assert!(!is_index_only_scan(plan.into_iter(), "orders_pkey"));
    }
}
