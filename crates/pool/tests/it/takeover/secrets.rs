//! Authentication at servers after a takeover: secrets are handed over.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use howdah_connect::Client;
use howdah_lab::wait_until;

use super::TakeoverFixture;
use crate::{
    auth_query::{self, AUTH_FUNCTION},
    support::{WAIT_TIMEOUT, connect},
};

/// A client of this user, with the password that all roles have.
fn log_in(fixture: &TakeoverFixture, user: &str) -> Client {
    let port = fixture.pool.address().port();
    let words = format!(
        "host=127.0.0.1 port={port} user={user} password=sesame dbname=postgres sslmode=disable \
         connect_timeout=60"
    );
    connect(&words).unwrap()
}

/// Clients that run statements continuously.
struct Traffic {
    is_over: Arc<AtomicBool>,
    statements: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<(), String>>>,
}

impl Traffic {
    fn start(fixture: &TakeoverFixture, users: &[&str]) -> Self {
        let (is_over, statements) = <(Arc<AtomicBool>, Arc<AtomicU64>)>::default();
        let clients: Vec<_> = users.iter().map(|user| log_in(fixture, user)).collect();
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
    fn wait_for_progress(&self) {
        let before = self.statements.load(Ordering::Relaxed);
        let goes_on = || {
            let failed = self.threads.iter().any(JoinHandle::is_finished);
            failed || self.statements.load(Ordering::Relaxed) > before + 20
        };
        wait_until("more statements", WAIT_TIMEOUT, goes_on);
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            assert_eq!(thread.join().unwrap(), Ok(()));
        }
    }
}

/// Takes over twice under load, with additional idle clients.
fn check_takeovers(mut fixture: TakeoverFixture, users: &[&str]) {
    let mut idle: Vec<_> = users.iter().map(|user| (*user, log_in(&fixture, user))).collect();
    for (user, client) in &mut idle {
        let name = client.one_value("select current_user::text").unwrap();
        assert_eq!(name.as_deref(), Some(*user));
    }
    let traffic = Traffic::start(&fixture, users);
    for _ in 0..2 {
        traffic.wait_for_progress();
        fixture.take_over();
        traffic.wait_for_progress();
    }
    traffic.stop();
    for (user, client) in &mut idle {
        let name = client.one_value("select current_user::text").unwrap();
        assert_eq!(name.as_deref(), Some(*user));
    }
}

#[test]
fn clients_with_listed_scram_secrets_survive_takeover() {
    let Some(server) = auth_query::start_cluster("takeover scram", 15) else { return };
    let mut admin = connect(&server.uri("postgres")).unwrap();
    let stored = "select rolpassword from pg_authid where rolname = 'alice'";
    let stored = admin.one_value(stored).unwrap().unwrap();
    assert!(stored.starts_with("SCRAM-SHA-256$"), "{stored}");
    admin.close();
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("userlist.txt");
    fs::write(&list, format!("\"alice\" \"{stored}\"\n")).unwrap();
    let auth = format!("[pool.auth]\ntype = 'scram-sha-256'\nfile = '{}'", list.display());
    check_takeovers(TakeoverFixture::start_for_server(server, "", &auth), &["alice"]);
}

#[test]
fn clients_with_passed_through_passwords_survive_takeover() {
    let Some(server) = auth_query::start_cluster("takeover pass-through", 15) else { return };
    let auth = "[pool.auth]\npass-through = 'loopback'";
    let users = ["alice", "hashed", "open"];
    check_takeovers(TakeoverFixture::start_for_server(server, "", auth), &users);
}

#[test]
fn clients_with_queried_secrets_survive_takeover() {
    for (method, users) in [("scram-sha-256", &["alice"][..]), ("md5", &["alice", "hashed"])] {
        let Some(server) = auth_query::start_cluster("takeover auth_query", 15) else { return };
        let auth = format!("[pool.auth]\ntype = '{method}'\n{AUTH_FUNCTION}\n[pool.users.asker]");
        check_takeovers(TakeoverFixture::start_for_server(server, "", &auth), users);
    }
}
