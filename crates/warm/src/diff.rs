//! Two images side by side: which pages left the cache, which stayed, which came.

use std::collections::{BTreeMap, BTreeSet};

use crate::image::{CacheImage, Fork, Relation, RelationFile, RelationName};

/// What became of the pages of one relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationChange {
    /// Its database; nothing for the shared catalogs.
    pub database: Option<String>,
    /// Its name, or its files where no name is known.
    pub relation: Known,
    /// Pages of the first image that the second lacks.
    pub left: u64,
    /// Pages of both.
    pub stayed: u64,
    /// Pages that only the second has.
    pub came: u64,
}

/// How a relation is told from others across images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Known {
    /// By name: it may have been rewritten meanwhile, or be another server's.
    Named(RelationName),
    /// By its files.
    File(RelationFile),
}

type Pages = BTreeSet<(Fork, u32)>;

/// Compares two images; the relation with most pages that left or came stands first.
///
/// Relations are matched by database and name, so the images may be of different servers. Pages are
/// matched by their block numbers, which says nothing where a relation was rewritten in between.
#[must_use]
pub fn diff(before: &CacheImage, after: &CacheImage) -> Vec<RelationChange> {
    let (mut before, mut after) = (by_name(before), by_name(after));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).cloned().collect();
    let mut changes: Vec<_> = keys
        .into_iter()
        .map(|key| {
            let (before, after) =
                (before.remove(&key).unwrap_or_default(), after.remove(&key).unwrap_or_default());
            let stayed = before.intersection(&after).count() as u64;
            let (database, relation) = key;
            RelationChange {
                database,
                relation,
                left: before.len() as u64 - stayed,
                stayed,
                came: after.len() as u64 - stayed,
            }
        })
        .collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.left + change.came));
    changes
}

fn by_name(image: &CacheImage) -> BTreeMap<(Option<String>, Known), Pages> {
    let mut all: BTreeMap<_, Pages> = BTreeMap::new();
    for relation in &image.relations {
        let database = image.database_name(relation.file.database).map(str::to_owned);
        let known = match &relation.name {
            Some(name) => Known::Named(name.clone()),
            None => Known::File(relation.file),
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
    use crate::image::{CachedFork, Origin, Page, QualifiedName, Source};

    fn image(filenode: u32, name: Option<&str>, blocks: std::ops::Range<u32>) -> CacheImage {
        let name = name.map(|name| {
            RelationName::Own(QualifiedName { schema: "public".into(), name: name.into() })
        });
        let pages = blocks.map(|block| Page { block, usage: 1, is_dirty: false }).collect();
        CacheImage {
            origin: Origin {
                server_version: 150_018,
                system_identifier: 1,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us: 0,
                source: Source::Memory,
            },
            databases: BTreeMap::from([(5, "shop".to_owned())]),
            relations: vec![Relation {
                file: RelationFile { database: 5, tablespace: 1663, filenode },
                name,
                is_logged: true,
                forks: vec![CachedFork { fork: Fork::Main, length: None, pages }],
            }],
        }
    }

    #[test]
    fn a_rewritten_relation_is_the_same_by_name() {
        let changes = diff(&image(1, Some("orders"), 0..10), &image(2, Some("orders"), 6..11));
        let counts: Vec<_> =
            changes.iter().map(|change| (change.left, change.stayed, change.came)).collect();
        assert_eq!(counts, [(6, 4, 1)]);
        assert_eq!(changes[0].database.as_deref(), Some("shop"));
    }

    #[test]
    fn without_a_name_the_files_tell() {
        let changes = diff(&image(1, None, 0..2), &image(2, None, 0..5));
        let counts: Vec<_> =
            changes.iter().map(|change| (change.left, change.stayed, change.came)).collect();
        assert_eq!(counts, [(0, 0, 5), (2, 0, 0)]);
    }
}
