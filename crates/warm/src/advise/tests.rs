use std::collections::BTreeMap;

use super::*;
use crate::image::{CachedFork, CachedPage, ImageOrigin, ImageSource, QualifiedName, RelationFile};

fn named(name: &str) -> RelationName {
    RelationName::Own(QualifiedName { schema: "public".into(), name: name.into() })
}

fn relation(filenode: u32, name: &str, length: u32, usage: &[u8]) -> Relation {
    let pages =
        usage.iter().zip(0..).map(|(&usage, block)| CachedPage { block, usage, is_dirty: false });
    let fork = CachedFork { fork: Fork::Main, length: Some(length), pages: pages.collect() };
    Relation {
        file: RelationFile { database: 5, tablespace: 1663, filenode },
        name: Some(named(name)),
        is_logged: true,
        forks: vec![fork],
        keys: None,
    }
}

fn image() -> CacheImage {
    CacheImage {
        origin: ImageOrigin {
            server_version: 170_000,
            system_identifier: 1,
            page_bytes: 8192,
            buffers: 12,
            taken_at_us: 0,
            source: ImageSource::Memory,
        },
        databases: BTreeMap::from([(5, "shop".to_owned())]),
        relations: vec![
            relation(1, "warm", 4, &[1, 1, 1, 1]),
            relation(2, "hot", 2, &[5, 5]),
            relation(3, "large", 10, &[5, 5]),
        ],
    }
}

fn memory_info() -> MemoryInfo {
    MemoryInfo {
        shared_memory_bytes: None,
        huge_pages: HugePages { setting: "try".into(), status: None },
        huge_page_count: None,
        sessions: 1,
        max_connections: 100,
        hits_and_reads: (0, 0),
        statistics_age: None,
        cache_age: None,
        relations: vec![(named("cold"), 7), (named("hot"), 1)],
    }
}

#[test]
fn candidates_are_ordered_by_heat_per_page() {
    let found = candidates(&image(), "shop", &memory_info(), 12);
    let lines: Vec<_> = found
        .iter()
        .map(|it| (it.name.to_string(), it.length, it.cached, it.heat, it.sum, it.fits))
        .collect();
    let expected = [
        ("public.hot".to_owned(), 2, 2, 5.0, 2, true),
        ("public.warm".to_owned(), 4, 4, 1.0, 6, true),
        ("public.large".to_owned(), 10, 2, 1.0, 16, false),
        ("public.cold".to_owned(), 7, 0, 0.0, 23, false),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn other_database_has_no_cached_candidates() {
    let found = candidates(&image(), "other", &memory_info(), 12);
    assert!(found.iter().all(|candidate| candidate.cached == 0));
}

#[test]
fn huge_pages_status_follows_the_setting() {
    let in_use = |setting: &str, status: Option<&str>| {
        HugePages { setting: setting.into(), status: status.map(str::to_owned) }.in_use()
    };
    assert_eq!(in_use("on", None), Some(true));
    assert_eq!(in_use("off", None), Some(false));
    assert_eq!(in_use("try", None), None);
    assert_eq!(in_use("try", Some("off")), Some(false));
    assert_eq!(in_use("try", Some("unknown")), None);
}
