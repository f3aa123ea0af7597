//! Finds the pages of rewritten relations by the keys of rows in the image.
//!
//! For each row of which the image has the key, the server is asked where it is now (`ctid`), by an
//! index on the key. This reads the row's page and the path to it in the index, which are mostly
//! pages that are to be loaded anyway. Other btree indexes of the table are descended for the same
//! rows, and the pages this brings into the cache show where their hot parts are.

use std::{borrow::Cow, collections::BTreeMap};

use howdah_connect::{Client, ConnectTarget};

use super::{
    LoadObserver,
    block_mapping::{BlockMapping, RowPages},
    catalog::{self, CatalogLookup, LocatedRelation, RelationKind, array},
    report::RelationProblem,
    session, worker,
};
use crate::{
    dump::{self, QueryFailure},
    image::{Fork, Relation, RowKeys},
};

/// Number of rows that one statement looks up.
const ROWS_PER_STATEMENT: usize = 512;

/// A relation that was located, or the reason why not.
type LocatedResult = Result<LocatedRelation, RelationProblem>;

/// Finds the pages of those relations that were rewritten or copied, by the keys of their rows.
/// Returns whether pages were read.
///
/// Relations for which this fails (the key's columns or its index are gone, a privilege is missing)
/// have no mapping, and are mapped by their length.
pub(super) fn find_rows(lookup: CatalogLookup<'_>, located: &mut [LocatedResult]) -> bool {
    let mut by_database: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, place) in located.iter().enumerate() {
        let Ok(found) = place else { continue };
        let relation = &lookup.image.relations[at];
        let can_map = relation.keys.is_some() && found.kind == RelationKind::Heap
            || found.kind == RelationKind::Btree;
        if can_map && catalog::is_rewritten(lookup, relation, found) {
            by_database.entry(found.database.clone()).or_default().push(at);
        }
    }
    by_database.retain(|_, requested| {
        requested.iter().any(|&at| lookup.image.relations[at].keys.is_some())
    });
    let mut has_read = false;
    for (database, requested) in by_database {
        let target = lookup.target.with_database(&database);
        match find_in_database(lookup, &target, &requested, located) {
            Ok(()) => has_read = true,
            Err(failure) => {
                tracing::debug!(database, error = %failure, "cannot look up rows by their keys");
            }
        }
    }
    has_read
}

fn find_in_database(
    lookup: CatalogLookup<'_>,
    target: &ConnectTarget,
    requested: &[usize],
    located: &mut [LocatedResult],
) -> Result<(), QueryFailure> {
    let CatalogLookup { image, options, observer, .. } = lookup;
    let mut client = worker::connect_with_retry(target, options.connect_timeout, observer)?;
    session::set_up(&mut client, options.lock_timeout)?;
    client.query(TEXT_FORMATS)?;
    // The `ctid`s of the rows of each table, by its oid.
    let mut rows_by_table: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for &at in requested {
        let (Some(keys), Ok(found)) = (&image.relations[at].keys, &mut located[at]) else {
            continue;
        };
        if observer.should_stop() {
            return Ok(());
        }
        let rows = find_table_rows(&mut client, found.oid, keys, observer);
        let Some(rows) = tolerate(rows)?.flatten() else { continue };
        found.mapping = mapping(&image.relations[at], found, &rows);
        if found.mapping.is_some() {
            rows_by_table.insert(found.oid, rows.into_iter().map(|row| row.ctid).collect());
        }
    }
    let indexes: BTreeMap<u32, usize> = requested
        .iter()
        .filter_map(|&at| Some((located[at].as_ref().ok()?, at)))
        .filter(|(found, _)| found.kind == RelationKind::Btree)
        .map(|(found, at)| (found.oid, at))
        .collect();
    for index in query_indexes(&mut client, indexes.keys().copied())? {
        let (Some(rows), Some(&at)) = (rows_by_table.get(&index.table), indexes.get(&index.oid))
        else {
            continue;
        };
        if observer.should_stop() {
            return Ok(());
        }
        let pages = image.relations[at].page_count();
        let rows = thin_out(rows, usize::try_from(pages * 2).unwrap_or(usize::MAX));
        if !options.dry_run && tolerate(descend(&mut client, &index, &rows))?.is_none() {
            continue;
        }
        if let Ok(found) = &mut located[at] {
            found.mapping = Some(BlockMapping::Descended(rows.len()));
        }
    }
    Ok(())
}

/// Returns `None` for an error that concerns one relation only.
fn tolerate<T>(result: Result<T, QueryFailure>) -> Result<Option<T>, QueryFailure> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(QueryFailure::Query(error)) if !error.is_fatal() => {
            tracing::debug!(%error, "cannot look up the rows of a relation by their keys");
            Ok(None)
        }
        Err(failure) => Err(failure),
    }
}

/// A row of the image that was found.
struct FoundRow {
    pages: RowPages,
    ctid: String,
}

/// Looks up the rows of a table, until the load should stop. Returns `None` if the table has no
/// longer the key's columns, or no index that begins with one of them.
fn find_table_rows(
    client: &mut Client,
    oid: u32,
    keys: &RowKeys,
    observer: &dyn LoadObserver,
) -> Result<Option<Vec<FoundRow>>, QueryFailure> {
    let columns = array(keys.columns.iter());
    let result = client.query_with(KEY_COLUMNS, &[Some(&oid.to_string()), Some(&columns)])?;
    if result.rows.len() != keys.columns.len() {
        return Ok(None);
    }
    let text = |row: usize, column| result.rows[row].text(column).map(Cow::into_owned);
    let table = text(0, 0).unwrap_or_default();
    let conditions: Vec<_> = (0..keys.columns.len())
        .map(|at| {
            let (column, of_type) = (text(at, 1), text(at, 2));
            format!("t.{} = w.k{at}::{}", column.unwrap_or_default(), of_type.unwrap_or_default())
        })
        .collect();
    let names: Vec<_> = (0..keys.columns.len()).map(|at| format!("k{at}")).collect();
    let parameters: Vec<_> =
        (0..keys.columns.len()).map(|at| format!("${}::text[]", at + 2)).collect();
    let sql = format!(
        "SELECT w.at, (SELECT t.ctid FROM ONLY {table} t WHERE {} LIMIT 1)
         FROM unnest($1::int4[], {}) AS w(at, {})",
        conditions.join(" AND "),
        parameters.join(", "),
        names.join(", ")
    );
    let mut found = Vec::new();
    for rows in keys.rows.chunks(ROWS_PER_STATEMENT) {
        if observer.should_stop() {
            break;
        }
        let mut values = vec![array((0..rows.len()).map(|at| at.to_string()))];
        for column in 0..keys.columns.len() {
            let value = |row: &crate::image::KeyedRow| row.values.get(column).cloned();
            values.push(array(rows.iter().filter_map(value)));
        }
        let values: Vec<_> = values.iter().map(|value| Some(&**value)).collect();
        for row in &client.query_with(&sql, &values)?.rows {
            let at: usize = dump::parse_number("position in the list", text_of(row, 0))?;
            let (Some(ctid), Some(key)) = (text_of(row, 1), rows.get(at)) else { continue };
            let Some(now) = block_of(&ctid) else { continue };
            found.push(FoundRow { pages: RowPages { before: key.block, now }, ctid });
        }
    }
    // `unnest` returns rows in order, but SQL does not guarantee that for the whole query.
    found.sort_by_key(|row| row.pages.before);
    Ok(Some(found))
}

fn text_of(row: &howdah_connect::ResultRow, column: usize) -> Option<String> {
    row.text(column).map(Cow::into_owned)
}

/// Returns the block in a row pointer such as `(12,3)`.
fn block_of(ctid: &str) -> Option<u32> {
    ctid.strip_prefix('(')?.split_once(',')?.0.parse().ok()
}

fn mapping(
    relation: &Relation,
    found: &LocatedRelation,
    rows: &[FoundRow],
) -> Option<BlockMapping> {
    let now = found.lengths[Fork::Main.number() as usize]?;
    let fork = relation.forks.iter().find(|fork| fork.fork == Fork::Main)?;
    let before = fork.length.unwrap_or(now);
    let rows = rows.iter().map(|row| row.pages).collect();
    BlockMapping::from_rows(rows, RowPages { before, now })
}

/// A btree index without expressions.
struct DescentIndex {
    oid: u32,
    /// `pg_class.oid` of the table.
    table: u32,
    /// Statement that descends the index for the rows at `$1`.
    sql: String,
}

fn query_indexes(
    client: &mut Client,
    oids: impl Iterator<Item = u32>,
) -> Result<Vec<DescentIndex>, QueryFailure> {
    let oids = array(oids.map(|oid| oid.to_string()));
    let result = client.query_with(INDEX_DESCENTS, &[Some(&oids)])?;
    let index = |row: &howdah_connect::ResultRow| {
        Ok(DescentIndex {
            oid: dump::parse_number("oid of an index", text_of(row, 0))?,
            table: dump::parse_number("oid of a table", text_of(row, 1))?,
            sql: text_of(row, 2).unwrap_or_default(),
        })
    };
    result.rows.iter().map(index).collect()
}

fn descend(
    client: &mut Client,
    index: &DescentIndex,
    rows: &[&String],
) -> Result<(), QueryFailure> {
    for rows in rows.chunks(ROWS_PER_STATEMENT) {
        client.query_with(&index.sql, &[Some(&array(rows.iter()))])?;
    }
    Ok(())
}

/// Selects at most `most` items at equal distances.
fn thin_out<T>(items: &[T], most: usize) -> Vec<&T> {
    items.iter().step_by(items.len().div_ceil(most.max(1)).max(1)).collect()
}

/// The format in which an image has dates.
const TEXT_FORMATS: &str = "SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'";

/// The quoted names and the types of a table's columns `$2`, if an index begins with one of them.
const KEY_COLUMNS: &str = "
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(a.attname),
       format_type(a.atttypid, a.atttypmod)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN unnest($2::text[]) WITH ORDINALITY AS w(name, place)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = w.name AND a.attnum > 0
WHERE c.oid = $1::oid AND EXISTS (
    SELECT FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
    JOIN pg_attribute f ON f.attrelid = c.oid AND f.attnum = i.indkey[0]
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND f.attname = ANY ($2::text[]))
ORDER BY w.place";

/// For each index: a statement that fetches the columns of rows and descends the index for them.
/// The planner may use another index with the same first columns, which costs nothing but its use.
const INDEX_DESCENTS: &str = "
SELECT i.indexrelid, i.indrelid,
       format('SELECT count((SELECT 1 FROM ONLY %1$I.%2$I x WHERE %3$s%4$s LIMIT 1))
               FROM (SELECT %5$s FROM ONLY %1$I.%2$I WHERE ctid = ANY ($1::tid[])) r',
              n.nspname, t.relname, k.conditions,
              COALESCE(' AND (' || pg_get_expr(i.indpred, i.indrelid) || ')', ''), k.columns)
FROM pg_index i
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL (
    SELECT string_agg(format('x.%1$I = r.%1$I', a.attname), ' AND ') AS conditions,
           string_agg(quote_ident(a.attname), ', ') AS columns
    FROM pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
) k
WHERE i.indexrelid = ANY ($1::oid[]) AND i.indexprs IS NULL AND i.indisvalid";
