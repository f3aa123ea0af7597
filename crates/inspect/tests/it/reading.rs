//! Shared memory as read from outside, beside what the server's own functions say of it.

use std::collections::HashSet;

use howdah_connect::Client;
use howdah_inspect::Buffer;

use crate::support::{number, on_every_major};

/// A table larger than the buffers, its first pages used often, some dirty.
const LOAD: &str = "
    CREATE TABLE filler AS SELECT repeat('x', 400) AS pad FROM generate_series(1, 20000);
    CREATE TABLE hot AS SELECT n, repeat('y', 400) AS pad FROM generate_series(1, 500) n;
    CHECKPOINT;
    SELECT count(*) FROM hot; SELECT count(*) FROM hot; SELECT count(*) FROM hot;
    UPDATE hot SET n = -n WHERE n < 50;";

/// What `pg_buffercache` says of the table `hot`: fork, block, usage count, dirty.
fn told(client: &mut Client) -> HashSet<(u32, u32, u8, bool)> {
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
fn the_buffer_map_is_what_pg_buffercache_says() {
    on_every_major("buffer map", |server, client| {
        client.query("CREATE EXTENSION pg_buffercache").unwrap();
        client.query(LOAD).unwrap();
        let filenode = number(client, "SELECT pg_relation_filenode('hot')");
        let told = told(client);
        let map = server.buffers().unwrap();
        assert_eq!(u64::from(map.count()), 512);
        let read: HashSet<_> = map
            .read()
            .unwrap()
            .filter(|buffer| u64::from(buffer.filenode) == filenode)
            .map(|Buffer { fork, block, usage, is_dirty, .. }| {
                (fork.number(), block, usage, is_dirty)
            })
            .collect();
        assert!(told.len() > 20, "{told:?}");
        assert_eq!(read, told, "PostgreSQL {}", server.major());
    });
}

#[test]
fn the_sweep_moves_as_buffers_are_handed_out() {
    on_every_major("clock sweep", |server, client| {
        let sweep = server.clock_sweep().unwrap();
        assert!(sweep.read().unwrap().has_free_buffers);
        // More pages than there are buffers; an update goes through no ring.
        let update = "UPDATE filler SET pad = pad || 'z'";
        client.query(LOAD).and_then(|_| client.query(update)).unwrap();
        let before = sweep.read().unwrap();
        assert!(!before.has_free_buffers);
        client.query(update).unwrap();
        let after = sweep.read().unwrap();
        assert!(after.hand() > before.hand() + 512, "{before:?} {after:?}");
    });
}
