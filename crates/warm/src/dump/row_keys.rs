//! Reads keys of rows on cached pages, so that the pages can be found again after a table was
//! rewritten or copied.
//!
//! Rows are sampled at both ends of each run of cached pages, and at regular distances between
//! them. If the server's memory is readable, the rows are read from it, without a session, so that
//! usage counts stay as they are. Otherwise, and for types that only the server can write as text,
//! queries read them after the cache was scanned: the image has the counts of before, but each page
//! that is read gets one more use (up to 5). So such a row is read once, and taken from the
//! previous image afterwards.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use hashbrown::HashMap;
use howdah_connect::Client;
use howdah_inspect::{BufferDesc, BufferMap};

use super::{
    BufferContents, QueryFailure, array,
    heap_page::{self, AttributeLayout},
    key_value::KeyValueType,
    parse_number,
};
use crate::image::{CacheImage, CachedPage, Fork, KeyedRow, RelationFile, RowKeys};

/// Maximum number of cool pages between two pages of one run.
const GAP_PAGES_MAX: u32 = 2;
/// Minimum distance between sampled pages of a run, if a query reads them; every page may be read
/// from memory.
const QUERY_DISTANCE_MIN: usize = 4;
/// Maximum distance of a page to a row of the previous image that is used instead of its own.
const KNOWN_DISTANCE: u32 = 2;
/// Minimum number of cached pages of a table. Smaller ones are soon loaded by their queries.
const PAGES_MIN: usize = 8;

/// The keys of tables, by their files.
pub(super) type TableKeys = BTreeMap<RelationFile, RowKeys>;

/// Reads the keys of the tables of an image.
pub(super) struct KeyReader<'a> {
    /// The server's buffers and the length of its pages, if its memory is readable.
    memory: Option<(BufferMap, u32)>,
    /// An earlier image.
    known: Option<&'a CacheImage>,
    /// Number of rows that may still be read for the image.
    rows_left: usize,
}

/// A table with a unique key.
struct KeyedTable {
    file: RelationFile,
    /// Qualified and quoted name.
    name: String,
    /// The key's columns, by their places in it.
    key: BTreeMap<usize, KeyColumnLayout>,
    /// Storage of the columns up to the last one of the key.
    layout: Vec<AttributeLayout>,
    /// Sampled pages, ascending.
    blocks: Vec<u32>,
    rows: BTreeMap<u32, Vec<String>>,
}

/// A column of a unique key, and how its values are read from memory.
struct KeyColumnLayout {
    name: String,
    /// Number of the column in the table, from 1.
    attribute: usize,
    /// `None` if only the server can write its values as text.
    of_type: Option<KeyValueType>,
}

impl<'a> KeyReader<'a> {
    pub(super) fn new(memory: Option<(BufferMap, u32)>, known: Option<&'a CacheImage>) -> Self {
        Self { memory, known, rows_left: RowKeys::IMAGE_ROWS_MAX }
    }

    /// Reads the keys of the tables of one database, to which `client` is connected; the tables
    /// with most cached pages first, as long as the image may have more rows. Tables whose columns
    /// may not be read have no keys.
    pub(super) fn read(
        &mut self,
        client: &mut Client,
        default_tablespace: u32,
        oid: u32,
        cached: &BufferContents,
    ) -> Result<TableKeys, QueryFailure> {
        let in_database = |file: RelationFile| file.database == oid;
        let mut tables: Vec<(RelationFile, &Vec<CachedPage>)> = cached
            .forks
            .iter()
            .filter(|((file, fork), pages)| {
                in_database(*file) && *fork == Fork::Main && pages.len() >= PAGES_MIN
            })
            .map(|((file, _), pages)| (*file, pages))
            .collect();
        if oid == 0 || tables.is_empty() {
            return Ok(TableKeys::new());
        }
        tables.sort_by_key(|(_, pages)| std::cmp::Reverse(pages.len()));
        let files: Vec<_> = tables.iter().map(|(file, _)| *file).collect();
        let mut keyed = query_tables(client, default_tablespace, &files)?;
        let mut chosen = Vec::new();
        for (file, pages) in tables {
            let Some(mut table) = keyed.remove(&file) else { continue };
            let most = self.rows_left.min(RowKeys::ROWS_MAX);
            let is_free = self.is_read_from_memory(&table);
            let distance_min = if is_free { 1 } else { QUERY_DISTANCE_MIN };
            table.blocks = sample_blocks(pages, most, distance_min);
            self.rows_left -= table.blocks.len();
            chosen.push(table);
        }
        self.read_memory(&mut chosen);
        for table in &mut chosen {
            if !self.is_read_from_memory(table) {
                self.query_rows(client, table, cached)?;
            }
        }
        let keys = chosen.into_iter().filter(|table| !table.rows.is_empty());
        Ok(keys.map(|table| (table.file, table.into_keys())).collect())
    }

    fn is_read_from_memory(&self, table: &KeyedTable) -> bool {
        self.memory.is_some() && table.key.values().all(|column| column.of_type.is_some())
    }

    /// Reads rows from the server's memory, as far as their pages are still in the cache. If that
    /// fails, the server is stopping, and the image has fewer keys.
    fn read_memory(&self, tables: &mut [KeyedTable]) {
        let Some((buffers, page_bytes)) = &self.memory else { return };
        let mut wanted: HashMap<(RelationFile, u32), usize> = HashMap::new();
        for (at, table) in tables.iter().enumerate() {
            if self.is_read_from_memory(table) {
                wanted.extend(table.blocks.iter().map(|&block| ((table.file, block), at)));
            }
        }
        let Ok(found) = buffers.read() else { return };
        let mut page = vec![0; *page_bytes as usize];
        for buffer in found.filter(|buffer| buffer.fork == Fork::Main) {
            let BufferDesc { database, tablespace, filenode, block, .. } = buffer;
            let file = RelationFile { database, tablespace, filenode };
            let Some(&at) = wanted.get(&(file, block)) else { continue };
            match buffers.copy_page(&buffer, &mut page) {
                Ok(true) => tables[at].add_from_page(block, &page),
                Ok(false) => {}
                Err(_) => return,
            }
        }
    }

    /// Queries rows that the previous image does not have.
    fn query_rows(
        &self,
        client: &mut Client,
        table: &mut KeyedTable,
        cached: &BufferContents,
    ) -> Result<(), QueryFailure> {
        if let Some(known) = self.known_keys(table) {
            let pages = cached.forks.get(&(table.file, Fork::Main));
            let cached: BTreeSet<u32> =
                pages.into_iter().flatten().map(|page| page.block).collect();
            let rows: BTreeMap<u32, &KeyedRow> = known
                .rows
                .iter()
                .filter(|row| cached.contains(&row.block))
                .map(|row| (row.block, row))
                .collect();
            // At most one for each sampled page, so that they do not become more and more.
            for block in &table.blocks {
                let nearby = || rows.range(near(*block)).next().map(|(_, row)| row);
                if let Some(row) = rows.get(block).or_else(nearby) {
                    table.rows.insert(row.block, row.values.clone());
                }
            }
        }
        let is_known = |block: u32| table.rows.range(near(block)).next().is_some();
        let unknown = table.blocks.iter().filter(|&&block| !is_known(block));
        let blocks = array(unknown.map(u32::to_string));
        let columns: Vec<_> = table.names().iter().map(|name| quoted(name)).collect();
        let sql = first_rows(&table.name, &columns.join(", "));
        client.query(TEXT_FORMATS)?;
        let result = match client.query_with(&sql, &[Some(&blocks)]) {
            // A missing privilege, a lock or a dropped column concern this table only.
            Err(error) if !error.is_fatal() => return Ok(()),
            result => result?,
        };
        for row in &result.rows {
            let block = parse_number("block", row.text(0).map(Cow::into_owned))?;
            let values = (1..=table.key.len()).map(|column| row.text(column));
            if let Some(values) = values.map(|it| it.map(Cow::into_owned)).collect() {
                table.add(block, values);
            }
        }
        Ok(())
    }

    fn known_keys(&self, table: &KeyedTable) -> Option<&RowKeys> {
        let image = self.known?;
        let at = image.relations.binary_search_by_key(&table.file, |it| it.file).ok()?;
        image.relations[at].keys.as_ref().filter(|keys| keys.columns == table.names())
    }
}

impl KeyedTable {
    fn names(&self) -> Vec<String> {
        self.key.values().map(|column| column.name.clone()).collect()
    }

    fn add_from_page(&mut self, block: u32, page: &[u8]) {
        let attributes: Vec<_> = self.key.values().map(|column| column.attribute).collect();
        let values = heap_page::first_live_row(page, &self.layout, &attributes);
        let text = |(column, bytes): (&KeyColumnLayout, &[u8])| column.of_type?.text(bytes);
        let values = values.and_then(|found| self.key.values().zip(found).map(text).collect());
        if let Some(values) = values {
            self.add(block, values);
        }
    }

    fn add(&mut self, block: u32, values: Vec<String>) {
        let bytes: usize = values.iter().map(String::len).sum();
        // The server could not convert all of the text to UTF-8.
        let is_damaged = values.iter().any(|value| value.contains(char::REPLACEMENT_CHARACTER));
        if bytes <= RowKeys::VALUE_BYTES_MAX && !is_damaged {
            self.rows.insert(block, values);
        }
    }

    fn into_keys(self) -> RowKeys {
        let columns = self.names();
        let rows = self.rows.into_iter().map(|(block, values)| KeyedRow { block, values });
        RowKeys { columns, rows: rows.take(RowKeys::ROWS_MAX).collect() }
    }
}

/// Chooses at most `most` pages: both ends of each run, and pages between them at equal distances
/// of at least `distance_min`. If there are too many runs, those with the smallest gaps between
/// them are taken as one.
fn sample_blocks(pages: &[CachedPage], most: usize, distance_min: usize) -> Vec<u32> {
    let mut blocks: Vec<u32> = pages.iter().map(|page| page.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let mut gap = GAP_PAGES_MAX;
    let runs = loop {
        let runs = split_into_runs(&blocks, gap);
        // Half of the pages are between the ends.
        if runs.len() * 4 <= most.max(4) {
            break runs;
        }
        gap = gap.saturating_mul(2);
    };
    let between = most.saturating_sub(runs.len() * 2).max(1);
    let distance = blocks.len().div_ceil(between).max(distance_min);
    let mut chosen = BTreeSet::new();
    for run in runs {
        chosen.extend(run.iter().step_by(distance).chain(run.last()));
    }
    chosen.into_iter().take(most).collect()
}

/// Returns the blocks whose rows may be used instead of those of `block`.
fn near(block: u32) -> RangeInclusive<u32> {
    block.saturating_sub(KNOWN_DISTANCE)..=block.saturating_add(KNOWN_DISTANCE)
}

fn split_into_runs(blocks: &[u32], gap: u32) -> Vec<&[u32]> {
    blocks.chunk_by(|one, next| next - one <= gap.saturating_add(1)).collect()
}

/// Quotes an identifier, as `quote_ident()` does, whether it needs quotes or not.
fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn query_tables(
    client: &mut Client,
    default_tablespace: u32,
    files: &[RelationFile],
) -> Result<BTreeMap<RelationFile, KeyedTable>, QueryFailure> {
    let numbers = array(files.iter().map(|file| file.filenode.to_string()));
    let is_utf8 = client.one_value("SHOW server_encoding")?.as_deref() == Some("UTF8");
    let result = client
        .query_with(KEYED_TABLES, &[Some(&numbers), Some(&default_tablespace.to_string())])?;
    let mut tables: BTreeMap<RelationFile, KeyedTable> = BTreeMap::new();
    for row in &result.rows {
        let text = |column: usize| row.text(column).map(Cow::into_owned);
        let file = RelationFile {
            database: files.first().map_or(0, |file| file.database),
            tablespace: parse_number("reltablespace", text(0))?,
            filenode: parse_number("relfilenode", text(1))?,
        };
        let table = tables.entry(file).or_insert_with(|| KeyedTable {
            file,
            name: text(2).unwrap_or_default(),
            key: BTreeMap::new(),
            layout: Vec::new(),
            blocks: Vec::new(),
            rows: BTreeMap::new(),
        });
        let alignment = match text(5).as_deref() {
            Some("c") => 1,
            Some("s") => 2,
            Some("i") => 4,
            _ => 8,
        };
        table.layout.push(AttributeLayout { length: parse_number("attlen", text(4))?, alignment });
        // Columns come in the order of the table, and have their place in the key.
        if let Some(place) = text(6).and_then(|place| place.parse::<usize>().ok()) {
            table.key.insert(
                place,
                KeyColumnLayout {
                    name: text(3).unwrap_or_default(),
                    attribute: table.layout.len(),
                    of_type: KeyValueType::from_oid(parse_number("atttypid", text(7))?, is_utf8),
                },
            );
        }
    }
    tables.retain(|_, table| (1..=RowKeys::COLUMNS_MAX).contains(&table.key.len()));
    Ok(tables)
}

/// Columns of tables that have a unique key without NULLs, up to the last column of the key: the
/// primary key, or the unique index with the fewest columns. System catalogs are left out; their
/// keys are oids, which differ between clusters.
const KEYED_TABLES: &str = "
SELECT CASE WHEN c.reltablespace = 0 THEN $2::oid ELSE c.reltablespace END, c.relfilenode,
       quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       a.attname, a.attlen, a.attalign,
       (SELECT min(o.place) - 1 FROM unnest(k.columns) WITH ORDINALITY AS o(number, place) WHERE o.number = a.attnum),
       a.atttypid
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_am m ON m.oid = c.relam AND m.amname = 'heap'
CROSS JOIN LATERAL (
    SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS columns
    FROM pg_index i
    WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
    AND i.indpred IS NULL AND i.indexprs IS NULL
    AND NOT EXISTS (SELECT FROM pg_attribute a
        WHERE a.attrelid = c.oid AND NOT a.attnotnull AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1
) k
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    AND a.attnum <= (SELECT max(number) FROM unnest(k.columns) AS number)
WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't' AND c.oid >= 16384
AND c.relfilenode = ANY ($1::oid[])
ORDER BY c.oid, a.attnum";

/// Returns a query for the first visible row of each page in `$1`, by a scan over a range of
/// `ctid`.
///
/// Values are converted by the output functions of their types, not by casts, which the owner of
/// a type can define.
fn first_rows(table: &str, columns: &str) -> String {
    format!(
        "SELECT b.block, r.* FROM unnest($1::int8[]) AS b(block)
         CROSS JOIN LATERAL (
             SELECT {columns} FROM ONLY {table}
             WHERE ctid >= format('(%s,0)', b.block)::tid
             AND ctid < format('(%s,0)', b.block + 1)::tid LIMIT 1) r"
    )
}

/// Settings that affect how values are written as text, and that avoid other plans than a scan over
/// a range of `ctid`. Neither functions of other schemas nor policies of tables are executed.
const TEXT_FORMATS: &str = "
    SET search_path = pg_catalog; SET row_security = off;
    SET DateStyle = 'ISO, YMD'; SET IntervalStyle = 'postgres'; SET TimeZone = 'UTC';
    SET extra_float_digits = 3; SET bytea_output = 'hex'; SET enable_seqscan = off;
    SET enable_tidscan = on; SET jit = off; SET max_parallel_workers_per_gather = 0;
    SET lock_timeout = '1s'";

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn pages(blocks: impl IntoIterator<Item = u32>) -> Vec<CachedPage> {
        let page = |block| CachedPage { block, usage: 1, is_dirty: false };
        blocks.into_iter().map(page).collect()
    }

    #[test]
    fn both_ends_of_each_run_are_sampled() {
        let blocks = sample_blocks(&pages((0..11).chain(100..103).chain([500])), 100, 4);
        assert_eq!(blocks, [0, 4, 8, 10, 100, 102, 500]);
    }

    #[test]
    fn long_run_is_sampled_at_equal_distances() {
        let blocks = sample_blocks(&pages(0..100_000), 1000, 1);
        assert!((900..=1000).contains(&blocks.len()), "{}", blocks.len());
        assert_eq!((blocks.first(), blocks.last()), (Some(&0), Some(&99_999)));
    }

    proptest! {
        #[test]
        fn samples_are_cached_pages_up_to_the_limit(
            blocks in vec(0_u32..5000, 0..400),
            most in 0_usize..200,
            distance in 1_usize..5,
        ) {
            let sampled = sample_blocks(&pages(blocks.clone()), most, distance);
            prop_assert!(sampled.len() <= most);
            prop_assert!(sampled.iter().all(|block| blocks.contains(block)));
            prop_assert!(sampled.is_sorted());
        }
    }
}
