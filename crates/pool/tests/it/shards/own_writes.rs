//! Clients that read what they wrote, on two shards whose standbys are late.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
};

use super::{KEYED, Stage};
use crate::{
    cluster::{direct, until},
    route::{asked, client_at, run},
    support::Raw,
};

/// Where a key's rows were counted, and how many of a client there are.
fn read(raw: &mut Raw, client: u32, key: i64, is_extended: bool) -> (u16, u32) {
    let sql = format!(
        "select current_setting('port') || ':' || count(*) from orders \
         where id = {key} and note = 'c{client}'"
    );
    let answer = if is_extended { run(raw, &sql, &[]) } else { asked(raw, &sql) };
    let value = answer.split(", ").find(|part| part.contains(':'));
    let (port, rows) = value.unwrap_or_else(|| panic!("{answer}")).split_once(':').unwrap();
    (port.parse().unwrap(), rows.parse().unwrap())
}

/// How many rows of a client there are on all shards.
fn read_all(raw: &mut Raw, client: u32) -> u32 {
    let answer = asked(raw, &format!("select count(*) from orders where note = 'c{client}'"));
    answer.split(", ").next().unwrap().parse().unwrap_or_else(|_| panic!("{answer}"))
}

/// Writes a row: by itself, in a batch, or in a transaction.
fn write(raw: &mut Raw, client: u32, key: i64, how: u32) {
    let sql = format!("insert into orders (id, note) values ({key}, 'c{client}')");
    let answer = match how % 3 {
        0 => asked(raw, &sql),
        1 => run(raw, &sql, &[]),
        _ => {
            asked(raw, "begin");
            asked(raw, &sql);
            asked(raw, "commit")
        }
    };
    assert!(answer.ends_with(", I"), "{answer}");
}

/// Writes a row on each shard.
fn copy(raw: &mut Raw, client: u32, keys: [i64; 2]) {
    raw.query("copy orders (id, note) from stdin");
    raw.until(b'G');
    for key in keys {
        raw.send(b'd', format!("{key}\tc{client}\n").as_bytes());
    }
    raw.send(b'c', b"");
    let told = crate::route::said(raw);
    assert!(told.ends_with("COPY 2, I"), "{told}");
}

impl Stage {
    /// Reads until a standby of each shard has answered.
    fn until_standbys_serve(&self, raw: &mut Raw, keys: [i64; 2]) {
        for (servers, key) in self.shards.iter().zip(keys) {
            let is_standby = |port: u16| servers[1..].iter().any(|it| it.port() == port);
            until("a standby serves", || is_standby(read(raw, 0, key, false).0));
        }
    }
}

#[test]
fn a_late_standby_of_one_shard_is_left_out_by_who_wrote_there() {
    let more = format!(
        "cluster = {{ role = \"auto\" }}\nrouting = {{ read-your-writes = true }}\n{KEYED}"
    );
    let Some(stage) = Stage::set("own_writes_shards", 1, &more) else { return };
    let keys = stage.keys();
    let mut raw = stage.client();
    let (mut other, port) =
        (stage.client(), |shard: usize, at: usize| stage.shards[shard][at].port());
    stage.until_standbys_serve(&mut raw, keys);
    direct(&stage.shards[1][1], "select pg_wal_replay_pause()");
    copy(&mut raw, 1, keys);
    write(&mut raw, 1, keys[1], 0);
    // On the other shard a standby serves as soon as it has the rows; here none does.
    until("the other shard's standby serves", || {
        let (at, rows) = read(&mut raw, 1, keys[0], false);
        assert_eq!(rows, 1, "at {at}");
        at == port(0, 1)
    });
    for round in 0..30 {
        assert_eq!(read(&mut raw, 1, keys[1], round % 2 == 0), (port(1, 0), 2));
        assert_eq!(read_all(&mut raw, 1), 3);
    }
    until("others read there", || read(&mut other, 1, keys[1], false) == (port(1, 1), 0));
    direct(&stage.shards[1][1], "select pg_wal_replay_resume()");
    until("it serves again", || {
        let (at, rows) = read(&mut raw, 1, keys[1], true);
        assert_eq!(rows, 2, "at {at}");
        at == port(1, 1)
    });
}

/// Writes and reads at once, on both shards and over both, by several clients.
#[test]
fn own_writes_on_two_shards_are_found_with_it_and_missed_without() {
    const WRITES: u32 = 300;
    for is_on in [true, false] {
        let routing = if is_on { "read-your-writes = true" } else { "primary-reads = false" };
        let more = format!("cluster = {{ role = \"auto\" }}\nrouting = {{ {routing} }}\n{KEYED}");
        let Some(stage) = Stage::set("many_own_writes_shards", 1, &more) else { return };
        let keys = stage.keys();
        stage.until_standbys_serve(&mut stage.client(), keys);
        for (shard, delay) in [(0, "5ms"), (1, "30ms")] {
            let sql = format!("alter system set recovery_min_apply_delay = '{delay}'");
            direct(&stage.shards[shard][1], &sql);
            direct(&stage.shards[shard][1], "select pg_reload_conf()");
        }
        let missed = Arc::new(AtomicU32::new(0));
        let at_standbys = [0, 1].map(|_| Arc::new(AtomicU32::new(0)));
        let is_over = Arc::new(AtomicBool::new(false));
        let (address, primaries) = (stage.address(), [0, 1].map(|it| stage.shards[it][0].port()));
        let work = |client: u32| {
            let (missed, at_standbys, is_over) =
                (Arc::clone(&missed), at_standbys.clone(), Arc::clone(&is_over));
            move || {
                let mut raw = client_at(address);
                let mut written = [0, 0];
                let note = |is_right: bool| {
                    if !is_right {
                        missed.fetch_add(1, Ordering::Relaxed);
                        is_over.store(!is_on, Ordering::Relaxed);
                    }
                };
                for number in 1..=WRITES {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    if number % 10 == 0 {
                        copy(&mut raw, client, keys);
                        written = written.map(|rows| rows + 1);
                    } else {
                        let shard = usize::from((number + client).is_multiple_of(2));
                        write(&mut raw, client, keys[shard], number);
                        written[shard] += 1;
                    }
                    // Every now and then for long enough that standbys get on.
                    for round in 0..if number % 50 == 0 { 100 } else { 2 } {
                        for shard in [0, 1] {
                            let (port, rows) = read(&mut raw, client, keys[shard], round % 2 == 0);
                            note(rows == written[shard]);
                            let is_standby = port != primaries[shard];
                            at_standbys[shard].fetch_add(is_standby.into(), Ordering::Relaxed);
                        }
                        note(read_all(&mut raw, client) == written.iter().sum::<u32>());
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
