//! Compares two images: which pages were removed from the cache, kept and added.

use std::collections::{BTreeMap, BTreeSet};

use crate::image::{CacheImage, Fork, Relation, RelationFile, RelationName};

/// The difference between two images in one relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationChange {
    /// The relation's database; `None` for the shared catalogs, or if the image does not name it.
    pub database: Option<String>,
    /// The relation's name, or its file if its name is not known.
    pub relation: RelationIdentity,
    /// Number of pages that only the first image contains.
    pub removed: u64,
    /// Number of pages that both images contain.
    pub kept: u64,
    /// Number of pages that only the second image contains.
    pub added: u64,
}

/// The identity of a relation across images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RelationIdentity {
    /// By name, because the relation may have been rewritten, or the servers may differ.
    Named(RelationName),
    /// By file, if the image has no name for the relation.
    File(RelationFile),
}

type PageSet = BTreeSet<(Fork, u32)>;

/// Compares two images; the relation with the most changes comes first.
///
/// Relations are matched by database and name (by file if the image has no name), so the images may
/// be from different servers. Pages are matched by block number, which is meaningless if a relation
/// was rewritten in between.
pub fn diff(before: &CacheImage, after: &CacheImage) -> Vec<RelationChange> {
    let (mut before, mut after) = (by_name(before), by_name(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
    let mut changes: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let (before, after) =
                (before.remove(&key).unwrap_or_default(), after.remove(&key).unwrap_or_default());
            let kept = before.intersection(&after).count() as u64;
            let (database, relation) = key;
            RelationChange {
                database,
                relation,
                removed: before.len() as u64 - kept,
                kept,
                added: after.len() as u64 - kept,
            }
        })
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.removed + change.added));
    changes
}

fn by_name(image: &CacheImage) -> BTreeMap<(Option<String>, RelationIdentity), PageSet> {
    let mut all: BTreeMap<_, PageSet> = BTreeMap::new();
    for relation in &image.relations {
        let database = image.database_name(relation.file.database).map(str::to_owned);
        let known = match &relation.name {
            Some(name) => RelationIdentity::Named(name.clone()),
            None => RelationIdentity::File(relation.file),
        };
        all.entry((database, known)).or_default().extend(pages(relation));
    }
    all
}

fn pages(relation: &Relation) -> impl Iterator<Item = (Fork, u32)> {
    relation
        .forks
        .iter()
        .flat_map(|fork| fork.pages.iter().map(move |page| (fork.fork, page.block)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{CachedFork, CachedPage, ImageOrigin, ImageSource, QualifiedName};

    fn image(filenode: u32, name: Option<&str>, blocks: std::ops::Range<u32>) -> CacheImage {
        let name = name.map(|name| {
            RelationName::Own(QualifiedName { schema: "public".into(), name: name.into() })
        });
        let pages = blocks.map(|block| CachedPage { block, usage: 1, is_dirty: false }).collect();
        CacheImage {
            origin: ImageOrigin {
                server_version: 150_018,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us: 0,
                source: ImageSource::Memory,
            },
            databases: BTreeMap::from([(5, "shop".to_owned())]),
            relations: vec![Relation {
                file: RelationFile { database: 5, tablespace: 1663, filenode },
                name,
                is_logged: true,
                forks: vec![CachedFork { fork: Fork::Main, length: None, pages }],
                keys: None,
            }],
        }
    }

    #[test]
    fn rewritten_relation_is_matched_by_name() {
        let changes = diff(&image(1, Some("orders"), 0..10), &image(2, Some("orders"), 6..11));
        let counts: Vec<_> =
            changes.iter().map(|change| (change.removed, change.kept, change.added)).collect();
        assert_eq!(counts, [(6, 4, 1)]);
        assert_eq!(changes[0].database.as_deref(), Some("shop"));
    }

    #[test]
    fn unnamed_relations_are_matched_by_file() {
        let changes = diff(&image(1, None, 0..2), &image(2, None, 0..5));
        let counts: Vec<_> =
            changes.iter().map(|change| (change.removed, change.kept, change.added)).collect();
        assert_eq!(counts, [(0, 0, 5), (2, 0, 0)]);
    }
}
