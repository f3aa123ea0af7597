//! Servers that ask for a password get one from the new process, too.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use howdah_connect::Client;

use super::{Line, until};
use crate::{
    auth_query::{self, FUNCTION},
    support::connect,
};

/// A client of this user, whose password is that of all roles.
fn log_in(line: &Line, user: &str) -> Client {
    let port = line.stage.address().port();
    let words = format!(
        "host=127.0.0.1 port={port} user={user} password=sesame dbname=postgres sslmode=disable \
         connect_timeout=60"
    );
    connect(&words).unwrap()
}

/// Clients that run one statement after another.
struct Traffic {
    is_over: Arc<AtomicBool>,
    statements: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Traffic {
    fn start(line: &Line, users: &[&str]) -> Self {
        let (is_over, statements) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let clients: Vec<_> = users.iter().map(|user| log_in(line, user)).collect();
        let run = |mut client: Client| {
            let (is_over, statements) = (Arc::clone(&is_over), Arc::clone(&statements));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    client.query("select 1").map_err(|error| error.to_string())?;
                    statements.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            })
        };
        let threads = clients.into_iter().map(run).collect();
        Self { is_over, statements, threads }
    }

    /// Waits until more statements have run.
    fn goes_on(&self) {
        let before = self.statements.load(Ordering::Relaxed);
        let goes_on = || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            failed || self.statements.load(Ordering::Relaxed) > before + 20
        };
        until("traffic goes on", goes_on);
    }

    fn end(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert_eq!(thread.join().unwrap(), Ok(()));
        }
    }
}

/// Takes over twice under traffic, with clients that are idle meanwhile.
fn no_client_is_lost(mut line: Line, users: &[&str]) {
    let mut idle: Vec<_> = users.iter().map(|user| (*user, log_in(&line, user))).collect();
    for (user, client) in &mut idle {
        let name = client.one_value("select current_user::text").unwrap();
        assert_eq!(name.as_deref(), Some(*user));
    }
    let traffic = Traffic::start(&line, users);
    for _ in 0..2 {
        traffic.goes_on();
        line.take_over();
        traffic.goes_on();
    }
    traffic.end();
    for (user, client) in &mut idle {
        let name = client.one_value("select current_user::text").unwrap();
        assert_eq!(name.as_deref(), Some(*user));
    }
}

#[test]
fn clients_of_listed_scram_secrets_survive_a_takeover() {
    let Some(server) = auth_query::cluster("takeover scram", 15) else { return };
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let stored = "select rolpassword from pg_authid where rolname = 'alice'";
    let stored = admin.one_value(stored).unwrap().unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"), "{stored}");
    admin.close();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("userlist.txt");
    fs::write(&list, format!("\"alice\" \"{stored}\"\n")).unwrap();
    let auth = format!("[pool.auth]\ntype = 'scram-sha-256'\nfile = '{}'", list.display());
    no_client_is_lost(Line::start_before(server, "", &auth), &["alice"]);
}

#[test]
fn clients_of_looked_up_secrets_survive_a_takeover() {
    for (method, users) in [("scram-sha-256", &["alice"][..]), ("md5", &["alice", "hashed"])] {
        let Some(server) = auth_query::cluster("takeover auth_query", 15) else { return };
        let auth = format!("[pool.auth]\ntype = '{method}'\n{FUNCTION}\n[pool.users.asker]");
        no_client_is_lost(Line::start_before(server, "", &auth), users);
    }
}
