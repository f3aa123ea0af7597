//! The relations of an image as they are on the server.
//!
//! On the cluster that the image is from, a relation is looked up by database oid, tablespace and file
//! number first: it may have been renamed, and something else may have its name. What has no such file any
//! more was rewritten or dropped, and is looked up by name, as everything is on other clusters.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use howdah_connect::{Client, QueryError, ResultSet, Row, Target};

use super::{
    Observer, Options,
    report::{Problem, Renamed},
    worker,
};
use crate::{
    dump::{self, Facts, QueryFailure},
    image::{CacheImage, Fork, QualifiedName, Relation, RelationFile, RelationName},
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
    /// What it is called.
    pub(super) name: QualifiedName,
    /// The same, if it was found by its file and the image calls it otherwise.
    pub(super) renamed: Option<Renamed>,
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

/// What is needed to look relations up.
#[derive(Clone, Copy)]
pub(super) struct Search<'a> {
    pub(super) image: &'a CacheImage,
    pub(super) target: &'a Target,
    pub(super) facts: &'a Facts,
    pub(super) options: &'a Options,
    pub(super) observer: &'a dyn Observer,
}

/// Where the relations of one database are to be looked up.
struct Database<'a> {
    name: &'a str,
    /// Whether it is the database of the image itself, with the same files.
    has_same_files: bool,
}

/// How often one database is asked. A session may be ended by an administrator, or by a crash of another.
const ASKED_MAX: u32 = 3;

impl<'a> Search<'a> {
    /// Where each relation is, in the order of the image.
    pub(super) fn places(self) -> Vec<Result<Found, Problem>> {
        let Self { image, target, .. } = self;
        let mut places: Vec<Option<Result<Found, Problem>>> = vec![None; image.relations.len()];
        let mut by_database: BTreeMap<(&str, bool), Vec<usize>> = BTreeMap::new();
        for (at, relation) in image.relations.iter().enumerate() {
            match self.database_of(relation) {
                Ok(database) if relation.name.is_some() || database.has_same_files => {
                    let key = (database.name, database.has_same_files);
                    by_database.entry(key).or_default().push(at);
                }
                Ok(_) => places[at] = Some(Err(Problem::Nameless)),
                Err(problem) => places[at] = Some(Err(problem)),
            }
        }
        for ((name, has_same_files), wanted) in by_database {
            match self.ask_again(&wanted, &target.with_database(name), has_same_files) {
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

    fn database_of(self, relation: &Relation) -> Result<Database<'a>, Problem> {
        let Self { image, target, facts, options, .. } = self;
        let oid = relation.file.database;
        let is_same_cluster = is_same_cluster(image, facts);
        if oid == 0 {
            // The shared catalogs can be read from every database; this one lets us in.
            return Ok(Database { name: target.database(), has_same_files: is_same_cluster });
        }
        let by_name = |name: &str| facts.databases.values().find(|database| database.name == name);
        let in_image = image.database_name(oid);
        let mapped = in_image.and_then(|name| options.database_names.get(name));
        let same = facts.databases.get(&oid).filter(|_| is_same_cluster && mapped.is_none());
        let database = match (same, mapped, in_image) {
            (Some(same), ..) => Some(same),
            (None, Some(name), _) => by_name(name),
            (None, None, Some(name)) => by_name(name),
            // Only the oid could have told.
            (None, None, None) if !is_same_cluster => return Err(Problem::Nameless),
            (None, None, None) => None,
        };
        match database {
            None => Err(Problem::NoDatabase),
            Some(database) if !database.allows_connections => Err(Problem::Closed),
            Some(database) => Ok(Database { name: &database.name, has_same_files: same.is_some() }),
        }
    }

    /// Asks a database, and again when the session was lost.
    fn ask_again(
        self,
        wanted: &[usize],
        target: &Target,
        has_same_files: bool,
    ) -> Result<Vec<Place>, QueryFailure> {
        let mut asked = 1;
        loop {
            match self.ask(wanted, target, has_same_files) {
                Err(failure) if is_lost(&failure) && asked < ASKED_MAX => asked += 1,
                result => return result,
            }
            if self.observer.wants_end() {
                return self.ask(wanted, target, has_same_files);
            }
        }
    }

    fn ask(
        self,
        wanted: &[usize],
        target: &Target,
        has_same_files: bool,
    ) -> Result<Vec<Place>, QueryFailure> {
        let Self { image, facts, options, observer, .. } = self;
        let mut client = worker::reach(target, options.patience, observer)?;
        let lock_timeout = options.lock_timeout.as_millis().max(1);
        client.query(&format!("SET lock_timeout = {lock_timeout}; SET statement_timeout = 0"))?;
        let mut places: BTreeMap<usize, Result<Found, Problem>> = BTreeMap::new();
        if has_same_files {
            places.extend(read(&by_file(&mut client, image, wanted, facts)?, target)?);
        }
        let renamed: Vec<usize> = places
            .iter()
            .filter(|&(&at, place)| place.as_ref().is_ok_and(|found| is_renamed(image, at, found)))
            .map(|(&at, _)| at)
            .collect();
        // What was found under another name is asked for by name, too: whether that is taken.
        let has_name = |at: &&usize| image.relations[**at].name.is_some();
        let is_open = |at: &&usize| !places.contains_key(*at) || renamed.contains(*at);
        let named: Vec<usize> = wanted.iter().filter(has_name).filter(is_open).copied().collect();
        let mut by_name = match named.is_empty() {
            true => BTreeMap::new(),
            false => BTreeMap::from_iter(read(&by_name(&mut client, image, &named)?, target)?),
        };
        for at in renamed {
            let same_name = by_name.remove(&at);
            if let Some(Ok(found)) = places.get_mut(&at) {
                // In a database that was renamed, it is the relation itself.
                let is_name_taken = same_name
                    .is_some_and(|other| other.map_or(true, |other| other.oid != found.oid));
                let (database, name) = (found.database.clone(), found.name.clone());
                found.renamed = Some(Renamed { database, name, is_name_taken });
            }
        }
        places.extend(by_name);
        Ok(places.into_iter().collect())
    }
}

/// Whether a relation that was found by its file has another name than in the image. TOAST tables go by
/// the name of their table and are not compared.
fn is_renamed(image: &CacheImage, at: usize, found: &Found) -> bool {
    let relation = &image.relations[at];
    let Some(RelationName::Own(before)) = &relation.name else { return false };
    let database = image.database_name(relation.file.database);
    found.name != *before || database.is_some_and(|before| found.database != before)
}

/// Whether the session ended, as opposed to an answer that another one would get, too.
fn is_lost(failure: &QueryFailure) -> bool {
    match failure {
        QueryFailure::Query(QueryError::Sql(error)) => error.ends_session(),
        QueryFailure::Query(_) => true,
        QueryFailure::Connect(_) | QueryFailure::Answer { .. } => false,
    }
}

/// Whether file numbers of the image mean the same on this server. A file of autoprewarm says nothing of
/// where it is from, and is of no use elsewhere, so it is believed.
pub(super) fn is_same_cluster(image: &CacheImage, facts: &Facts) -> bool {
    let origin = image.origin.system_identifier;
    origin == 0 || origin == facts.system_identifier
}

/// Lengths are not asked of a relation that is locked, because `pg_relation_size()` waits for it.
const COLUMNS: &str = "
SELECT w.at, c.oid, c.relkind, COALESCE(a.amname, ''),
       CASE WHEN c.reltablespace = 0 THEN d.dattablespace ELSE c.reltablespace END,
       pg_relation_filenode(c.oid), CASE WHEN c.relisshared THEN 0 ELSE d.oid END, l.main, l.fsm, l.vm, l.init,
       (SELECT n.nspname FROM pg_namespace n WHERE n.oid = c.relnamespace), c.relname";

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

/// A query for relations that `with` names: it ends with a table `w` of places and oids.
pub(super) fn family(with: &str) -> String {
    format!("{with} {COLUMNS} FROM w JOIN pg_class c ON c.oid = w.oid {FROM} ORDER BY w.at")
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
        name: QualifiedName {
            schema: text(11).unwrap_or_default(),
            name: text(12).unwrap_or_default(),
        },
        renamed: None,
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
