//! Locates the relations of an image on the server.
//!
//! On the image's own cluster, a relation is looked up by database oid, tablespace and file number
//! first: it may have been renamed, and another relation may have its old name. If the file no
//! longer exists, the relation was rewritten or dropped, and is looked up by name, as on other
//! clusters.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use howdah_connect::{Client, ConnectTarget, QueryError, ResultRow, ResultSet};

use super::{
    LoadObserver, LoadOptions,
    block_mapping::BlockMapping,
    report::{RelationProblem, RenamedRelation},
    worker,
};
use crate::{
    dump::{self, ClusterInfo, QueryFailure, array},
    image::{CacheImage, Fork, QualifiedName, Relation, RelationFile, RelationName},
};

/// A relation of the image, found on the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LocatedRelation {
    /// The database to connect to for loading the relation.
    pub(super) database: String,
    /// `pg_class.oid`.
    pub(super) oid: u32,
    /// The relation's current file.
    pub(super) file: RelationFile,
    pub(super) kind: RelationKind,
    /// Length of each fork in pages, by fork number; `None` while another session holds an
    /// `AccessExclusiveLock` on the relation.
    pub(super) lengths: [Option<u32>; Fork::ALL.len()],
    /// The relation's current name.
    pub(super) name: QualifiedName,
    /// The current name again, if the relation was found by its file and the image has another
    /// name.
    pub(super) renamed: Option<RenamedRelation>,
    /// How pages are found if the relation was rewritten. `None` if by their share of its length.
    pub(super) mapping: Option<BlockMapping>,
}

/// The kind of a relation, which determines the load method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RelationKind {
    /// A table, materialised view or sequence in the heap.
    Heap,
    /// A TOAST table.
    Toast,
    /// A btree index.
    Btree,
    /// An index or a table of another access method.
    Other,
}

/// Looks up the relations of an image.
#[derive(Clone, Copy)]
pub(super) struct CatalogLookup<'a> {
    pub(super) image: &'a CacheImage,
    pub(super) target: &'a ConnectTarget,
    pub(super) cluster_info: &'a ClusterInfo,
    pub(super) options: &'a LoadOptions,
    pub(super) observer: &'a dyn LoadObserver,
}

/// The database in which relations are looked up.
struct LookupDatabase<'a> {
    name: &'a str,
    /// Whether this is the image's own database, with the same file numbers.
    has_same_files: bool,
}

/// Maximum attempts to query a database. A session may be terminated by an administrator, or by the
/// crash of another one.
const QUERY_ATTEMPTS_MAX: u32 = 3;

impl<'a> CatalogLookup<'a> {
    /// Locates each relation, in the order of the image.
    pub(super) fn locate_all(self) -> Vec<Result<LocatedRelation, RelationProblem>> {
        let Self { image, target, .. } = self;
        let mut located: Vec<Option<Result<LocatedRelation, RelationProblem>>> =
            vec![None; image.relations.len()];
        let mut by_database: BTreeMap<(&str, bool), Vec<usize>> = BTreeMap::new();
        for (at, relation) in image.relations.iter().enumerate() {
            match self.find_database(relation) {
                Ok(database) if relation.name.is_some() || database.has_same_files => {
                    let key = (database.name, database.has_same_files);
                    by_database.entry(key).or_default().push(at);
                }
                Ok(_) => located[at] = Some(Err(RelationProblem::Nameless)),
                Err(problem) => located[at] = Some(Err(problem)),
            }
        }
        for ((name, has_same_files), requested) in by_database {
            match self.query_with_retry(&requested, &target.with_database(name), has_same_files) {
                Ok(found) => found.into_iter().for_each(|(at, place)| located[at] = Some(place)),
                Err(failure) => {
                    let failure = Arc::new(failure);
                    for at in requested {
                        located[at] = Some(Err(RelationProblem::NoAccess(Arc::clone(&failure))));
                    }
                }
            }
        }
        located.into_iter().map(|place| place.unwrap_or(Err(RelationProblem::Dropped))).collect()
    }

    fn find_database(self, relation: &Relation) -> Result<LookupDatabase<'a>, RelationProblem> {
        let Self { image, target, cluster_info, options, .. } = self;
        let oid = relation.file.database;
        let is_same_cluster = is_same_cluster(image, cluster_info);
        if oid == 0 {
            // The shared catalogs can be read from every database; this one accepts our connection.
            return Ok(LookupDatabase { name: target.database(), has_same_files: is_same_cluster });
        }
        let by_name =
            |name: &str| cluster_info.databases.values().find(|database| database.name == name);
        let in_image = image.database_name(oid);
        let mapped = in_image.and_then(|name| options.database_names.get(name));
        let same = cluster_info.databases.get(&oid).filter(|_| is_same_cluster && mapped.is_none());
        let database = match (same, mapped, in_image) {
            (Some(same), ..) => Some(same),
            (None, Some(name), _) => by_name(name),
            (None, None, Some(name)) => by_name(name),
            // The image has no name for the database, only its oid.
            (None, None, None) if !is_same_cluster => return Err(RelationProblem::Nameless),
            (None, None, None) => None,
        };
        match database {
            None => Err(RelationProblem::NoDatabase),
            Some(database) if !database.allows_connections => Err(RelationProblem::Closed),
            Some(database) => {
                Ok(LookupDatabase { name: &database.name, has_same_files: same.is_some() })
            }
        }
    }

    /// Queries a database, and retries if the session is lost.
    fn query_with_retry(
        self,
        requested: &[usize],
        target: &ConnectTarget,
        has_same_files: bool,
    ) -> Result<Vec<LookupRow>, QueryFailure> {
        let mut attempts = 1;
        loop {
            match self.query(requested, target, has_same_files) {
                Err(failure) if is_session_lost(&failure) && attempts < QUERY_ATTEMPTS_MAX => {
                    attempts += 1;
                }
                result => return result,
            }
            if self.observer.should_stop() {
                return self.query(requested, target, has_same_files);
            }
        }
    }

    fn query(
        self,
        requested: &[usize],
        target: &ConnectTarget,
        has_same_files: bool,
    ) -> Result<Vec<LookupRow>, QueryFailure> {
        let Self { image, cluster_info, options, observer, .. } = self;
        let mut client = worker::connect_with_retry(target, options.connect_timeout, observer)?;
        let lock_timeout = options.lock_timeout.as_millis().max(1);
        client.query(&format!("SET lock_timeout = {lock_timeout}; SET statement_timeout = 0"))?;
        let mut located: BTreeMap<usize, Result<LocatedRelation, RelationProblem>> =
            BTreeMap::new();
        if has_same_files {
            let by_file: Vec<usize> =
                requested.iter().filter(|at| !self.is_schema_mapped(**at)).copied().collect();
            located.extend(parse_rows(
                &query_by_file(&mut client, image, &by_file, cluster_info)?,
                target,
            )?);
        }
        let renamed: Vec<usize> = located
            .iter()
            .filter(|&(&at, place)| place.as_ref().is_ok_and(|found| is_renamed(image, at, found)))
            .map(|(&at, _)| at)
            .collect();
        // Renamed relations are also looked up by their old name, to see whether another relation
        // has it.
        let has_name = |at: &&usize| image.relations[**at].name.is_some();
        let is_open = |at: &&usize| !located.contains_key(*at) || renamed.contains(*at);
        let named: Vec<usize> =
            requested.iter().filter(has_name).filter(is_open).copied().collect();
        let mut by_name = if named.is_empty() {
            BTreeMap::new()
        } else {
            BTreeMap::from_iter(parse_rows(
                &query_by_name(&mut client, image, &named, &options.schema_names)?,
                target,
            )?)
        };
        for at in renamed {
            let same_name = by_name.remove(&at);
            if let Some(Ok(found)) = located.get_mut(&at) {
                // If only the database was renamed, the old name leads to the relation itself.
                let is_name_taken = same_name
                    .is_some_and(|other| other.map_or(true, |other| other.oid != found.oid));
                let (database, name) = (found.database.clone(), found.name.clone());
                found.renamed = Some(RenamedRelation { database, name, is_name_taken });
            }
        }
        located.extend(by_name);
        Ok(located.into_iter().collect())
    }
}

impl CatalogLookup<'_> {
    /// Whether the relation is to be found in another schema than in the image.
    fn is_schema_mapped(self, at: usize) -> bool {
        match &self.image.relations[at].name {
            Some(
                RelationName::Own(name)
                | RelationName::Toast(name)
                | RelationName::ToastIndex(name),
            ) => self.options.schema_names.contains_key(&name.schema),
            None => false,
        }
    }
}

/// Whether a relation found by its file has another name than in the image. TOAST tables are
/// identified by their table, and not compared.
fn is_renamed(image: &CacheImage, at: usize, found: &LocatedRelation) -> bool {
    let relation = &image.relations[at];
    let Some(RelationName::Own(before)) = &relation.name else { return false };
    let database = image.database_name(relation.file.database);
    found.name != *before || database.is_some_and(|before| found.database != before)
}

/// Whether the session was lost, as opposed to an error that a retry would not avoid.
fn is_session_lost(failure: &QueryFailure) -> bool {
    match failure {
        QueryFailure::Query(QueryError::Sql(error)) => error.closes_connection(),
        QueryFailure::Query(_) => true,
        QueryFailure::Connect(_) | QueryFailure::UnexpectedResult { .. } => false,
    }
}

/// Whether a relation has another file than in the image, so that its blocks have other numbers.
pub(super) fn is_rewritten(
    lookup: CatalogLookup<'_>,
    relation: &Relation,
    found: &LocatedRelation,
) -> bool {
    !is_same_cluster(lookup.image, lookup.cluster_info) || found.file != relation.file
}

/// Whether the image's file numbers are valid on this server. An image without a system identifier
/// is assumed to be from this cluster; an autoprewarm file, which has no names, could not be loaded
/// otherwise.
pub(super) fn is_same_cluster(image: &CacheImage, cluster_info: &ClusterInfo) -> bool {
    let origin = image.origin.system_identifier;
    origin == 0 || origin == cluster_info.system_identifier
}

/// Lengths of locked relations are not queried, because `pg_relation_size()` would wait.
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

/// Finds relations by name. A TOAST table and its index are found through their table.
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

pub(super) type LookupRow = (usize, Result<LocatedRelation, RelationProblem>);

fn query_by_name(
    client: &mut Client,
    image: &CacheImage,
    requested: &[usize],
    schema_names: &BTreeMap<String, String>,
) -> Result<ResultSet, QueryFailure> {
    let names: Vec<_> = requested
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
    let schemas = array(
        names
            .iter()
            .map(|(.., QualifiedName { schema, .. })| schema_names.get(schema).unwrap_or(schema)),
    );
    let relations = array(names.iter().map(|(.., name)| &name.name));
    let values = [Some(&*numbers), Some(&*kinds), Some(&*schemas), Some(&*relations)];
    Ok(client.query_with(&format!("{COLUMNS}{BY_NAME}{FROM}"), &values)?)
}

fn query_by_file(
    client: &mut Client,
    image: &CacheImage,
    requested: &[usize],
    cluster_info: &ClusterInfo,
) -> Result<ResultSet, QueryFailure> {
    let files = || requested.iter().map(|&at| (at, image.relations[at].file));
    // A relation in the database's default tablespace has `reltablespace` 0.
    let tablespace = |file: RelationFile| {
        let own = cluster_info.databases.get(&file.database).map(|database| database.tablespace);
        if own == Some(file.tablespace) { 0 } else { file.tablespace }
    };
    let numbers = array(files().map(|(at, _)| at.to_string()));
    let tablespaces = array(files().map(|(_, file)| tablespace(file).to_string()));
    let filenodes = array(files().map(|(_, file)| file.filenode.to_string()));
    let values = [Some(&*numbers), Some(&*tablespaces), Some(&*filenodes)];
    Ok(client.query_with(&format!("{COLUMNS}{BY_FILE}{FROM}"), &values)?)
}

/// Returns a query for the relations in the table `w` of the `WITH` clause `with`, which has
/// positions and oids.
pub(super) fn family_query(with: &str) -> String {
    format!("{with} {COLUMNS} FROM w JOIN pg_class c ON c.oid = w.oid {FROM} ORDER BY w.at")
}

/// Parses the rows of a result, in order.
pub(super) fn parse_rows(
    result: &ResultSet,
    target: &ConnectTarget,
) -> Result<Vec<LookupRow>, QueryFailure> {
    let place = |row: &ResultRow| {
        let text = |column| row.text(column).map(Cow::into_owned);
        let at = dump::parse_number("position in the list", text(0))?;
        let place = match kind_without_storage(text(2).as_deref()) {
            Some(kind) => Err(RelationProblem::NoPages(kind)),
            None => Ok(parse_row(row, target)?),
        };
        Ok((at, place))
    };
    result.rows.iter().map(place).collect()
}

fn parse_row(row: &ResultRow, target: &ConnectTarget) -> Result<LocatedRelation, QueryFailure> {
    let text = |column| row.text(column).map(Cow::into_owned);
    let mut lengths = [None; Fork::ALL.len()];
    for (length, column) in lengths.iter_mut().zip(7..) {
        *length = text(column).and_then(|pages| pages.parse().ok());
    }
    Ok(LocatedRelation {
        database: target.database().to_owned(),
        oid: dump::parse_number("oid of a relation", text(1))?,
        file: RelationFile {
            database: dump::parse_number("oid of a database", text(6))?,
            tablespace: dump::parse_number("reltablespace", text(4))?,
            filenode: dump::parse_number("relfilenode", text(5))?,
        },
        kind: match (text(2).as_deref(), text(3).as_deref()) {
            (Some("r" | "m"), Some("heap")) | (Some("S"), _) => RelationKind::Heap,
            (Some("t"), Some("heap")) => RelationKind::Toast,
            (Some("i"), Some("btree")) => RelationKind::Btree,
            _ => RelationKind::Other,
        },
        lengths,
        name: QualifiedName {
            schema: text(11).unwrap_or_default(),
            name: text(12).unwrap_or_default(),
        },
        renamed: None,
        mapping: None,
    })
}

/// Returns what relations of a kind without storage are called; `None` for other kinds.
fn kind_without_storage(relkind: Option<&str>) -> Option<&'static str> {
    Some(match relkind? {
        "v" => "view",
        "p" => "partitioned table",
        "I" => "partitioned index",
        "f" => "foreign table",
        "c" => "composite type",
        _ => return None,
    })
}
