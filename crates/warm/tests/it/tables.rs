//! Warms whole relations by name, and ranges of them.

use howdah_lab::Cluster;
use howdah_warm::{
    image::Fork,
    load::{
        PrewarmMode, RelationProblem,
        table::{TableError, TableLoadOptions, TableResult, table},
    },
};

use crate::support::{SCHEMA, cached, session, start, target};

const PARTITIONED: &str = "
    CREATE TABLE parted (n int, pad text) PARTITION BY RANGE (n);
    CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (500);
    CREATE TABLE high PARTITION OF parted FOR VALUES FROM (500) TO (1001);
    CREATE INDEX ON parted (n);
    INSERT INTO parted SELECT n, repeat('z', 400) FROM generate_series(1, 1000) n;
    CREATE VIEW seen AS SELECT 1;";

fn names(warmed: &[TableResult]) -> Vec<String> {
    let mut names: Vec<_> = warmed.iter().map(|warmed| warmed.name.to_string()).collect();
    names.sort_unstable();
    names
}

fn blocks(warmed: &[TableResult]) -> u64 {
    warmed.iter().map(|warmed| warmed.blocks).sum()
}

#[test]
fn indexes_toast_and_partitions_are_loaded_with_a_table() {
    let Some(mut cluster) = start("table", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    let mut client = session(&here);
    client.query(SCHEMA).unwrap();
    client.query(PARTITIONED).unwrap();
    client.query("CREATE EXTENSION pg_prewarm").unwrap();
    drop(client);
    cluster.restart().unwrap();
    let warm = |patterns: &[&str], options: &TableLoadOptions| {
        let patterns: Vec<_> = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        table(&here, &patterns, options, &())
    };
    let all = warm(&["parted", "long"], &TableLoadOptions::default()).unwrap();
    let found = names(&all);
    assert_eq!(found.len(), 11, "{found:?}");
    for name in
        ["public.low", "public.high", "public.low_n_idx", "public.high_n_idx", "public.long"]
    {
        assert!(found.contains(&name.to_owned()), "{name} in {found:?}");
    }
    assert!(found.iter().filter(|name| name.starts_with("pg_toast.")).count() == 6);
    assert!(all.iter().all(|warmed| warmed.blocks == warmed.requested && warmed.problem.is_none()));
    let mut client = session(&here);
    for name in ["low", "high", "low_n_idx"] {
        let length = format!("SELECT pg_relation_size('{name}') / 8192");
        let length: usize = client.one_value(&length).unwrap().unwrap().parse().unwrap();
        assert_eq!(cached(&mut client, name).len(), length, "{name}");
    }

    let only = TableLoadOptions { only: true, ..TableLoadOptions::default() };
    assert_eq!(
        names(&warm(&["l*"], &only).unwrap()),
        ["public.long", "public.low", "public.low_n_idx"]
    );
    let odd = "\"Odd.Schema\".\"ta,ble\"";
    let part = TableLoadOptions {
        first: Some(10),
        last: Some(19),
        only: true,
        ..TableLoadOptions::default()
    };
    assert_eq!(blocks(&warm(&[odd], &part).unwrap()), 10);
    assert_eq!(cached(&mut client, odd), (10..=19).collect());
    let map =
        TableLoadOptions { fork: Fork::FreeSpaceMap, only: true, ..TableLoadOptions::default() };
    assert_eq!(blocks(&warm(&[odd], &map).unwrap()), 3);
    let read =
        TableLoadOptions { mode: PrewarmMode::Read, only: true, ..TableLoadOptions::default() };
    assert!(blocks(&warm(&[odd], &read).unwrap()) > 300);
    assert_eq!(cached(&mut client, odd).len(), 10, "only the operating system's cache was filled");

    let error =
        |patterns: &[&str], options: &TableLoadOptions| warm(patterns, options).unwrap_err();
    assert!(matches!(error(&["missing"], &only), TableError::NoMatch { .. }));
    assert!(matches!(error(&["seen"], &only), TableError::NoMatch { .. }));
    assert!(matches!(error(&["l*"], &part), TableError::NotOneRelation { count: 3 }));
    let beyond = TableLoadOptions { last: Some(1 << 20), ..part };
    assert!(matches!(error(&[odd], &beyond), TableError::Range { .. }));
}

#[test]
fn without_pg_prewarm_only_buffer_mode_works() {
    let Some(mut cluster) = start("table by queries", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here).query(SCHEMA).unwrap();
    session(&here).query(PARTITIONED).unwrap();
    cluster.restart().unwrap();
    let options = TableLoadOptions { only: true, ..TableLoadOptions::default() };
    let low = ["low".to_owned()];
    let warmed = table(&here, &low, &options, &()).unwrap();
    assert!(warmed[0].blocks > 10 && warmed[0].blocks == warmed[0].requested);
    assert_eq!(cached(&mut session(&here), "low").len() as u64, warmed[0].blocks);
    let read = TableLoadOptions { mode: PrewarmMode::Read, ..options };
    let warmed = table(&here, &low, &read, &()).unwrap();
    assert!(matches!(
        warmed[0].problem,
        Some(RelationProblem::NoMethod("pages into the operating system's cache"))
    ));
}
