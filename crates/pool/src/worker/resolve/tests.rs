use std::{
    path::Path,
    sync::{
        Arc, Condvar,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_connect::{Client, Environment, Target, Words};

use super::*;
use crate::{
    Pooler,
    config::Config,
    worker::{StartError, front::System, names::Names},
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
    let target = Target::resolve(&Words::from_conninfo(&words), &environment).unwrap();
    Client::connect(&target).map_err(|error| error.to_string())
}

#[test]
fn logins_go_on_while_names_of_servers_are_not_resolved() {
    let asked = Arc::new(AtomicUsize::new(0));
    let released = Arc::new((Mutex::new(false), Condvar::new()));
    let system = {
        let (asked, released) = (Arc::clone(&asked), Arc::clone(&released));
        let resolve = move |_: &str, _: u16| {
            asked.fetch_add(1, Ordering::Relaxed);
            let (is_released, changed) = &*released;
            let guard = is_released.lock().unwrap();
            drop(changed.wait_while(guard, |is_released| !*is_released).unwrap());
            Err(std::io::Error::other("the resolver gives up"))
        };
        System { names: Names::new(resolve), ..System::default() }
    };
    let pooler = Pooler::begin(config(), None, Vec::new(), None, system).unwrap();
    let port = pooler.addresses()[0].port();
    // Each wants a server of another name, more of them than there are threads of any kind.
    let stuck: Vec<_> = (0..DATABASES)
        .map(|number| thread::spawn(move || log_in(port, &format!("dead{number}"))))
        .collect();
    let deadline = Instant::now() + Duration::from_secs(60);
    while asked.load(Ordering::Relaxed) < THREADS {
        assert!(Instant::now() < deadline, "the resolver was not asked within a minute");
        thread::yield_now();
    }
    // The console needs no server, and its logins the threads that SCRAM is computed on.
    for _ in 0..10 {
        log_in(port, "howdah").unwrap().query("show version").unwrap();
    }
    assert!(stuck.iter().all(|login| !login.is_finished()), "their names are not resolved yet");
    *released.0.lock().unwrap() = true;
    released.1.notify_all();
    for login in stuck {
        let error = login.join().unwrap().unwrap_err();
        assert!(error.contains("the resolver gives up"), "{error}");
    }
}

#[test]
fn nothing_starts_and_nobody_is_let_in_without_random_bytes() {
    static FAILS: AtomicBool = AtomicBool::new(true);
    let random = |bytes: &mut [u8]| {
        let is_broken = FAILS.load(Ordering::Relaxed);
        if is_broken { Err(ring::error::Unspecified) } else { (System::default().random)(bytes) }
    };
    let system = System { random, ..System::default() };
    let start = || Pooler::begin(config(), None, Vec::new(), None, system.clone());
    assert!(matches!(start().unwrap_err(), StartError::Randomness));
    FAILS.store(false, Ordering::Relaxed);
    let pooler = start().unwrap();
    let port = pooler.addresses()[0].port();
    log_in(port, "howdah").unwrap();
    FAILS.store(true, Ordering::Relaxed);
    let error = log_in(port, "howdah").unwrap_err();
    assert!(error.contains("no random bytes"), "{error}");
}
