use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use howdah_connect::{Client, ConnParams, ConnectTarget, Environment};
use howdah_pool_config::Config;
use parking_lot::Condvar;

use super::*;
use crate::{
    Pooler,
    worker::{PoolerStartError, host_resolver::HostResolver, shared_state::SystemServices},
};

const DATABASES: usize = 8;

fn config() -> Config {
    let databases = (0..DATABASES)
        .map(|number| format!("[pool.databases.dead{number}]\nhosts = ['dead{number}.example']\n"));
    let text = format!(
        "[pool]\nworkers = 2\nadmin-users = ['dba']\n[pool.listen]\nport = 0\n\
         unix-directories = []\n[pool.auth]\ntype = 'scram-sha-256'\n\
         [pool.users.dba]\nsecret = 'sesame'\n{}",
        databases.collect::<String>()
    );
    Config::read_str(&text, Path::new("test.toml")).unwrap().config
}

fn log_in(port: u16, database: &str) -> Result<Client, String> {
    let words = format!(
        "host=127.0.0.1 port={port} user=dba password=sesame dbname={database} sslmode=disable \
         connect_timeout=60"
    );
    let environment = Environment::empty().with_os_user("tester");
    let target = ConnectTarget::resolve(&ConnParams::from_conninfo(&words), &environment).unwrap();
    Client::connect(&target).map_err(|error| error.to_string())
}

#[test]
fn logins_proceed_while_server_names_are_unresolved() {
    let lookups = Arc::new(AtomicUsize::new(0));
    let released = Arc::new((Mutex::new(false), Condvar::new()));
    let system = {
        let (lookups, released) = (Arc::clone(&lookups), Arc::clone(&released));
        let resolve = move |_: &str, _: u16| {
            lookups.fetch_add(1, Ordering::Relaxed);
            let (is_released, changed) = &*released;
            changed.wait_while(&mut is_released.lock(), |is_released| !*is_released);
            Err(std::io::Error::other("the resolver gives up"))
        };
        SystemServices { names: HostResolver::new(resolve), ..SystemServices::default() }
    };
    let pooler = Pooler::start_inner(config(), None, Vec::new(), None, system).unwrap();
    let port = pooler.addresses()[0].port();
    // Each login needs a server with a different name; there are more logins than threads of any
    // kind.
    let stuck: Vec<_> = (0..DATABASES)
        .map(|number| thread::spawn(move || log_in(port, &format!("dead{number}"))))
        .collect();
    howdah_lab::wait_until("all resolver threads to block", Duration::from_secs(60), || {
        lookups.load(Ordering::Relaxed) >= THREADS
    });
    // The console needs no server, and its logins need only the threads that compute SCRAM.
    for _ in 0..10 {
        log_in(port, "howdah").unwrap().query("show version").unwrap();
    }
    assert!(stuck.iter().all(|login| !login.is_finished()), "their names are not resolved yet");
    *released.0.lock() = true;
    released.1.notify_all();
    for login in stuck {
        let error = login.join().unwrap().unwrap_err();
        assert!(error.contains("the resolver gives up"), "{error}");
    }
}

#[test]
fn start_and_logins_fail_without_random_bytes() {
    static FAILS: AtomicBool = AtomicBool::new(true);
    let random = |bytes: &mut [u8]| {
        let is_broken = FAILS.load(Ordering::Relaxed);
        if is_broken {
            Err(ring::error::Unspecified)
        } else {
            (SystemServices::default().random)(bytes)
        }
    };
    let system = SystemServices { random, ..SystemServices::default() };
    let start = || Pooler::start_inner(config(), None, Vec::new(), None, system.clone());
    assert!(matches!(start().unwrap_err(), PoolerStartError::Randomness));
    FAILS.store(false, Ordering::Relaxed);
    let pooler = start().unwrap();
    let port = pooler.addresses()[0].port();
    log_in(port, "howdah").unwrap();
    FAILS.store(true, Ordering::Relaxed);
    // Random bytes are requested for several logins together.
    let error = (0..1000).find_map(|_| log_in(port, "howdah").err()).expect("a login fails");
    assert!(error.contains("could not get random bytes"), "{error}");
}
