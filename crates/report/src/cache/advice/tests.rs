//! Each statement of the advice, for caches of several ages and fillings.

use std::collections::BTreeMap;

use howdah_warm::{
    advise::{HugePages, MemoryCost, MemoryInfo, alternatives},
    dump::DumpResult,
    image::{ImageOrigin, ImageSource, QualifiedName, RelationName},
};

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn candidate(schema: &str, name: &str, length: u64, fits: bool) -> CacheCandidate {
    let name = QualifiedName { schema: schema.into(), name: name.into() };
    CacheCandidate {
        name: RelationName::Own(name),
        length,
        cached: length / 2,
        heat: 1.5,
        sum: 0,
        fits,
    }
}

/// Returns advice on a cache of 16 MiB.
fn advice(usage: [u64; 6], cache_age: Option<Duration>) -> CacheAdvice {
    let free = 2048 - usage.iter().sum::<u64>();
    CacheAdvice {
        dumped: DumpResult {
            image: CacheImage {
                origin: ImageOrigin {
                    server_version: 170_000,
                    system_identifier: 1,
                    page_bytes: 8192,
                    buffers: 2048,
                    taken_at_us: 0,
                    source: ImageSource::Memory,
                },
                databases: BTreeMap::new(),
                relations: Vec::new(),
            },
            not_from_memory: None,
            unnamed: Vec::new(),
            in_transition: 0,
        },
        memory_info: MemoryInfo {
            shared_memory_bytes: None,
            huge_pages: HugePages { setting: "on".into(), status: None },
            huge_page_count: None,
            sessions: 1,
            max_connections: 100,
            hits_and_reads: (90, 10),
            statistics_age: None,
            cache_age,
            relations: Vec::new(),
        },
        relations: Vec::new(),
        usage,
        free,
        alternatives: alternatives(2048, usage, free, cache_age),
        candidates: vec![
            candidate("pg_catalog", "pg_tablespace", 1, true),
            candidate("public", "small", 1, true),
            candidate("pg_catalog", "pg_class", 14, true),
            candidate("public", "orders", 900, true),
            candidate("public", "log", 5000, false),
        ],
        memory: MemoryCost {
            bytes: 16 << 20,
            faults: 4096,
            fault_seconds: 0.007,
            table_bytes_per_session: 32_768,
            table_bytes_now: 32_768,
            table_bytes_max: 3_276_800,
            table_bytes_measured: None,
        },
    }
}

/// The lines on other sizes: a quarter, half, the same, two and four times.
fn sizes(advice: &CacheAdvice) -> Vec<String> {
    let describe = |size| description(advice, size);
    advice.alternatives.iter().map(describe).collect()
}

#[test]
fn free_buffers_are_no_argument_before_a_day() {
    let usage = [0, 100, 0, 0, 0, 300];
    let young = sizes(&advice(usage, Some(Duration::from_secs(120))));
    let unknown = "not known yet: the cache is 2 min old, which is less than 24 h";
    assert_eq!((&*young[0], &*young[3], &*young[4]), (unknown, unknown, unknown));
    let old = sizes(&advice(usage, Some(DAY * 3)));
    assert_eq!(old[3], "no use: 12.88 MiB are free, in a cache that is 3 days old");
    assert_eq!(old[1], "enough for every page that was used again, in a cache that is 3 days old");
    let ageless = sizes(&advice(usage, None));
    assert_eq!(ageless[4], "not known: the age of the cache is unknown, and 24 h are needed");
}

#[test]
fn full_cache_has_statements_on_its_use() {
    let reused = sizes(&advice([0, 48, 500, 500, 500, 500], Some(Duration::from_secs(120))));
    assert_eq!(reused[0], "too small: loses 11.62 MiB of pages that were used again");
    assert_eq!(reused[2], "present size");
    assert_eq!(reused[4], "may help: at least half of the pages were used again");
    let scanned = sizes(&advice([1000, 848, 100, 100, 0, 0], Some(DAY)));
    assert_eq!(
        scanned[3],
        "no benefit visible: most pages were not used again, in a cache that is 24 h old"
    );
}

#[test]
fn column_and_sentence_count_the_same_pages() {
    // 3.91 MiB were used again, which a quarter of the cache nearly retains.
    let table = table(&advice([0, 500, 300, 0, 0, 300], Some(DAY)), "shop", 10);
    let line = |size: &str| table.lines().find(|line| line.trim().starts_with(size)).unwrap();
    let quarter: Vec<_> = line("4.00 MiB").split_whitespace().collect();
    assert_eq!(quarter[..6], ["4.00", "MiB", "4.00", "MiB", "4.00", "MiB"]);
    assert!(
        line("4.00 MiB").ends_with("too small: loses 704.00 KiB of pages that were used again")
    );
    assert!(line("8.00 MiB").contains("4.69 MiB  enough for every page"), "{table}");
    assert!(table.contains("USED AGAIN: pages with a usage count of at least 2."));
}

#[test]
fn candidates_are_listed_largest_first_without_small_ones() {
    let advice = advice([0, 48, 500, 500, 500, 500], Some(DAY));
    let text = table(&advice, "shop", 2);
    let (_, list) = text.split_once("WOULD FIT, largest first\n").unwrap();
    let lines: Vec<_> = list.lines().take(6).collect();
    assert!(lines[1].ends_with("no  public.log"), "{list}");
    assert!(lines[2].ends_with("yes  public.orders"), "{list}");
    assert_eq!(lines[3], "  112.00 KiB in 1 more: --limit 0 shows all");
    assert_eq!(lines[4], "   16.00 KiB in 2 relations of one page");
    assert!(
        lines[5].starts_with("4 of 5 fit together, 7.16 MiB of the cache's 16.00 MiB"),
        "{list}"
    );
}

#[test]
fn period_of_the_statistics_is_stated() {
    let period = |statistics, cache| statistics_period(statistics, Some(cache));
    assert_eq!(
        period(None, DAY),
        "since the statistics began, which may be before the server's start"
    );
    assert_eq!(period(Some(DAY), DAY * 2), "in the 24 h since a statistics reset");
    assert_eq!(
        period(Some(DAY * 3), DAY),
        "in the 3 days since a statistics reset, which includes work before the cache was empty"
    );
    let table = table(&advice([0; 6], Some(Duration::from_secs(130))), "shop", 10);
    assert!(table.contains("\nage       empty 2 min ago\n"), "{table}");
}
