//! Compares shared memory read from outside with what the server's own functions report.

use std::collections::HashSet;

use howdah_connect::Client;
use howdah_inspect::BufferDesc;

use crate::support::{number, on_every_major};

/// A table larger than the buffer pool, and a small one that is used often and partly dirty.
const LOAD: &str = "
    CREATE TABLE filler AS SELECT repeat('x', 400) AS pad FROM generate_series(1, 20000);
    CREATE TABLE hot AS SELECT n, repeat('y', 400) AS pad FROM generate_series(1, 500) n;
    CHECKPOINT;
    SELECT count(*) FROM hot; SELECT count(*) FROM hot; SELECT count(*) FROM hot;
    UPDATE hot SET n = -n WHERE n < 50;";

/// The buffers of table `hot` according to `pg_buffercache`: fork, block, usage count, dirty.
fn pg_buffercache_entries(client: &mut Client) -> HashSet<(u32, u32, u8, bool)> {
    let sql = "SELECT relforknumber, relblocknumber, usagecount, isdirty FROM pg_buffercache
        WHERE relfilenode = pg_relation_filenode('hot')";
    let results = client.query(sql).unwrap();
    let text = |row: usize, column| results[0].rows[row].text(column).unwrap().into_owned();
    (0..results[0].rows.len())
        .map(|row| {
            let number = |column| text(row, column).parse().unwrap();
            (number(0), number(1), u8::try_from(number(2)).unwrap(), text(row, 3) == "t")
        })
        .collect()
}

#[test]
fn buffer_map_matches_pg_buffercache() {
    on_every_major("buffer map", |server, client| {
        client.query("CREATE EXTENSION pg_buffercache").unwrap();
        client.query(LOAD).unwrap();
        let filenode = number(client, "SELECT pg_relation_filenode('hot')");
        let expected = pg_buffercache_entries(client);
        let map = server.buffers().unwrap();
        assert_eq!(u64::from(map.count()), 512);
        let read: HashSet<_> = map
            .read()
            .unwrap()
            .filter(|buffer| u64::from(buffer.filenode) == filenode)
            .map(|BufferDesc { fork, block, usage, is_dirty, .. }| {
                (fork.number(), block, usage, is_dirty)
            })
            .collect();
        assert!(expected.len() > 20, "{expected:?}");
        assert_eq!(read, expected, "PostgreSQL {}", server.major());
    });
}

#[test]
fn clock_hand_advances_with_buffer_allocations() {
    on_every_major("clock sweep", |server, client| {
        let sweep = server.clock_sweep().unwrap();
        assert!(sweep.read().unwrap().has_free_buffers);
        // The table has more pages than there are buffers, and an update does not use a ring.
        let update = "UPDATE filler SET pad = pad || 'z'";
        client.query(LOAD).and_then(|_| client.query(update)).unwrap();
        let before = sweep.read().unwrap();
        assert!(!before.has_free_buffers);
        client.query(update).unwrap();
        let after = sweep.read().unwrap();
        assert!(after.hand() > before.hand() + 512, "{before:?} {after:?}");
    });
}
