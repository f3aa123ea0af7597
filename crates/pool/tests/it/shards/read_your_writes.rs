//! Read your writes on two shards whose standbys lag.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use howdah_lab::wait_until;

use super::{KEYED_SHARDING, ShardFixture};
use crate::{
    cluster::query_server,
    routing::{log_in_to_app, query_reply, run_extended},
    support::{RawClient, WAIT_TIMEOUT},
};

/// Counts a client's rows for a key: the port of the server, and the count.
fn read(raw: &mut RawClient, client: u32, key: i64, is_extended: bool) -> (u16, u32) {
    let sql = format!(
        "select current_setting('port') || ':' || count(*) from orders \
         where id = {key} and note = 'c{client}'"
    );
    let answer = if is_extended { run_extended(raw, &sql, &[]) } else { query_reply(raw, &sql) };
    let value = answer.split(", ").find(|part| part.contains(':'));
    let (port, rows) = value.unwrap_or_else(|| panic!("{answer}")).split_once(':').unwrap();
    (port.parse().unwrap(), rows.parse().unwrap())
}

/// Counts a client's rows on all shards.
fn read_all_shards(raw: &mut RawClient, client: u32) -> u32 {
    let answer = query_reply(raw, &format!("select count(*) from orders where note = 'c{client}'"));
    answer.split(", ").next().unwrap().parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// Writes a row: by a simple query, in a batch, or in a transaction.
fn write(raw: &mut RawClient, client: u32, key: i64, how: u32) {
    let sql = format!("insert into orders (id, note) values ({key}, 'c{client}')");
    let answer = match how % 3 {
        0 => query_reply(raw, &sql),
        1 => run_extended(raw, &sql, &[]),
        _ => {
            query_reply(raw, "begin");
            query_reply(raw, &sql);
            query_reply(raw, "commit")
        }
    };
    assert!(answer.ends_with(", I"), "{answer}");
}

/// Writes a row on each shard.
fn copy_rows(raw: &mut RawClient, client: u32, keys: [i64; 2]) {
    raw.send_query("copy orders (id, note) from stdin");
    raw.read_until(b'G');
    for key in keys {
        raw.send(b'd', format!("{key}\tc{client}\n").as_bytes());
    }
    raw.send(b'c', b"");
    let received = crate::routing::read_reply(raw);
    assert!(received.ends_with("COPY 2, I"), "{received}");
}

impl ShardFixture {
    /// Reads until a standby of each shard has served a read.
    fn wait_until_standbys_serve(&self, raw: &mut RawClient, keys: [i64; 2]) {
        for (servers, key) in self.shards.iter().zip(keys) {
            let is_standby = |port: u16| servers[1..].iter().any(|it| it.port() == port);
            wait_until("reads at a standby", WAIT_TIMEOUT, || {
                is_standby(read(raw, 0, key, false).0)
            });
        }
    }
}

#[test]
fn lagging_standby_is_skipped_by_clients_that_wrote() {
    let more = format!(
        "cluster = {{ role = \"auto\" }}\nrouting = {{ read-your-writes = true }}\n{KEYED_SHARDING}"
    );
    let Some(fixture) = ShardFixture::start("own_writes_shards", 1, &more) else { return };
    let keys = fixture.keys();
    let mut raw = fixture.client();
    let (mut other, port) =
        (fixture.client(), |shard: usize, at: usize| fixture.shards[shard][at].port());
    fixture.wait_until_standbys_serve(&mut raw, keys);
    query_server(&fixture.shards[1][1], "select pg_wal_replay_pause()");
    copy_rows(&mut raw, 1, keys);
    write(&mut raw, 1, keys[1], 0);
    // On the other shard the standby serves reads once it has the rows; on this one it does not.
    wait_until("the other shard's standby to serve", WAIT_TIMEOUT, || {
        let (at, rows) = read(&mut raw, 1, keys[0], false);
        assert_eq!(rows, 1, "at {at}");
        at == port(0, 1)
    });
    for round in 0..30 {
        assert_eq!(read(&mut raw, 1, keys[1], round % 2 == 0), (port(1, 0), 2));
        assert_eq!(read_all_shards(&mut raw, 1), 3);
    }
    wait_until("another client to read there", WAIT_TIMEOUT, || {
        read(&mut other, 1, keys[1], false) == (port(1, 1), 0)
    });
    query_server(&fixture.shards[1][1], "select pg_wal_replay_resume()");
    wait_until("the server to serve again", WAIT_TIMEOUT, || {
        let (at, rows) = read(&mut raw, 1, keys[1], true);
        assert_eq!(rows, 2, "at {at}");
        at == port(1, 1)
    });
}

/// Concurrent writes and reads by several clients, on each shard and across both.
#[test]
fn own_writes_are_missed_only_if_disabled() {
    const WRITES: u32 = 300;
    for is_on in [true, false] {
        let routing = if is_on { "read-your-writes = true" } else { "primary-reads = false" };
        let more =
            format!("cluster = {{ role = \"auto\" }}\nrouting = {{ {routing} }}\n{KEYED_SHARDING}");
        let Some(fixture) = ShardFixture::start("many_own_writes_shards", 1, &more) else { return };
        let keys = fixture.keys();
        fixture.wait_until_standbys_serve(&mut fixture.client(), keys);
        for (shard, delay) in [(0, "5ms"), (1, "30ms")] {
            let sql = format!("alter system set recovery_min_apply_delay = '{delay}'");
            query_server(&fixture.shards[shard][1], &sql);
            query_server(&fixture.shards[shard][1], "select pg_reload_conf()");
        }
        let missed = Arc::new(AtomicU32::new(0));
        let at_standbys = [0, 1].map(|_| Arc::new(AtomicU32::new(0)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, primaries) =
            (fixture.address(), [0, 1].map(|it| fixture.shards[it][0].port()));
        let work = |client: u32| {
            let (missed, at_standbys, is_over) =
                (Arc::clone(&missed), at_standbys.clone(), Arc::clone(&is_over));
            move || {
                let mut raw = log_in_to_app(address);
                let mut written = [0, 0];
                let record = |is_correct: bool| {
                    if !is_correct {
                        missed.fetch_add(1, Ordering::Relaxed);
                        is_over.store(!is_on, Ordering::Relaxed);
                    }
                };
                for number in 1..=WRITES {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    if number % 10 == 0 {
                        copy_rows(&mut raw, client, keys);
                        written = written.map(|rows| rows + 1);
                    } else {
                        let shard = usize::from((number + client).is_multiple_of(2));
                        write(&mut raw, client, keys[shard], number);
                        written[shard] += 1;
                    }
                    // From time to time long enough for standbys to catch up.
                    for round in 0..if number % 50 == 0 { 100 } else { 2 } {
                        for shard in [0, 1] {
                            let (port, rows) = read(&mut raw, client, keys[shard], round % 2 == 0);
                            record(rows == written[shard]);
                            let is_standby = port != primaries[shard];
                            at_standbys[shard].fetch_add(is_standby.into(), Ordering::Relaxed);
                        }
                        record(read_all_shards(&mut raw, client) == written.iter().sum::<u32>());
                    }
                }
            }
        };
        let clients: Vec<_> = (1..=4).map(|client| thread::spawn(work(client))).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        let missed = missed.load(Ordering::Relaxed);
        let at_standbys = at_standbys.map(|it| it.load(Ordering::Relaxed));
        assert_eq!(missed == 0, is_on, "{missed} reads missed what was written");
        assert!(at_standbys.iter().all(|reads| *reads > 0), "{at_standbys:?} reads at standbys");
        println!("read your writes {is_on}: {missed} missed, {at_standbys:?} reads at standbys");
    }
}
