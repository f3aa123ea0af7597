//! Snapshots and restores the operating system's page cache of real servers.

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
};

use howdah_connect::Client;
use howdah_lab::Cluster;
use howdah_warm::{
    CacheImage, dump,
    image::{Fork, ImageSource, Relation},
    load::{self, LoadOptions},
    os_cache::{self, FileGeometry, OsCacheSnapshot},
};
use rustix::fs::{Advice, fadvise};

use crate::support::{SCHEMA, session, start, target};

const TABLE: &str = "\"Odd.Schema\".\"ta,ble\"";

fn snapshot(cluster: &Cluster) -> CacheImage {
    let geometry = FileGeometry::default();
    let OsCacheSnapshot { image, .. } =
        os_cache::snapshot(cluster.data_dir(), geometry, &|| true).unwrap();
    image
}

/// The file of a relation's first segment.
fn file(cluster: &Cluster, client: &mut Client, relation: &str) -> PathBuf {
    let sql = format!("SELECT pg_relation_filepath('{relation}')");
    cluster.data_dir().join(client.one_value(&sql).unwrap().unwrap())
}

/// Writes a file back and evicts it; some file systems ignore the latter.
fn evict(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
}

fn main_blocks(relation: &Relation) -> BTreeSet<u32> {
    let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main);
    main.map(|main| main.pages.iter().map(|page| page.block).collect()).unwrap_or_default()
}

fn blocks(image: &CacheImage, path: &Path) -> BTreeSet<u32> {
    let filenode: u32 = path.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let found = image.relations.iter().find(|relation| relation.file.filenode == filenode);
    found.map(main_blocks).unwrap_or_default()
}

#[test]
fn evicted_files_are_cached_again_by_name_and_by_file() {
    for major in [15, 18] {
        let test = format!("os cache on {major}");
        let Some(cluster) = start(&test, Cluster::builder().major(major)) else { continue };
        let here = target(&cluster, "postgres");
        let mut client = session(&here);
        client.query(SCHEMA).unwrap();
        client.query("VACUUM").unwrap();
        client.query("CHECKPOINT").unwrap();
        let table = file(&cluster, &mut client, TABLE);
        let mut image = snapshot(&cluster);
        let before = blocks(&image, &table);
        assert!(before.len() > 300, "just written: {}", before.len());
        assert_eq!(image.origin.source, ImageSource::OsCache);
        assert_eq!(dump::name_relations(&mut image, &here).unwrap().len(), 0);
        // `template0` cannot be connected to.
        let is_here = |it: &&Relation| image.database_name(it.file.database) == Some("postgres");
        let here_count = image.relations.iter().filter(is_here).count();
        assert!(here_count > 50, "{here_count}");
        assert!(image.relations.iter().filter(is_here).all(|it| it.name.is_some()), "{major}");
        assert_eq!(dump::file_geometry(&mut client).unwrap(), FileGeometry::default());

        evict(&table);
        let evicted = blocks(&snapshot(&cluster), &table);
        if evicted == before {
            eprintln!("skipped: the file system does not evict pages");
            continue;
        }
        assert!(evicted.is_empty(), "{major}: {}", evicted.len());
        let geometry = FileGeometry::default();
        let by_file = os_cache::blocks_by_file(&image);
        let restored =
            os_cache::restore(&by_file, cluster.data_dir(), geometry, Some(1 << 30), &()).unwrap();
        assert!(restored.resident_before.unwrap() < restored.requested, "{restored:?}");
        assert!(restored.share().unwrap() > 0.99, "{restored:?}");
        assert!(blocks(&snapshot(&cluster), &table).is_superset(&before));

        // Moved to another schema, and rewritten.
        client.query("ALTER TABLE \"Odd.Schema\".\"ta,ble\" SET SCHEMA public").unwrap();
        client.query("VACUUM FULL long").unwrap();
        client.query("CHECKPOINT").unwrap();
        let rewritten = file(&cluster, &mut client, "long");
        evict(&table);
        evict(&rewritten);
        assert!(blocks(&snapshot(&cluster), &rewritten).is_empty());
        let options = LoadOptions::default();
        let (located, outcomes) = load::locate_blocks(&image, &here, &options, &()).unwrap();
        assert_eq!(outcomes.len(), image.relations.len());
        let restored =
            os_cache::restore(&located, cluster.data_dir(), geometry, None, &()).unwrap();
        assert!(restored.share().unwrap() > 0.99, "{restored:?}");
        let after = snapshot(&cluster);
        assert!(blocks(&after, &table).is_superset(&before), "found by its file");
        assert!(!blocks(&after, &rewritten).is_empty(), "found by its name");
    }
}

#[test]
fn missing_short_and_sparse_files_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["base/5", "global", "pg_tblspc/900/PG_17_202406281/5"] {
        std::fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    std::fs::write(folder.path().join("PG_VERSION"), "17\n").unwrap();
    // Segments of four pages: three of them, the last with two pages and a part.
    let geometry = FileGeometry { page_bytes: 8192, segment_bytes: 4 * 8192 };
    let page = vec![7; 8192];
    for (name, bytes) in [("10", 4 * 8192), ("10.1", 4 * 8192), ("10.2", 2 * 8192 + 5)] {
        std::fs::write(folder.path().join("base/5").join(name), &page.repeat(5)[..bytes]).unwrap();
    }
    let space = folder.path().join("pg_tblspc/900/PG_17_202406281/5");
    std::fs::write(space.join("11_vm"), &page).unwrap();
    File::create(space.join("12")).unwrap().set_len(8192 * 4).unwrap();
    std::fs::write(space.join("t3_13"), &page).unwrap();
    let taken = os_cache::snapshot(folder.path(), geometry, &|| true).unwrap();
    assert_eq!((taken.files, taken.pages), (5, 4 + 4 + 2 + 1 + 4));
    let cached: Vec<_> = taken
        .image
        .relations
        .iter()
        .map(|relation| (relation.file.tablespace, relation.file.filenode, relation.page_count()))
        .collect();
    assert!(cached.contains(&(1663, 10, 10)) && cached.contains(&(900, 11, 1)), "{cached:?}");

    std::fs::remove_file(folder.path().join("base/5/10.1")).unwrap();
    std::fs::write(folder.path().join("base/5/10.2"), &page).unwrap();
    let blocks = os_cache::blocks_by_file(&taken.image);
    let restored = os_cache::restore(&blocks, folder.path(), geometry, None, &()).unwrap();
    assert_eq!((restored.missing, restored.beyond_end), (4, 1), "{restored:?}");
    let (path, _) = restored.first_missing.clone().unwrap();
    assert!(path.ends_with("base/5/10.1"), "{}", path.display());
    let present = restored.requested - 5;
    assert_eq!(restored.resident, Some(present), "{restored:?}");
    assert!(restored.share().unwrap() < 1.0);
}
