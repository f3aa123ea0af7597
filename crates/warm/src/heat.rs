//! How warm a server is: the share of an image's heat that is in its cache.
//!
//! The heat of a page is its usage count in the image, 0 to 5, so a page that is used all the time
//! weighs more than one that was read once. Nothing is assumed about earlier loads: a
//! [`HeatMeter`] scans the cache and compares block by block.
//!
//! Blocks can be compared only while a relation has the file it had when the image was taken. A
//! relation that was rewritten or dropped since (`VACUUM FULL`, `TRUNCATE`, `REINDEX`) is reported
//! apart, as unknown, and does not lower the share. Relations without any page in the cache are
//! looked up in the catalogs of their databases, since only those can have lost their file.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};

use crate::{
    dump::{
        self, BufferScan, BufferSource, ClusterInfo, DumpError, DumpSource, QueryFailure, array,
    },
    image::{CacheImage, Fork, ImageSource, Relation, RelationFile},
};

/// The shares of an image that are in a cache, in total and by database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeatReport {
    /// All relations, including the shared catalogs.
    pub total: HeatShare,
    /// By name of the database in the image.
    pub databases: BTreeMap<String, HeatShare>,
    /// The interface by which the cache was scanned.
    pub source: ImageSource,
}

/// Pages of an image, and how many of them are in a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatShare {
    /// Sum of the usage counts of the pages.
    pub heat: u64,
    /// Sum of the usage counts of the pages that are in the cache.
    pub resident_heat: u64,
    /// Number of pages whose relation still has the file of the image.
    pub pages: u64,
    /// Number of these pages that are in the cache.
    pub resident_pages: u64,
    /// Number of pages whose relation has another file now, or none. They are in no other count.
    pub unknown_pages: u64,
}

impl HeatShare {
    /// Returns the share of the heat that is in the cache, 0 to 1. If the image records no usage,
    /// this is the share of the pages. `None` without pages to compare.
    pub fn heat_ratio(&self) -> Option<f64> {
        match self.heat {
            0 => self.page_ratio(),
            heat => Some(self.resident_heat as f64 / heat as f64),
        }
    }

    /// Returns the share of the pages that is in the cache, 0 to 1; `None` without pages to
    /// compare.
    pub fn page_ratio(&self) -> Option<f64> {
        (self.pages > 0).then(|| self.resident_pages as f64 / self.pages as f64)
    }

    fn add(&mut self, other: Self) {
        self.heat += other.heat;
        self.resident_heat += other.resident_heat;
        self.pages += other.pages;
        self.resident_pages += other.resident_pages;
        self.unknown_pages += other.unknown_pages;
    }
}

/// Compares two images of one cluster: how much of `image` is in the cache that `newer` is an image
/// of. A relation without pages in `newer` counts as not cached, whether it was rewritten or not.
pub fn compare(image: &CacheImage, newer: &CacheImage) -> HeatReport {
    let resident: ResidentBlocks = newer
        .relations
        .iter()
        .flat_map(|relation| relation.forks.iter().map(move |fork| (relation.file, fork)))
        .map(|(file, fork)| ((file, fork.fork), fork.pages.iter().map(|page| page.block).collect()))
        .collect();
    let is_same = is_same_cluster(image, newer.origin.system_identifier);
    summarize(image, &resident, newer.origin.source, |_| !is_same)
}

/// Measures the heat of servers of one cluster, and remembers which files were looked up. Use one
/// meter for each server and image.
#[derive(Clone, Debug, Default)]
pub struct HeatMeter {
    /// Files that no longer exist. File numbers are not reused while an image is of interest.
    missing: BTreeSet<RelationFile>,
    /// Files that existed when they were last looked up.
    existing: BTreeMap<RelationFile, Instant>,
}

/// Time after which the file of a relation without cached pages is looked up again.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);

/// Cached blocks of each fork, ascending.
type ResidentBlocks = BTreeMap<(RelationFile, Fork), Vec<u32>>;

impl HeatMeter {
    /// Scans the cache of the server at `target`, and returns how much of `image` it contains.
    ///
    /// Costs the server one connection, with `pg_buffercache` a scan of that view, and at most
    /// every thirty seconds one connection and query for each database that has relations in the
    /// image of which no page is cached. `timeout` limits each of these.
    ///
    /// # Errors
    ///
    /// The server cannot be queried, or its buffers cannot be read from `source`. A database whose
    /// catalogs cannot be queried is not an error: its relations count as not cached.
    pub fn measure(
        &mut self,
        image: &CacheImage,
        target: &ConnectTarget,
        source: DumpSource,
        timeout: Duration,
    ) -> Result<HeatReport, DumpError> {
        let mut client = dump::connect(target).map_err(DumpError::Server)?;
        client.set_timeout(Some(timeout));
        let cluster_info = ClusterInfo::query(&mut client).map_err(DumpError::Server)?;
        let BufferScan { cached, source, .. } =
            BufferSource::new(source).scan(&mut client, target.database())?;
        let resident = cached.forks.into_iter().map(|(key, pages)| {
            let mut blocks: Vec<u32> = pages.into_iter().map(|page| page.block).collect();
            blocks.sort_unstable();
            (key, blocks)
        });
        let resident: ResidentBlocks = resident.collect();
        let is_same = is_same_cluster(image, cluster_info.system_identifier);
        if is_same {
            self.find_missing_files(image, target, &mut client, &cluster_info, &resident, timeout);
        }
        // More than the cache can hold cannot be asked for; a load leaves some buffers free, too.
        let buffers = u64::from(cluster_info.buffers);
        let room = buffers.saturating_sub((buffers / 64).clamp(64, 1024));
        let hottest = (image.page_count() > room && room > 0).then(|| image.hottest(room));
        let image = hottest.as_ref().unwrap_or(image);
        let is_unknown = |file| !is_same || self.missing.contains(&file);
        Ok(summarize(image, &resident, source, is_unknown))
    }

    /// Looks up the files of relations without pages in the cache, unless that was done recently.
    fn find_missing_files(
        &mut self,
        image: &CacheImage,
        target: &ConnectTarget,
        client: &mut Client,
        cluster_info: &ClusterInfo,
        resident: &ResidentBlocks,
        timeout: Duration,
    ) {
        let now = Instant::now();
        let is_recent = |file: &RelationFile| {
            let looked_up = self.existing.get(file);
            looked_up.is_some_and(|at| now.duration_since(*at) < LOOKUP_INTERVAL)
        };
        let mut requested: BTreeMap<u32, Vec<RelationFile>> = BTreeMap::new();
        for relation in &image.relations {
            let file = relation.file;
            let is_cached = |fork: Fork| resident.contains_key(&(file, fork));
            let is_cached = Fork::ALL.into_iter().any(is_cached);
            if !is_cached && !is_recent(&file) && !self.missing.contains(&file) {
                requested.entry(file.database).or_default().push(file);
            }
        }
        for (oid, files) in requested {
            let database = cluster_info.databases.get(&oid);
            let found = match database {
                _ if oid == 0 => existing_files(client, None, &files),
                // Dropped with all its files.
                None => Ok(BTreeSet::new()),
                Some(database) if !database.allows_connections => continue,
                Some(database) if database.name == target.database() => {
                    existing_files(client, Some(database.tablespace), &files)
                }
                Some(database) => {
                    dump::connect(&target.with_database(&database.name)).and_then(|mut other| {
                        other.set_timeout(Some(timeout));
                        existing_files(&mut other, Some(database.tablespace), &files)
                    })
                }
            };
            let Ok(found) = found else { continue };
            for file in files {
                if found.contains(&file) {
                    self.existing.insert(file, now);
                } else {
                    self.existing.remove(&file);
                    self.missing.insert(file);
                }
            }
        }
    }
}

/// Returns which of the files are those of a relation. `tablespace` is the database's default one.
fn existing_files(
    client: &mut Client,
    tablespace: Option<u32>,
    files: &[RelationFile],
) -> Result<BTreeSet<RelationFile>, QueryFailure> {
    // A relation in the database's default tablespace has `reltablespace` 0.
    let reltablespace = |file: &RelationFile| {
        if tablespace == Some(file.tablespace) { 0 } else { file.tablespace }
    };
    let tablespaces = array(files.iter().map(|file| reltablespace(file).to_string()));
    let filenodes = array(files.iter().map(|file| file.filenode.to_string()));
    let results = client.query_with(
        "SELECT f.at FROM unnest($1::oid[], $2::oid[]) WITH ORDINALITY AS f(tablespace, file, at)
         WHERE pg_filenode_relation(f.tablespace, f.file) IS NOT NULL",
        &[Some(&tablespaces), Some(&filenodes)],
    )?;
    let mut found = BTreeSet::new();
    for row in &results.rows {
        let text = row.text(0).map(std::borrow::Cow::into_owned);
        let at: usize = dump::parse_number("position in the list", text)?;
        found.extend(at.checked_sub(1).and_then(|at| files.get(at)));
    }
    Ok(found)
}

/// Whether an image can be compared with a server by file numbers. Unknown identifiers count as
/// equal.
fn is_same_cluster(image: &CacheImage, system_identifier: u64) -> bool {
    let origin = image.origin.system_identifier;
    origin == 0 || system_identifier == 0 || origin == system_identifier
}

fn summarize(
    image: &CacheImage,
    resident: &ResidentBlocks,
    source: ImageSource,
    is_unknown: impl Fn(RelationFile) -> bool,
) -> HeatReport {
    let mut report = HeatReport { total: HeatShare::default(), databases: BTreeMap::new(), source };
    for relation in &image.relations {
        // A standby or a server after a crash cannot have pages of unlogged relations.
        let share = if is_unknown(relation.file) || !relation.is_logged {
            HeatShare { unknown_pages: relation.page_count(), ..HeatShare::default() }
        } else {
            relation_share(relation, resident)
        };
        report.total.add(share);
        if let Some(name) = image.database_name(relation.file.database) {
            // Most relations are of a database that is in the map already.
            match report.databases.get_mut(name) {
                Some(sum) => sum.add(share),
                None => drop(report.databases.insert(name.to_owned(), share)),
            }
        }
    }
    report
}

fn relation_share(relation: &Relation, resident: &ResidentBlocks) -> HeatShare {
    let mut share = HeatShare::default();
    for fork in &relation.forks {
        let cached = resident.get(&(relation.file, fork.fork)).map_or(&[][..], Vec::as_slice);
        let mut cached = cached.iter().copied().peekable();
        for page in fork.pages.iter() {
            while cached.next_if(|&block| block < page.block).is_some() {}
            let is_resident = u64::from(cached.peek() == Some(&page.block));
            share.heat += u64::from(page.usage);
            share.pages += 1;
            share.resident_heat += u64::from(page.usage) * is_resident;
            share.resident_pages += is_resident;
        }
    }
    share
}

#[cfg(test)]
mod tests {
    use crate::image::{CachedFork, CachedPage, ImageOrigin};

    use super::*;

    /// Database, file number, and blocks with their usage.
    type FilePages<'a> = (u32, u32, &'a [(u32, u8)]);

    fn image(system_identifier: u64, relations: &[FilePages<'_>]) -> CacheImage {
        let relation = |&(database, filenode, pages): &FilePages<'_>| {
            let pages = pages.iter();
            let page = |&(block, usage): &(u32, u8)| CachedPage { block, usage, is_dirty: false };
            let fork =
                CachedFork { fork: Fork::Main, length: None, pages: pages.map(page).collect() };
            Relation {
                keys: None,
                file: RelationFile { database, tablespace: 1663, filenode },
                name: None,
                is_logged: true,
                forks: vec![fork],
            }
        };
        CacheImage {
            origin: ImageOrigin {
                server_version: 150_000,
                system_identifier,
                page_bytes: 8192,
                buffers: 100,
                taken_at_us: 0,
                source: ImageSource::Memory,
            },
            databases: [(1, "shop".to_owned()), (2, "stats".to_owned())].into(),
            relations: relations.iter().map(relation).collect(),
        }
    }

    #[test]
    fn pages_are_weighted_by_usage() {
        let before = image(7, &[(1, 10, &[(0, 5), (1, 1), (9, 0)]), (2, 20, &[(3, 2), (4, 2)])]);
        let after = image(7, &[(1, 10, &[(0, 1), (2, 5)]), (2, 20, &[(4, 1)])]);
        let report = compare(&before, &after);
        assert_eq!(report.total.heat_ratio(), Some(7.0 / 10.0));
        assert_eq!(report.total.page_ratio(), Some(2.0 / 5.0));
        assert_eq!(report.databases["shop"].heat_ratio(), Some(5.0 / 6.0));
        assert_eq!(report.databases["stats"].heat_ratio(), Some(0.5));
        assert_eq!(compare(&before, &before).total.heat_ratio(), Some(1.0));
    }

    #[test]
    fn image_without_usage_is_measured_by_pages() {
        let before = image(7, &[(1, 10, &[(0, 0), (1, 0)])]);
        let report = compare(&before, &image(7, &[(1, 10, &[(1, 3)])]));
        assert_eq!(report.total.heat_ratio(), Some(0.5));
    }

    #[test]
    fn image_of_another_cluster_is_unknown() {
        let before = image(7, &[(1, 10, &[(0, 5), (1, 1)])]);
        let report = compare(&before, &image(8, &[(1, 10, &[(0, 5), (1, 1)])]));
        assert_eq!((report.total.unknown_pages, report.total.heat_ratio()), (2, None));
    }
}
