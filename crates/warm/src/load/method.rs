//! Methods of loading pages into the cache, and the statements that they use.
//!
//! If `pg_prewarm` is installed and the role may read the relation, it is used for everything.
//! Otherwise plain queries are used, which need only the SELECT privilege:
//!
//! - **Heap pages** are fetched by `ctid`, one row pointer per page, with a number that no row has:
//!   `heap_fetch()` reads the page before it looks for the row, and then examines none, so it sets
//!   no hint bits and dirties nothing. Such a scan does not use a buffer ring, unlike a sequential
//!   scan of a large table, which retains only 32 of its pages.
//! - **A btree** is read from end to end by an index-only scan. The planner decides, so the plan is
//!   checked first. The scan also reads table pages that are not all-visible, so it is used only if
//!   nearly all are. Inner pages outside the path to the first leaf are not loaded.
//! - Free space maps, visibility maps and indexes of other kinds cannot be loaded.

use super::plan::{BlockRun, LoadChunk};
use crate::{dump::array, image::Fork};

/// A method of loading pages into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadMethod {
    /// `pg_prewarm()`, for ranges of blocks in any fork of any relation.
    PgPrewarm,
    /// A query with a list of row pointers (`ctid`), for pages of a table.
    RowPointers,
    /// An index-only scan, which reads all leaves of a btree.
    IndexOnlyScan,
}

impl LoadMethod {
    /// Returns the method's name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::PgPrewarm => "pg_prewarm",
            Self::RowPointers => "row pointers",
            Self::IndexOnlyScan => "index-only scan",
        }
    }
}

/// The mode of `pg_prewarm()`: where it loads pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrewarmMode {
    /// Into the server's buffers.
    #[default]
    Buffer,
    /// Into the operating system's cache, synchronously.
    Read,
    /// Into the operating system's cache, asynchronously.
    Prefetch,
}

impl PrewarmMode {
    /// PostgreSQL's name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Buffer => "buffer",
            Self::Read => "read",
            Self::Prefetch => "prefetch",
        }
    }
}

/// A statement and its parameter values.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LoadStatement {
    pub(super) sql: String,
    pub(super) values: Vec<String>,
}

/// Returns a statement that loads blocks of the relation `oid` with `pg_prewarm()`, which is in
/// `schema` (quoted). Its result is the number of pages.
pub(super) fn pg_prewarm_statement(
    schema: &str,
    oid: u32,
    chunk: &LoadChunk,
    mode: PrewarmMode,
) -> LoadStatement {
    let sql = format!(
        "SELECT sum({schema}.pg_prewarm($1::oid::regclass, $2, $3, r.first, r.last))
         FROM unnest($4::int8[], $5::int8[]) AS r(first, last)"
    );
    let blocks =
        |end: fn(&BlockRun) -> u32| array(chunk.runs.iter().map(|run| end(run).to_string()));
    let values = vec![
        oid.to_string(),
        mode.name().to_owned(),
        chunk.fork.name().to_owned(),
        blocks(|run| run.first),
        blocks(|run| run.last),
    ];
    LoadStatement { sql, values }
}

/// Returns a statement that loads pages of the table `relation` (qualified and quoted). It uses
/// `ONLY`, because children have their own pages.
pub(super) fn row_pointer_statement(relation: &str, chunk: &LoadChunk) -> LoadStatement {
    let blocks = chunk.runs.iter().flat_map(|run| run.first..=run.last);
    let pointers = array(blocks.map(|block| format!("({block},{ABSENT_ROW})")));
    // The planner estimates the selectivity of each element of a constant array, but not of a
    // subquery's.
    let sql = format!(
        "SELECT count(*) FROM ONLY {relation} WHERE ctid = ANY (ARRAY(SELECT unnest($1::tid[])))"
    );
    LoadStatement { sql, values: vec![pointers] }
}

/// Number of a row that does not exist on any page: a page of 32 kB has 8191 row pointers at most.
/// From 65533 on, numbers have special meanings (`itemptr.h`).
const ABSENT_ROW: u16 = 65_000;

/// Query for the qualified and quoted name of a relation. The parameter is its oid.
pub(super) const QUOTED_NAME: &str = "
    SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1::oid";

/// Query for a statement that reads a btree in index order, the index's quoted name as shown in a
/// plan, and whether nearly all of the table is all-visible. Returns no row for an invalid index or
/// one on expressions.
///
/// `OFFSET 0` prevents the planner from dropping the order. The parameter is the index's oid.
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

/// Whether a plan contains an index-only scan of the index `name` (quoted).
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

/// Names what can be loaded only by `pg_prewarm`, for messages about pages of a fork.
pub(super) fn unreachable_by_query(fork: Fork) -> &'static str {
    match fork {
        Fork::Main => "relations of this kind",
        Fork::FreeSpaceMap => "free space maps",
        Fork::VisibilityMap => "visibility maps",
        Fork::Init => "init forks",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> LoadChunk {
        let runs = vec![BlockRun::new(3, 4), BlockRun::new(9, 9)];
        LoadChunk { relation: 0, fork: Fork::Main, class: 1, runs }
    }

    #[test]
    fn each_page_is_read_by_one_row_pointer() {
        let LoadStatement { sql, values } = row_pointer_statement("public.\"a b\"", &chunk());
        assert_eq!(values, [r#"{"(3,65000)","(4,65000)","(9,65000)"}"#]);
        assert!(sql.contains("FROM ONLY public.\"a b\" WHERE ctid = ANY"));
    }

    #[test]
    fn runs_are_passed_as_two_arrays() {
        let LoadStatement { values, .. } =
            pg_prewarm_statement("public", 17, &chunk(), PrewarmMode::Read);
        assert_eq!(values, ["17", "read", "main", r#"{"3","9"}"#, r#"{"4","9"}"#]);
    }

    #[test]
    fn plan_check_accepts_only_the_given_index() {
        let plan = ["Aggregate", "  ->  Index Only Scan using orders_pkey on orders"];
        assert!(is_index_only_scan(plan.into_iter(), "orders_pkey"));
        assert!(!is_index_only_scan(plan.into_iter(), "orders"));
        let backward = ["->  Index Only Scan Backward using \"o k\" on orders"];
        assert!(is_index_only_scan(backward.into_iter(), "\"o k\""));
        let plan = ["Aggregate", "  ->  Index Scan using orders_pkey on orders"];
        assert!(!is_index_only_scan(plan.into_iter(), "orders_pkey"));
    }
}
