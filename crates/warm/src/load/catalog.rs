//! The relations of an image as they are on the server: found by name, or by file number where the image
//! is of this very cluster.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use howdah_connect::{Client, ResultSet, Row, Target};

use super::report::Problem;
use crate::{
    dump::{self, Facts, QueryFailure},
    image::{CacheImage, Fork, Relation, RelationFile, RelationName},
};

/// A relation of the image on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The database to go to.
    pub(super) database: String,
    /// `pg_class.oid`.
    pub(super) oid: u32,
    /// Its files now.
    pub(super) file: RelationFile,
    pub(super) kind: Kind,
    /// Pages of each fork, by the fork's number. Unknown while another session holds it locked.
    pub(super) lengths: [Option<u32>; Fork::ALL.len()],
}

/// What a relation is, as far as it decides the way to its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A table, materialised view or sequence in the heap.
    Heap,
    /// A TOAST table.
    Toast,
    /// A btree.
    Btree,
    /// An index or a table of another access method.
    Other,
}

/// Where each relation of `image` is on the server, in the order of the image.
pub(super) fn find(
    image: &CacheImage,
    target: &Target,
    facts: &Facts,
    lock_timeout: &str,
) -> Vec<Result<Found, Problem>> {
    let is_same_cluster = is_same_cluster(image, facts);
    let mut places: Vec<Option<Result<Found, Problem>>> = vec![None; image.relations.len()];
    let mut by_database: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, relation) in image.relations.iter().enumerate() {
        if relation.name.is_none() && !is_same_cluster {
            places[at] = Some(Err(Problem::Nameless));
            continue;
        }
        match database_of(image, relation, target, facts, is_same_cluster) {
            Ok(name) => by_database.entry(name).or_default().push(at),
            Err(problem) => places[at] = Some(Err(problem)),
        }
    }
    for (name, wanted) in by_database {
        let asked = ask(image, &wanted, &target.with_database(name), facts, lock_timeout);
        match asked {
            Ok(found) => found.into_iter().for_each(|(at, place)| places[at] = Some(place)),
            Err(failure) => {
                let failure = Arc::new(failure);
                for at in wanted {
                    places[at] = Some(Err(Problem::NoAccess(Arc::clone(&failure))));
                }
            }
        }
    }
    places.into_iter().map(|place| place.unwrap_or(Err(Problem::Dropped))).collect()
}

/// Whether file numbers of the image mean the same on this server. A file of autoprewarm says nothing of
/// where it is from, and is of no use elsewhere, so it is believed.
pub(super) fn is_same_cluster(image: &CacheImage, facts: &Facts) -> bool {
    let origin = image.origin.system_identifier;
    origin == 0 || origin == facts.system_identifier
}

fn database_of<'a>(
    image: &CacheImage,
    relation: &Relation,
    target: &'a Target,
    facts: &'a Facts,
    is_same_cluster: bool,
) -> Result<&'a str, Problem> {
    let oid = relation.file.database;
    if oid == 0 {
        // The shared catalogs can be read from every database; this one lets us in.
        return Ok(target.database());
    }
    let database = match image.database_name(oid) {
        Some(name) => facts.databases.values().find(|database| database.name == name),
        None if is_same_cluster => facts.databases.get(&oid),
        None => None,
    };
    match database {
        None => Err(Problem::NoDatabase),
        Some(database) if !database.allows_connections => Err(Problem::Closed),
        Some(database) => Ok(&database.name),
    }
}

/// Lengths are not asked of a relation that is locked, because `pg_relation_size()` waits for it.
const COLUMNS: &str = "
SELECT w.at, c.oid, c.relkind, COALESCE(a.amname, ''),
       CASE WHEN c.reltablespace = 0 THEN d.dattablespace ELSE c.reltablespace END,
       pg_relation_filenode(c.oid), CASE WHEN c.relisshared THEN 0 ELSE d.oid END, l.main, l.fsm, l.vm, l.init";

/// How many those are.
pub(super) const COLUMN_COUNT: usize = 11;

const FROM: &str = "
LEFT JOIN pg_am a ON a.oid = c.relam
JOIN pg_database d ON d.datname = current_database()
LEFT JOIN LATERAL (
    SELECT pg_relation_size(c.oid, 'main') / b.bytes AS main, pg_relation_size(c.oid, 'fsm') / b.bytes AS fsm,
           pg_relation_size(c.oid, 'vm') / b.bytes AS vm, pg_relation_size(c.oid, 'init') / b.bytes AS init
    FROM (SELECT current_setting('block_size')::int8 AS bytes) b
    WHERE NOT EXISTS (SELECT FROM pg_locks k WHERE k.locktype = 'relation' AND k.relation = c.oid
                      AND k.mode = 'AccessExclusiveLock' AND k.database IN (0, d.oid))
) l ON true";

/// A TOAST table and its index are found through the table they belong to.
const BY_NAME: &str = "
FROM unnest($1::int4[], $2::text[], $3::text[], $4::text[]) AS w(at, kind, schema, name)
JOIN pg_namespace n ON n.nspname = w.schema
JOIN pg_class o ON o.relnamespace = n.oid AND o.relname = w.name
JOIN pg_class c ON c.oid = CASE w.kind
    WHEN 'own' THEN o.oid
    WHEN 'toast' THEN o.reltoastrelid
    ELSE (SELECT i.indexrelid FROM pg_index i WHERE i.indrelid = o.reltoastrelid AND i.indisvalid LIMIT 1) END";

const BY_FILE: &str = "
FROM unnest($1::int4[], $2::oid[], $3::oid[]) AS w(at, tablespace, filenode)
JOIN pg_class c ON c.oid = pg_filenode_relation(w.tablespace, w.filenode)";

pub(super) type Place = (usize, Result<Found, Problem>);

fn ask(
    image: &CacheImage,
    wanted: &[usize],
    target: &Target,
    facts: &Facts,
    lock_timeout: &str,
) -> Result<Vec<Place>, QueryFailure> {
    let mut client = dump::connect(target)?;
    client.query(&format!("SET lock_timeout = {lock_timeout}; SET statement_timeout = 0"))?;
    let (named, nameless): (Vec<usize>, Vec<usize>) =
        wanted.iter().partition(|&&at| image.relations[at].name.is_some());
    let mut places = Vec::new();
    if !named.is_empty() {
        places.extend(read(&by_name(&mut client, image, &named)?, target)?);
    }
    if !nameless.is_empty() {
        places.extend(read(&by_file(&mut client, image, &nameless, facts)?, target)?);
    }
    Ok(places)
}

fn by_name(
    client: &mut Client,
    image: &CacheImage,
    wanted: &[usize],
) -> Result<ResultSet, QueryFailure> {
    let names: Vec<_> = wanted
        .iter()
        .filter_map(|&at| image.relations[at].name.as_ref().map(|name| (at, name)))
        .map(|(at, name)| match name {
            RelationName::Own(name) => (at, "own", name),
            RelationName::Toast(table) => (at, "toast", table),
            RelationName::ToastIndex(table) => (at, "toast index", table),
        })
        .collect();
    let numbers = array(names.iter().map(|(at, ..)| at.to_string()));
    let kinds = array(names.iter().map(|(_, kind, _)| *kind));
    let schemas = array(names.iter().map(|(.., name)| &name.schema));
    let relations = array(names.iter().map(|(.., name)| &name.name));
    let values = [Some(&*numbers), Some(&*kinds), Some(&*schemas), Some(&*relations)];
    Ok(client.query_with(&format!("{COLUMNS}{BY_NAME}{FROM}"), &values)?)
}

fn by_file(
    client: &mut Client,
    image: &CacheImage,
    wanted: &[usize],
    facts: &Facts,
) -> Result<ResultSet, QueryFailure> {
    let files = || wanted.iter().map(|&at| (at, image.relations[at].file));
    // A relation of the database's own tablespace has none of its own.
    let tablespace = |file: RelationFile| {
        let own = facts.databases.get(&file.database).map(|database| database.tablespace);
        if own == Some(file.tablespace) { 0 } else { file.tablespace }
    };
    let numbers = array(files().map(|(at, _)| at.to_string()));
    let tablespaces = array(files().map(|(_, file)| tablespace(file).to_string()));
    let filenodes = array(files().map(|(_, file)| file.filenode.to_string()));
    let values = [Some(&*numbers), Some(&*tablespaces), Some(&*filenodes)];
    Ok(client.query_with(&format!("{COLUMNS}{BY_FILE}{FROM}"), &values)?)
}

/// A query for relations that `with` names: it ends with a table `w` of places and oids. Schema and name
/// stand behind the columns that [`read`] takes.
pub(super) fn family(with: &str) -> String {
    format!(
        "{with} {COLUMNS}, n.nspname, c.relname FROM w JOIN pg_class c ON c.oid = w.oid
         JOIN pg_namespace n ON n.oid = c.relnamespace {FROM} ORDER BY w.at"
    )
}

/// The relations of a result, in its order.
pub(super) fn read(result: &ResultSet, target: &Target) -> Result<Vec<Place>, QueryFailure> {
    let place = |row: &Row| {
        let text = |column| row.text(column).map(Cow::into_owned);
        let at = dump::number("a place in a list", text(0))?;
        let place = match without_pages(text(2).as_deref()) {
            Some(kind) => Err(Problem::NoPages(kind)),
            None => Ok(found(row, target)?),
        };
        Ok((at, place))
    };
    result.rows.iter().map(place).collect()
}

fn found(row: &Row, target: &Target) -> Result<Found, QueryFailure> {
    let text = |column| row.text(column).map(Cow::into_owned);
    let mut lengths = [None; Fork::ALL.len()];
    for (length, column) in lengths.iter_mut().zip(7..) {
        *length = text(column).and_then(|pages| pages.parse().ok());
    }
    Ok(Found {
        database: target.database().to_owned(),
        oid: dump::number("oid of a relation", text(1))?,
        file: RelationFile {
            database: dump::number("oid of a database", text(6))?,
            tablespace: dump::number("reltablespace", text(4))?,
            filenode: dump::number("relfilenode", text(5))?,
        },
        kind: match (text(2).as_deref(), text(3).as_deref()) {
            (Some("r" | "m"), Some("heap")) | (Some("S"), _) => Kind::Heap,
            (Some("t"), Some("heap")) => Kind::Toast,
            (Some("i"), Some("btree")) => Kind::Btree,
            _ => Kind::Other,
        },
        lengths,
    })
}

/// What a relation without storage is called.
fn without_pages(relkind: Option<&str>) -> Option<&'static str> {
    Some(match relkind? {
        "v" => "view",
        "p" => "partitioned table",
        "I" => "partitioned index",
        "f" => "foreign table",
        "c" => "composite type",
        _ => return None,
    })
}

/// An array literal.
pub(super) fn array<T: AsRef<str>>(items: impl Iterator<Item = T>) -> String {
    let mut out = String::from("{");
    for item in items {
        if out.len() > 1 {
            out.push(',');
        }
        out.push('"');
        for char in item.as_ref().chars() {
            if matches!(char, '"' | '\\') {
                out.push('\\');
            }
            out.push(char);
        }
        out.push('"');
    }
    out.push('}');
    out
}

#[test]
fn names_of_all_kinds_stand_in_an_array() {
    let names = ["plain", "with,comma", "with\"quote", "back\\slash", "{}", "", "NULL"];
    let expected = r#"{"plain","with,comma","with\"quote","back\\slash","{}","","NULL"}"#;
    assert_eq!(array(names.into_iter()), expected);
}
