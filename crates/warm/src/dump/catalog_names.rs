//! Queries the names of relations by their file numbers.

use std::{borrow::Cow, collections::BTreeMap};

use howdah_connect::Client;

use super::{CatalogNames, QueryFailure, array, parse_number};
use crate::image::{Fork, QualifiedName, RelationFile, RelationName};

/// Catalog data of a relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CatalogRelation {
    pub(super) name: RelationName,
    pub(super) is_logged: bool,
    /// Pages of each fork, by fork number. `None` if the relation was dropped, or if lengths were
    /// not queried because of a locked relation.
    pub(super) lengths: [Option<u32>; Fork::ALL.len()],
}

/// A TOAST table is found through its owner's `reltoastrelid`, its index through `pg_index`.
/// Temporary relations are never in shared buffers, and may share their file numbers with others.
const SQL: &str = "
SELECT CASE WHEN c.reltablespace = 0 THEN $2::oid ELSE c.reltablespace END,
       pg_relation_filenode(c.oid),
       CASE WHEN o.oid IS NULL THEN 'own' WHEN i.indexrelid IS NULL THEN 'toast' ELSE 'toast index' END,
       CASE WHEN o.oid IS NULL THEN n.nspname ELSE m.nspname END,
       CASE WHEN o.oid IS NULL THEN c.relname ELSE o.relname END,
       c.relpersistence = 'p', {lengths}
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indexrelid = c.oid AND n.nspname = 'pg_toast'
LEFT JOIN pg_class o ON o.reltoastrelid = CASE c.relkind WHEN 't' THEN c.oid ELSE i.indrelid END
LEFT JOIN pg_namespace m ON m.oid = o.relnamespace
CROSS JOIN (SELECT current_setting('block_size')::int8 AS bytes) b
WHERE c.relpersistence <> 't' AND c.relisshared = $3
  AND (c.relfilenode = ANY ($1::oid[])
       OR c.relfilenode = 0 AND pg_relation_filenode(c.oid) = ANY ($1::oid[]))";

/// Queries the lengths of forks. `pg_relation_size()` waits for sessions that have locked the
/// relation, for example to rewrite it.
const LENGTHS: &str = "
    pg_relation_size(c.oid, 'main') / b.bytes, pg_relation_size(c.oid, 'fsm') / b.bytes,
    pg_relation_size(c.oid, 'vm') / b.bytes, pg_relation_size(c.oid, 'init') / b.bytes";
const NO_LENGTHS: &str = "NULL, NULL, NULL, NULL";
/// Limits the wait for locked relations. After a timeout, names are queried without lengths.
const SET_LOCK_TIMEOUT: &str = "SET lock_timeout = '2s'";
const LOCK_NOT_AVAILABLE: &str = "55P03";

/// Queries the names and lengths of the relations `files` in the database that `client` is
/// connected to. `oid` is the oid of that database, or 0 for the shared catalogs.
pub(super) fn query_names(
    client: &mut Client,
    default_tablespace: u32,
    oid: u32,
    files: &[RelationFile],
) -> Result<CatalogNames, QueryFailure> {
    let numbers = array(files.iter().map(|file| file.filenode.to_string()));
    let tablespace = default_tablespace.to_string();
    let is_shared = if oid == 0 { "true" } else { "false" };
    let values = [Some(&*numbers), Some(&*tablespace), Some(is_shared)];
    client.query(SET_LOCK_TIMEOUT)?;
    let result = match client.query_with(&SQL.replace("{lengths}", LENGTHS), &values) {
        Err(error) if error.sqlstate() == Some(LOCK_NOT_AVAILABLE) => {
            client.query_with(&SQL.replace("{lengths}", NO_LENGTHS), &values)?
        }
        result => result?,
    };
    let mut names = BTreeMap::new();
    for row in &result.rows {
        let text = |column: usize| row.text(column).map(Cow::into_owned);
        let file = RelationFile {
            database: oid,
            tablespace: parse_number("reltablespace", text(0))?,
            filenode: parse_number("relfilenode", text(1))?,
        };
        let qualified = QualifiedName {
            schema: text(3).unwrap_or_default(),
            name: text(4).unwrap_or_default(),
        };
        let name = match text(2).as_deref() {
            Some("toast") => RelationName::Toast(qualified),
            Some("toast index") => RelationName::ToastIndex(qualified),
            _ => RelationName::Own(qualified),
        };
        let mut lengths = [None; Fork::ALL.len()];
        for (length, column) in lengths.iter_mut().zip(6..) {
            // NULL if the relation was dropped concurrently.
            *length = text(column).and_then(|pages| pages.parse().ok());
        }
        names.insert(
            file,
            CatalogRelation { name, is_logged: text(5).as_deref() == Some("t"), lengths },
        );
    }
    Ok(names)
}
