//! A client's key for cancels is good wherever the client is.

use std::io::Write as _;

use super::{Line, until};
use crate::support::Raw;

/// Logs in, and gives the key beside.
fn log_in(line: &Line, minor: u16) -> (Raw, Vec<u8>) {
    let mut client = Raw::connect(line.stage.address());
    client.start(minor, "");
    let key = client.until(b'Z').into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
    (client, key)
}

/// Sends a CancelRequest, and waits for the end of its connection, which says nothing.
fn cancel(line: &Line, key: &[u8]) {
    let mut request = u32::try_from(8 + key.len()).unwrap().to_be_bytes().to_vec();
    request.extend_from_slice(&80_877_102_u32.to_be_bytes());
    request.extend_from_slice(key);
    let mut raw = Raw::connect(line.stage.address());
    raw.0.write_all(&request).unwrap();
    assert!(raw.is_hung_up_on());
}

/// Waits until so many of these statements run on the server.
fn until_running(line: &Line, count: usize) {
    let running = "select count(*) from pg_stat_activity where query like 'select pg_sleep%' \
                   and state = 'active'";
    until("it runs", || line.stage.direct(running) == count.to_string());
}

fn is_told_that_it_was_cancelled(client: &mut Raw) {
    let told = client.until(b'E').pop().unwrap().1;
    assert!(memchr::memmem::find(&told, b"C57014\0").is_some(), "{}", told.escape_ascii());
    client.until(b'Z');
}

#[test]
fn cancels_find_clients_of_the_old_process_and_clients_that_moved() {
    let Some(mut line) = Line::start("cancels") else { return };
    let mut clients = [log_in(&line, 0), log_in(&line, 2)];
    let mut bystander = log_in(&line, 0).0;
    bystander.query("select pg_sleep(600)");
    for (client, _) in &mut clients {
        client.query("select pg_sleep(600)");
    }
    until_running(&line, 3);

    // Their statements run in the old process; who knocks now is heard by the new one.
    let old = line.hand_over();
    until("the old one takes nobody", || old.was_taken_over());
    for (at, (client, key)) in clients.iter_mut().enumerate() {
        cancel(&line, key);
        is_told_that_it_was_cancelled(client);
        until_running(&line, 2 - at);
    }
    // They go over, and their keys go with them.
    until("they have moved", || line.ports().len() == 2);
    for (client, key) in &mut clients {
        client.query("select pg_sleep(600)");
        until_running(&line, 2);
        cancel(&line, key);
        is_told_that_it_was_cancelled(client);
        until_running(&line, 1);
    }
    // A key that is nobody's does nothing.
    cancel(&line, &[0, 0, 0, 7, 1, 2, 3, 4]);
    until_running(&line, 1);
    drop(bystander);
    old.end().unwrap().wait();
    old.join().unwrap();

    // A second time: the key is of a process that is long gone.
    line.until_reachable();
    clients[0].0.query("select pg_sleep(600)");
    until_running(&line, 1);
    let old = line.hand_over();
    until("the other has moved", || line.ports().len() == 1);
    cancel(&line, &clients[0].1);
    is_told_that_it_was_cancelled(&mut clients[0].0);
    old.end().unwrap().wait();
    old.join().unwrap();
    for (client, key) in &mut clients {
        client.query("select pg_sleep(600)");
        until_running(&line, 1);
        cancel(&line, key);
        is_told_that_it_was_cancelled(client);
        until_running(&line, 0);
    }
}
