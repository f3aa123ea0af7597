//! Finds the pages of rewritten relations by the keys of rows in the image.
//!
//! For each row of which the image has the key, the server is asked where it is now (`ctid`), by an
//! index on the key. This reads the row's page and the path to it in the index, which are mostly
//! pages that are to be loaded anyway. Other btree indexes of the table are descended for the same
//! rows, and the pages this brings into the cache show where their hot parts are.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use howdah_connect::{Client, ConnectTarget};

use super::{
    LoadObserver,
    block_mapping::{BlockMapping, EMPTY_TAIL_MAX, RowPages},
    catalog::{self, CatalogLookup, LocatedRelation, RelationKind},
    report::RelationProblem,
    session, worker,
};
use crate::{
    dump::{self, QueryFailure, array},
    image::{Fork, KeyedRow, Relation, RowKeys},
};

/// Number of rows that one statement looks up.
const ROWS_PER_STATEMENT: usize = 128;

/// Minimum share of the rows that are on the same page, for the pages to be the same, in percent.
const UNMOVED_PERCENT_MIN: usize = 95;

/// A relation that was located, or the reason why not.
type LocatedResult = Result<LocatedRelation, RelationProblem>;

/// Finds the pages of those relations that were rewritten or copied, by the keys of their rows.
/// Returns whether pages were read.
///
/// Relations for which this fails (the key's columns or its index are gone, a privilege is missing)
/// have no mapping, and are mapped by their length.
///
/// At most `rows_max` rows are looked up.
pub(super) fn find_rows(
    lookup: CatalogLookup<'_>,
    located: &mut [LocatedResult],
    rows_max: usize,
) -> bool {
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
    let has_read = !by_database.is_empty();
    let keys = by_database.values().flatten().filter_map(|&at| {
        let keys = lookup.image.relations[at].keys.as_ref()?;
        Some(keys.rows.len())
    });
    let distance = keys.sum::<usize>().div_ceil(rows_max.max(1)).max(1);
    for (database, requested) in by_database {
        let target = lookup.target.with_database(&database);
        if let Err(failure) = find_in_database(lookup, &target, &requested, distance, located) {
            tracing::debug!(database, error = %failure, "cannot look up rows by their keys");
        }
    }
    has_read
}

fn find_in_database(
    lookup: CatalogLookup<'_>,
    target: &ConnectTarget,
    requested: &[usize],
    distance: usize,
    located: &mut [LocatedResult],
) -> Result<(), QueryFailure> {
    let CatalogLookup { image, options, observer, .. } = lookup;
    let mut client = worker::connect_with_retry(target, options.connect_timeout, observer)?;
    session::set_up(&mut client, options.lock_timeout)?;
    client.query(SETTINGS)?;
    // The `ctid`s of the rows of each table, by its oid.
    let mut rows_by_table: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    let mut unmoved = BTreeSet::new();
    for &at in requested {
        let (Some(keys), Ok(found)) = (&image.relations[at].keys, &mut located[at]) else {
            continue;
        };
        if observer.should_stop() {
            return Ok(());
        }
        let keys = SampledKeys { keys, distance };
        let rows = find_table_rows(&mut client, found.oid, keys, observer);
        let Some(rows) = tolerate(rows)?.flatten() else { continue };
        if are_unmoved(&image.relations[at], found, &rows) {
            unmoved.insert(found.oid);
        } else {
            found.mapping = mapping(&image.relations[at], found, &rows);
        }
        if found.mapping.is_some() || unmoved.contains(&found.oid) {
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
        let has_same_blocks = located[at].as_ref().is_ok_and(|found| {
            let main = image.relations[at].forks.iter().find(|fork| fork.fork == Fork::Main);
            let now = found.lengths[Fork::Main.number() as usize];
            unmoved.contains(&index.table) && main.and_then(|fork| fork.length) == now
        });
        // Without descending it, it is unknown which of its pages are meant.
        if options.dry_run
            || has_same_blocks
            || tolerate(descend(&mut client, &index, &rows, observer))?.is_none()
        {
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

/// Keys of a table, of which one in so many is looked up.
#[derive(Clone, Copy)]
struct SampledKeys<'a> {
    keys: &'a RowKeys,
    distance: usize,
}

/// Looks up the rows of a table, until the load should stop. Returns `None` if the table has no
/// longer the key's columns, or no unique index on them.
fn find_table_rows(
    client: &mut Client,
    oid: u32,
    SampledKeys { keys, distance }: SampledKeys<'_>,
    observer: &dyn LoadObserver,
) -> Result<Option<Vec<FoundRow>>, QueryFailure> {
    let columns = array(keys.columns.iter());
    let result = client.query_with(KEY_COLUMNS, &[Some(&oid.to_string()), Some(&columns)])?;
    if result.rows.len() != keys.columns.len() {
        return Ok(None);
    }
    let text =
        |row: usize, column| result.rows[row].text(column).map(Cow::into_owned).unwrap_or_default();
    let table = text(0, 0);
    let (mut conditions, mut names, mut parameters) = (Vec::new(), Vec::new(), Vec::new());
    for at in 0..keys.columns.len() {
        let (column, of_type, equals) = (text(at, 1), text(at, 2), text(at, 3));
        conditions.push(format!("t.{column} {equals} w.k{at}"));
        names.push(format!("k{at}"));
        parameters.push(format!("${}::{of_type}[]", at + 2));
    }
    let sql = format!(
        "SELECT w.at, (SELECT t.ctid FROM ONLY {table} t WHERE {} LIMIT 1)
         FROM unnest($1::int4[], {}) AS w(at, {})",
        conditions.join(" AND "),
        parameters.join(", "),
        names.join(", ")
    );
    let sampled: Vec<&KeyedRow> = keys.rows.iter().step_by(distance).collect();
    let mut found = Vec::new();
    for rows in sampled.chunks(ROWS_PER_STATEMENT) {
        if observer.should_stop() {
            break;
        }
        let mut values = vec![array((0..rows.len()).map(|at| at.to_string()))];
        for column in 0..keys.columns.len() {
            values.push(array(rows.iter().filter_map(|row| row.values.get(column))));
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

/// Whether the rows are on the pages of the image, as in a copy of the files with another system
/// identifier (`pg_upgrade`, `pg_createsubscriber`). Then blocks have the same numbers.
fn are_unmoved(relation: &Relation, found: &LocatedRelation, rows: &[FoundRow]) -> bool {
    let now = found.lengths[Fork::Main.number() as usize];
    let fork = relation.forks.iter().find(|fork| fork.fork == Fork::Main);
    let is_as_long = fork.and_then(|fork| fork.length).zip(now).is_some_and(|(before, now)| {
        (before..=before.saturating_add(EMPTY_TAIL_MAX)).contains(&now)
    });
    let same = rows.iter().filter(|row| row.pages.now == row.pages.before).count();
    is_as_long && same * 100 >= rows.len() * UNMOVED_PERCENT_MIN
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
    observer: &dyn LoadObserver,
) -> Result<(), QueryFailure> {
    for rows in rows.chunks(ROWS_PER_STATEMENT) {
        if observer.should_stop() {
            break;
        }
        client.query_with(&index.sql, &[Some(&array(rows.iter()))])?;
    }
    Ok(())
}

/// Selects at most `most` items at equal distances.
fn thin_out<T>(items: &[T], most: usize) -> Vec<&T> {
    items.iter().step_by(items.len().div_ceil(most.max(1)).max(1)).collect()
}

/// The format in which an image has dates. Only functions of PostgreSQL are found by name, no
/// policies of tables are executed, and a statement that does not use an index does not last long.
const SETTINGS: &str = "
    SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET search_path = pg_catalog;
    SET row_security = off; SET statement_timeout = '20s'";

/// The quoted names of a table's columns `$2`, their types (those of domains), and the operators by
/// which a unique index on exactly these columns compares them.
///
/// Types and operators are qualified, as the search path has only `pg_catalog`. Values are read by
/// the input functions of the types, not by casts, which the owner of a type can define.
const KEY_COLUMNS: &str = "
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), quote_ident(a.attname),
       format_type(CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END, NULL),
       format('OPERATOR(%I.%s)', s.nspname, o.oprname)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (
    SELECT i.* FROM pg_index i
    JOIN pg_class x ON x.oid = i.indexrelid
    JOIN pg_am m ON m.oid = x.relam AND m.amname = 'btree'
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    AND i.indnkeyatts = cardinality($2::text[])
    AND i.indnkeyatts = (SELECT count(*) FROM pg_attribute f WHERE f.attrelid = c.oid AND f.attname = ANY ($2::text[])
        AND f.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    LIMIT 1
) i
CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS k(at)
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[k.at] AND a.attcollation = i.indcollation[k.at]
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_opclass l ON l.oid = i.indclass[k.at]
JOIN pg_amop p ON p.amopfamily = l.opcfamily AND p.amopstrategy = 3
    AND p.amoplefttype = l.opcintype AND p.amoprighttype = l.opcintype
JOIN pg_operator o ON o.oid = p.amopopr
JOIN pg_namespace s ON s.oid = o.oprnamespace
WHERE c.oid = $1::oid
ORDER BY array_position($2::text[], a.attname::text)";

/// For each index: a statement that fetches the columns of rows and descends the index for them, by
/// its own operators. The planner may use another index with the same first columns, which costs
/// nothing but its use. Partial indexes are left out, because their conditions may call functions
/// of users.
const INDEX_DESCENTS: &str = "
SELECT i.indexrelid, i.indrelid,
       format('SELECT count((SELECT 1 FROM ONLY %1$I.%2$I x WHERE %3$s LIMIT 1))
               FROM (SELECT %4$s FROM ONLY %1$I.%2$I WHERE ctid = ANY ($1::tid[])) r',
              n.nspname, t.relname, k.conditions, k.columns)
FROM pg_index i
JOIN pg_class t ON t.oid = i.indrelid
JOIN pg_namespace n ON n.oid = t.relnamespace
CROSS JOIN LATERAL (
    SELECT string_agg(format('x.%1$I OPERATOR(%2$I.%3$s) r.%1$I', a.attname, s.nspname, o.oprname), ' AND ') AS conditions,
           string_agg(DISTINCT quote_ident(a.attname), ', ') AS columns, count(*) AS number
    FROM generate_series(0, i.indnkeyatts - 1) AS k(at)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k.at] AND a.attcollation = i.indcollation[k.at]
    JOIN pg_opclass l ON l.oid = i.indclass[k.at]
    JOIN pg_amop p ON p.amopfamily = l.opcfamily AND p.amopstrategy = 3
        AND p.amoplefttype = l.opcintype AND p.amoprighttype = l.opcintype
    JOIN pg_operator o ON o.oid = p.amopopr
    JOIN pg_namespace s ON s.oid = o.oprnamespace
) k
WHERE i.indexrelid = ANY ($1::oid[]) AND i.indexprs IS NULL AND i.indpred IS NULL AND i.indisvalid
AND k.number = i.indnkeyatts";
