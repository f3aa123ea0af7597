//! `howdah pool`: cancel requests between two processes.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use howdah_lab::wait_until;
use rustix::process::Signal;

use crate::pool::{PoolerProcess, TIMEOUT, connect, settings_without_password, start_cluster};

/// Reads messages up to the first one with this tag, and returns its body.
fn read_message(client: &mut TcpStream, tag: u8) -> Vec<u8> {
    loop {
        let mut header = [0; 5];
        client.read_exact(&mut header).unwrap();
        let bytes = u32::from_be_bytes(header[1..].try_into().unwrap());
        let mut body = vec![0; bytes as usize - 4];
        client.read_exact(&mut body).unwrap();
        if header[0] == tag {
            return body;
        }
    }
}

#[test]
fn cancel_request_reaches_client_of_another_process() {
    let Some(server) = start_cluster("peers") else { return };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let settings = |more: &str| settings_without_password(&server, more);
    let mut poolers = folders.each_ref().map(|folder| {
        PoolerProcess::start(folder.path(), "howdah.toml", &settings("admin-users = ['postgres']"))
    });
    // Both have the same list, which contains themselves, and a name.
    let [first, second] = poolers.each_ref().map(PoolerProcess::port);
    let peers =
        format!("admin-users = ['postgres']\npeers = ['127.0.0.1:{first}', 'localhost:{second}']");
    for (folder, pooler) in folders.iter().zip(&mut poolers) {
        fs::write(folder.path().join("howdah.toml"), settings(&peers)).unwrap();
        pooler.signal(Signal::HUP);
        pooler.wait_for_value("settings reloaded");
    }
    for (port, other) in [(first, second), (second, first)] {
        let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        client.set_read_timeout(Some(TIMEOUT)).unwrap();
        let startup = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";
        client.write_all(startup).unwrap();
        let key = read_message(&mut client, b'K');
        client.write_all(b"Q\0\0\0\x19select pg_sleep(600)\0").unwrap();
        let mut at_server = connect(&server.uri("postgres")).unwrap();
        let sql = "select 1 from pg_stat_activity where query like 'select pg_sleep%' \
                   and state = 'active'";
        let mut is_running = || !at_server.query(sql).unwrap()[0].rows.is_empty();
        wait_until("the statement to run", TIMEOUT, &mut is_running);
        // The name may not be resolved yet.
        wait_until("the statement to be cancelled", TIMEOUT, || {
            let mut canceller = TcpStream::connect(("127.0.0.1", other)).unwrap();
            canceller.write_all(&[b"\0\0\0\x10\x04\xd2\x16\x2e", &key[..]].concat()).unwrap();
            assert_eq!(canceller.read(&mut [0]).unwrap_or(0), 0);
            !is_running()
        });
        let error = read_message(&mut client, b'E');
        assert!(error.windows(7).any(|it| it == b"C57014\0"), "{}", error.escape_ascii());
    }
    let mut console =
        connect(&format!("host=127.0.0.1 port={first} dbname=howdah user=postgres")).unwrap();
    let shown = console.query("show peers").unwrap();
    let cell = |row: usize, column| shown[0].rows[row].text(column).unwrap().into_owned();
    assert_eq!((cell(0, 1), cell(0, 2)), ("127.0.0.1".to_owned(), first.to_string()));
    assert_eq!((cell(1, 1), cell(1, 2)), ("localhost".to_owned(), second.to_string()));
    for pooler in poolers {
        pooler.signal(Signal::QUIT);
        let (_, messages) = pooler.wait();
        assert!(!messages.contains("panicked"), "{messages}");
    }
}
